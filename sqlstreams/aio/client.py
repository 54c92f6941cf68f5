"""The door to one installation, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, Self, TypeVar, overload
from weakref import WeakSet

import psycopg
from psycopg import errors as pg

from sqlstreams import acts
from sqlstreams.aio.deadline import AsyncDeadline
from sqlstreams.aio.log import Log
from sqlstreams.aio.manager import AsyncManager
from sqlstreams.aio.scheduler import AsyncScheduler
from sqlstreams.aio.stream import AsyncStream
from sqlstreams.aio.system import AsyncSystem
from sqlstreams.consume.presence import Presence
from sqlstreams.database import AsyncDatabase, address
from sqlstreams.errors import NotFound
from sqlstreams.manager.management import Management
from sqlstreams.model import (
    DeadlineInfo,
    GroupInfo,
    MigrationStep,
    RawPayload,
    ScheduleInfo,
    StreamInfo,
)
from sqlstreams.names import check_name
from sqlstreams.options import (
    check_duration,
    check_integer,
)
from sqlstreams.produce.transaction import atransaction
from sqlstreams.statements import Act
from sqlstreams.wake import Hearing, Notifier

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")

_MOVES = 5


class AsyncClient:
    """A door to one installation. Opening it connects to nothing; the first call does.

    `url` is a PostgreSQL URL or connection string, `schema` the installation in it. At most `pool_size` connections
    are opened beside one for the heartbeat, one for wake-ups, one to send them, and one for each handler at a time of a
    transactional `consume()`; a call waits up to `timeout` seconds for one. `lease_ttl` is how long a consuming process
    may be silent before its work is given to others. `listen_url` reaches PostgreSQL directly when `url` goes through a
    pooler. `max_pending` bounds the messages that wait for a shared commit. Without `allow_destroy` nothing can be
    destroyed. While it consumes it also runs the manager, when it is this process's turn; with `manager=False` that is
    left to others.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "sqlstreams",
        pool_size: int = 10,
        timeout: float = 30.0,
        lease_ttl: timedelta = timedelta(seconds=15),
        listen_url: str | None = None,
        max_pending: int = 10_000,
        allow_destroy: bool = False,
        manager: bool = True,
    ) -> None:
        self._address = address(url, schema=schema, pool_size=pool_size, timeout=timeout)
        check_duration("lease_ttl", lease_ttl, low=timedelta(milliseconds=300), high=timedelta(days=1))
        listen = None if listen_url is None else address(listen_url, schema=schema, pool_size=1, timeout=timeout)
        self._allow_destroy = allow_destroy
        self._max_pending = check_integer("max_pending", max_pending, low=1, high=10_000_000)
        self._database = AsyncDatabase(self._address)
        hearing = Hearing(self._database, listen_conninfo=None if listen is None else listen.conninfo)
        self._presence = Presence(self._database, lease_ttl=lease_ttl.total_seconds(), hearing=hearing)
        self._notifier = Notifier(self._address)
        self._management = Management(
            self._database, lease_ttl=lease_ttl.total_seconds(), hearing=hearing, notifier=self._notifier
        )
        self._runs_manager = manager
        self._logs: dict[tuple[str, int], Log] = {}
        self._used_logs: WeakSet[Log] = WeakSet()  # also those that were read anew since
        self._joined: dict[object, set[int]] = {}
        self._checked = False

    async def __aenter__(self) -> Self:
        await self._database.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Commit what is pending, send the last wake-ups and close every connection."""
        await self._presence.close()
        await self._management.close()
        for log in list(self._used_logs):
            await log.commits.close()
        await asyncio.to_thread(self._notifier.close)
        await self._database.close()

    @property
    def system(self) -> AsyncSystem:
        """The installation itself."""
        return AsyncSystem(self)

    @property
    def manager(self) -> AsyncManager:
        """The manager: who runs it, and what it does."""
        return AsyncManager(self)

    @overload
    def stream(self, name: str) -> AsyncStream[RawPayload]: ...
    @overload
    def stream(self, name: str, payload_type: type[PayloadT]) -> AsyncStream[PayloadT]: ...
    def stream(self, name: str, payload_type: type[Any] = RawPayload) -> AsyncStream[Any]:
        """Return a handle on a stream. No I/O happens, and the stream need not exist."""
        return AsyncStream(self, name, payload_type)

    async def list_streams(self) -> list[StreamInfo]:
        """Return every stream, by name."""
        return await self._run(lambda: acts.list_streams(self._address.schema))

    async def list_consumers(self, stream: str | None = None) -> list[GroupInfo]:
        """Return every consumer group, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return await self._run(lambda: acts.list_groups(self._address.schema, stream=stream))

    def deadline(self, name: str) -> AsyncDeadline:
        """Return a handle on a deadline. No I/O happens, and the deadline need not exist."""
        return AsyncDeadline(self, name)

    async def list_deadlines(self, stream: str | None = None) -> list[DeadlineInfo]:
        """Return every deadline, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return await self._run(lambda: acts.list_deadlines(self._address.schema, stream=stream))

    def scheduler(self, name: str) -> AsyncScheduler:
        """Return a handle on a schedule. No I/O happens, and the schedule need not exist."""
        return AsyncScheduler(self, name)

    async def list_schedules(self, stream: str | None = None) -> list[ScheduleInfo]:
        """Return every schedule, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return await self._run(lambda: acts.list_schedules(self._address.schema, stream=stream))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection in a transaction: for callers of `produce(connection=…)` who have none of their own.

        It is committed at the end of the block, and rolled back by an exception in it. After the commit the consumers
        of what was produced in it are woken. Raises `DatabaseUnavailable` when the connection broke and nothing was
        written, `ProduceUncertain` when it broke during the commit and the server could not be asked afterwards.
        """
        streams: set[int] = set()
        async with atransaction(self._database) as connection:
            self._joined[connection] = streams
            try:
                yield connection
            finally:
                del self._joined[connection]
        for stream in streams:
            self._notifier.notify(stream)

    # What the handles use

    def _managing(self) -> AbstractAsyncContextManager[object]:
        return self._management.running() if self._runs_manager else nullcontext()

    async def _run(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        if not self._checked:
            await self._database.run(lambda: acts.check_installation(self._address.schema))
            self._checked = True
        return await self._database.run(act)

    async def _move(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        # Consuming processes lock several rows at a time, too, in an order of their own.
        for _ in range(_MOVES - 1):
            with suppress(pg.DeadlockDetected):
                return await self._run(act)
        return await self._run(act)

    async def _find(self, act: Callable[[], Act[ResultT]]) -> ResultT | None:
        try:
            return await self._run(act)
        except NotFound:
            return None

    async def _install_if_absent(self) -> None:
        if not self._checked and not await self._database.run(lambda: acts.is_installed(self._address.schema)):
            await self._migrate()

    async def _migrate(self) -> list[MigrationStep]:
        applied = []
        while steps := await self._database.run(lambda: acts.migrate_next(self._address.schema)):
            applied += steps
        return applied

    async def _log(self, stream: str, schema_version: int) -> Log:
        log = self._logs.get((stream, schema_version))
        if log is None:
            info = await self._run(lambda: acts.get_stream(self._address.schema, name=stream))
            log = self._logs.setdefault((stream, schema_version), Log(self, info, schema_version))
        return log
