"""A network that loses the answer to a commit: a proxy on the loopback in front of a server."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# As a statement of its own (synchronous_commit is in many), with the name under which the driver prepares it.
_COMMIT = re.compile(rb"(?:(\w+)\x00)?commit\x00", re.IGNORECASE)
Moment = Literal["before", "during", "after"]


class Proxy:
    """Passes bytes on until a commit comes by, and then breaks the connection once for each `break_next`.

    `before`: the server never hears of the commit; `during`: the client is cut off while it is on its way, and may ask
    before the server is done; `after`: the server has answered, and the answer is lost. With `close_too` nothing gets
    through afterwards.
    """

    def __init__(self, url: str) -> None:
        self._target = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.broken = 0
        self._moments: list[Moment] = []
        self._close_too = False
        self._is_shut = False
        self._open: list[socket.socket] = []
        port = self._listener.getsockname()[1]
        self.url = make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def break_next(self, moment: Moment, *, close_too: bool = False) -> None:
        """Lose the next commit, before, while or after the server does it."""
        self._close_too = close_too
        self._moments.append(moment)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_shut:
                    client.close()
                    continue
                server = self._connect()
                self._open += client, server
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = str(self._target.get("host", "127.0.0.1")), int(self._target.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        is_lost = threading.Event()
        answers = threading.Thread(target=_copy, args=(server, client, is_lost), daemon=True)
        answered, prepared = False, b""
        moment: Moment | None = None
        with suppress(OSError):
            while request := client.recv(65_536):
                commit = _COMMIT.search(request)
                prepared = (commit and commit[1]) or prepared
                is_commit = commit or (prepared and b"\x00" + prepared + b"\x00" in request)
                moment = self._moments.pop() if is_commit and self._moments else None
                if moment is not None:
                    self.broken += 1
                    self._is_shut = self._close_too
                if moment == "after":
                    is_lost.set()  # the next answer ends it; what belongs to the commit may still follow
                elif moment is not None:
                    self._break(client, server, request, moment)
                    break
                if not answered:
                    answered = True
                    answers.start()
                server.sendall(request)
        if moment != "during":
            _end(client, server)
        if self._is_shut:
            _end(*(each for each in self._open if each not in (client, server)))

    def _break(self, client: socket.socket, server: socket.socket, request: bytes, moment: Moment) -> None:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        if moment == "during":
            server.sendall(request)
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)
        _end(client, client if moment == "during" else server)


def _copy(source: socket.socket, target: socket.socket, is_lost: threading.Event) -> None:
    with suppress(OSError):
        while (answer := source.recv(65_536)) and not is_lost.is_set():
            with suppress(OSError):  # the client is gone, the server shall end what it does all the same
                target.sendall(answer)
    _end(source, target)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def lossy(url: str) -> Iterator[Proxy]:
    """Put a proxy in front of the server of `url` for the time of the block."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
