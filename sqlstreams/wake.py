"""Wake-ups: one merged NOTIFY after our commits, and a LISTEN connection that is repaired. Both only save time."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import psycopg

from sqlstreams import statements
from sqlstreams.database import Address, AsyncDatabase, execute
from sqlstreams.names import channel
from sqlstreams.sql import quote_identifier

_log = logging.getLogger("sqlstreams.wake")

# Under load one notification stands for all commits of this many seconds; the first after a pause is sent at once.
_SPACING = 0.002
_REPAIR_LONGEST = 5.0
# In the place of a stream's id: retries have become due, so every process polls now.
RETRIES_DUE = 0

News = int | str | None
"""What a notification says: the id of a stream, one of `TOPICS`, or None when anything may have happened."""

TOPICS: Final = frozenset({"manager", "schedules", "deadlines"})


class Notifier:
    """Sends merged notifications on a connection and a thread of its own, so that no producer waits for one.

    A notification that cannot be sent is dropped: consumers poll as well.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pending: set[int] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def notify(self, stream_id: int) -> None:
        """Have consumers woken soon: a stream's, or all for `RETRIES_DUE`. Returns at once; any thread may call it."""
        with self._changed:
            if self._closing:
                return
            self._pending.add(stream_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sqlstreams-notify", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send what is pending and stop; wait at most two seconds for that."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def _run(self) -> None:
        connection: psycopg.Connection | None = None
        while stream_ids := self._take():
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self._address.conninfo, autocommit=True, prepare_threshold=None)
                schema = self._address.schema
                execute(connection, statements.notify(schema, channel=channel(schema), stream_ids=stream_ids))
            except psycopg.Error as error:
                _log.info("a wake-up was not sent, consumers will poll: %s", error)
                if connection is not None:
                    connection.close()
                connection = None
            time.sleep(_SPACING)
        if connection is not None:
            connection.close()

    def _take(self) -> list[int]:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            stream_ids = sorted(self._pending)
            self._pending.clear()
            return stream_ids


class Listener:
    """Hears what has news. `connected` says whether push works now; when it does not, polling remains."""

    def __init__(self, conninfo: str, schema: str) -> None:
        self._conninfo = conninfo
        self._channel = channel(schema)
        self.connected = False
        self.reconnects = 0

    async def run(self, wake: Callable[[News], None]) -> None:
        """Call `wake` with whatever has news, until cancelled."""
        pause = 0.1
        while True:
            try:
                async for news in self._listen():
                    pause = 0.1
                    wake(news)
            except (psycopg.Error, OSError) as error:
                self._report_loss(error)
            self.connected = False
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _REPAIR_LONGEST)

    async def _listen(self) -> AsyncIterator[News]:
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        async with connection:
            await connection.execute(f"listen {quote_identifier(self._channel)}".encode())
            if self.reconnects or self.connected:
                _log.info("SQL0103 the listening connection is back")
            self.connected = True
            yield None  # whatever came before we listened
            async for notification in connection.notifies():
                yield _read(notification.payload)

    def _report_loss(self, error: Exception) -> None:
        if self.connected:
            self.reconnects += 1
            _log.warning("SQL0103 the listening connection was lost, polling goes on: %s", str(error).strip())


def _read(payload: str) -> News:
    if payload in TOPICS:
        return payload
    return int(payload) if payload.isascii() and payload.isdigit() else None


class Hearing:
    """One listening connection for everybody in a client who wants news; open while there is anybody."""

    def __init__(self, database: AsyncDatabase, *, listen_conninfo: str | None) -> None:
        self._database = database
        self._listen_conninfo = listen_conninfo
        self._wakes: list[Callable[[News], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.listener: Listener | None = None

    def join(self, wake: Callable[[News], None]) -> None:
        """Have `wake` called with all news. The database must have been reached, so that a pooler was noticed."""
        self._wakes.append(wake)
        if self._task is not None:
            wake(None)  # whatever came before
        elif self._listen_conninfo is not None or not self._database.through_pooler:
            self.listener = Listener(self._listen_conninfo or self._database.address.conninfo, self._database.schema)
            self._task = asyncio.create_task(self.listener.run(self._wake), name="sqlstreams-listen")
        elif len(self._wakes) == 1:
            _log.warning("SQL0102 push wake-ups are off: the connection goes through a pooler; polling instead")

    async def leave(self, wake: Callable[[News], None]) -> None:
        """Have `wake` called no more; with the last one the connection is closed."""
        if wake in self._wakes:
            self._wakes.remove(wake)
        if not self._wakes and self._task is not None:
            task, self._task, self.listener = self._task, None, None
            task.cancel()
            await asyncio.wait([task])

    def _wake(self, news: News) -> None:
        for wake in list(self._wakes):
            wake(news)
