"""The brokers that the tests publish to: what is asked of each, and servers of our own that can be killed."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import nats
import pytest
from msgspec import Struct
from nats.aio.client import Client

from sqlstreams.relay import Relay
from tests.support import eventually


class Received(Struct, frozen=True):
    """A message as it lies in a broker."""

    payload: bytes
    headers: Mapping[str, str]

    @property
    def key(self) -> str | None:
        return self.headers.get("sqlstreams-key")


class Broker(Protocol):
    """A place of this test alone in a running broker."""

    name: str
    to: str

    async def read(self, count: int) -> list[Received]:
        """Return all messages, in their order, as soon as there are `count`."""


class Nats:
    """A stream of JetStream with the subjects `name` and `name.>`."""

    name = "nats"

    def __init__(self, place: str, *, subject: str) -> None:
        self.subject = subject
        self.place = place
        self.to = f"nats://{place}/{subject}"

    async def create(self) -> None:
        async with self._connected() as connection:
            await connection.jetstream().add_stream(name=self.subject, subjects=[self.subject, f"{self.subject}.>"])

    async def destroy(self) -> None:
        async with self._connected() as connection:
            await connection.jetstream().delete_stream(self.subject)

    async def read(self, count: int) -> list[Received]:
        async with self._connected() as connection:
            stream = connection.jetstream()

            async def is_there() -> bool:
                return bool((await stream.stream_info(self.subject)).state.messages >= count)

            await eventually(is_there)
            info = await stream.stream_info(self.subject)
            found = [await stream.get_msg(self.subject, seq=seq + 1) for seq in range(info.state.messages)]
            return [Received(each.data or b"", each.headers or {}) for each in found]

    async def subjects(self) -> list[str]:
        async with self._connected() as connection:
            stream = connection.jetstream()
            count = (await stream.stream_info(self.subject)).state.messages
            return [str((await stream.get_msg(self.subject, seq=seq + 1)).subject) for seq in range(count)]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        connection = await nats.connect(f"nats://{self.place}", allow_reconnect=False)
        try:
            yield connection
        finally:
            await connection.close()


class Server:
    """A broker of our own, which can be killed and started again on the same port and directory."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not answers(self.port):
            assert time.monotonic() < until, f"{self._command[0]} did not start"
            assert self._process.poll() is None, f"{self._command[0]} ended at once"

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def own_server(program: str, *options: str) -> Iterator[Server]:
    """Run a broker on a port that is free, until the end of the block; `{port}` in the options becomes the port."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed, so there is no broker that may be killed")
    port = free_port()
    server = Server([path, *(each.format(port=port) for each in options)], port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def own_nats(directory: Path) -> Iterator[Server]:
    with own_server("nats-server", "-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", str(directory)) as server:
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def new_name() -> str:
    return f"sqlstreams-test-{uuid4().hex[:12]}"


@asynccontextmanager
async def a_place(name: str) -> AsyncIterator[Broker]:
    """Make a place of this test alone in the broker that runs on this machine; skip the test when none does."""
    async with _PLACES[name]() as broker:
        yield broker


@asynccontextmanager
async def _in_nats() -> AsyncIterator[Broker]:
    if not answers(4222):
        pytest.skip("no NATS answers on 127.0.0.1:4222")
    broker = Nats("127.0.0.1:4222", subject=new_name())
    await broker.create()
    try:
        yield broker
    finally:
        await broker.destroy()


@asynccontextmanager
async def a_place_of_our_own(name: str, directory: Path) -> AsyncIterator[tuple[Server, Broker]]:
    """Make a place in a broker that may be killed; skip the test when its program is not installed."""
    assert name == "nats"
    with own_nats(directory) as server:
        broker = Nats(server.place, subject="orders")
        await broker.create()
        yield server, broker


_PLACES = {"nats": _in_nats}
BROKERS = tuple(_PLACES)


async def has_published(relay: Relay, count: int) -> None:
    await eventually(lambda: relay.stats.published >= count)
