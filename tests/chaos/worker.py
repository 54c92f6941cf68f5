"""A consuming process to do harm to: `python -m tests.chaos.worker SETTINGS`, where SETTINGS is a `Settings` as JSON.

It writes what happens to a journal, one line an event, so that nothing it saw is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
from msgspec import Struct

from sqlstreams import AsyncClient, meta
from tests.delivery.effects import INSERT
from tests.support import Note


class Settings(Struct, frozen=True, kw_only=True):
    """What the process does: which handler, how long it takes (`seconds`), and how it consumes."""

    url: str
    journal: str
    handler: str = "slow"
    seconds: float = 0.02
    concurrency: int = 5
    prefetch: int | None = 20
    grace: float = 10.0
    lease: float = 1.0
    timeout: float = 30.0
    produces: bool = False


class Journal:
    """Appends events to a file; each is on disk as far as a killed process is concerned."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, *details: object) -> None:
        words = [event, f"{time.time():.6f}", *details]
        os.write(self._file, (" ".join(map(str, words)).replace("\n", " ") + "\n").encode())


class JournalHandler(logging.Handler):
    """Puts what the library logs into the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.write("log", record.getMessage())


class Handlers:
    """The kinds of handler, by name; each notes when it begins and how it ends."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._seconds = settings.seconds
        self._journal = journal

    def named(self, name: str) -> Callable[..., Awaitable[None] | None]:
        found: Callable[..., Awaitable[None] | None] = getattr(self, name)
        return found

    async def slow(self, note: Note) -> None:
        with self._noted():
            await asyncio.sleep(self._seconds)

    async def flaky(self, note: Note) -> None:
        """Fail every seventh message once."""
        with self._noted():
            await asyncio.sleep(self._seconds)
            if meta().id % 7 == 0 and meta().attempt == 1:
                raise ValueError("a passing trouble")

    async def failing(self, note: Note) -> None:
        with self._noted():
            await asyncio.sleep(self._seconds)
            raise ValueError("always")

    async def hanging_in_its_retry(self, note: Note) -> None:
        with self._noted():
            if meta().attempt == 1:
                raise ValueError("once")
            await asyncio.sleep(600)

    async def killed_by_one(self, note: Note) -> None:
        """Let the message that says so kill the process, as a fault in native code would."""
        with self._noted():
            await asyncio.sleep(self._seconds)
            if note.text == "killer":
                os._exit(9)

    async def blocking(self, note: Note) -> None:
        with self._noted():
            time.sleep(self._seconds)  # noqa: ASYNC251  # this is the harm

    async def deaf(self, note: Note) -> None:
        """Take `seconds` to obey a cancellation."""
        with self._noted():
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(self._seconds)

    async def effect(self, note: Note, connection: psycopg.AsyncConnection[Any]) -> None:
        """Write, within the transaction that records the delivery."""
        with self._noted():
            await connection.execute(INSERT, [meta().id])
            await asyncio.sleep(self._seconds)

    def effect_thread(self, note: Note, connection: psycopg.Connection[Any]) -> None:
        with self._noted():
            connection.execute(INSERT, [meta().id])
            time.sleep(self._seconds)

    def thread(self, note: Note) -> None:
        with self._noted():
            time.sleep(self._seconds)

    def stuck_thread(self, note: Note) -> None:
        with self._noted():
            threading.Event().wait()

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        about = meta()
        self._journal.write("start", about.id, about.attempt)
        try:
            yield
        except BaseException as error:
            self._journal.write(type(error).__name__, about.id, about.attempt)
            raise
        self._journal.write("end", about.id, about.attempt)


async def main(settings: Settings, journal: Journal) -> None:
    async with AsyncClient(
        settings.url,
        lease_ttl=timedelta(seconds=settings.lease),
        timeout=settings.timeout,
    ) as client:
        stream = client.stream("notes", Note)
        producing = asyncio.create_task(_produce(client)) if settings.produces else None
        journal.write("connecting")
        await stream.consumer("g").consume(
            Handlers(settings, journal).named(settings.handler),
            transactional=settings.handler.startswith("effect"),
            concurrency=settings.concurrency,
            prefetch=settings.prefetch,
            grace=timedelta(seconds=settings.grace),
        )
        journal.write("stopped")
        if producing is not None:
            producing.cancel()


async def _produce(client: AsyncClient) -> None:
    producer = client.stream("notes", Note).producer()
    while True:
        with contextlib.suppress(ConnectionError):
            await producer.produce(Note("from the process itself"))
        await asyncio.sleep(0.02)


def run() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    journal = Journal(settings.journal)
    log = logging.getLogger("sqlstreams")
    log.setLevel(logging.INFO)
    log.addHandler(JournalHandler(journal))
    asyncio.run(main(settings, journal))


if __name__ == "__main__":
    run()
