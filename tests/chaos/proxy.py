"""A network that can be cut: a proxy on the loopback in front of a server's socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Network:
    """Passes bytes on, unless it is `silent` (they go nowhere, and nothing is said) or `refused`."""

    def __init__(self, url: str) -> None:
        target = conninfo_to_dict(url)
        self._socket = f"{target['host']}/.s.PGSQL.{target['port']}"
        self._url = url
        self._is_refused = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """The server's URL through this network."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return make_conninfo(self._url, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")

    def refuse(self) -> None:
        """Break every connection and let no new one through."""
        self._is_refused = True
        self.drop()

    def fall_silent(self) -> None:
        """Let every connection stand, and nothing through."""
        self._flows.clear()

    def forget(self) -> None:
        """Let new connections through, and nothing through those that stand."""
        self._flows = asyncio.Event()
        self._flows.set()

    def drop(self) -> None:
        """Break every connection that stands."""
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        self._is_refused = False
        self._flows.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with suppress(OSError, asyncio.CancelledError):
            flows = self._flows
            if not self._is_refused:
                await flows.wait()
                await self._connect(reader, writer, flows)
        writer.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._socket)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        answers, requests = await self._reach()
        ends = {writer, requests}
        self._writers |= ends
        ways = [
            asyncio.create_task(_pass(reader, requests, flows)),
            asyncio.create_task(_pass(answers, writer, flows)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers -= ends
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            requests.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            await flows.wait()
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def network(url: str) -> AsyncIterator[Network]:
    """Open a network to the server of `url` for the time of a block."""
    opened = Network(url)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()
