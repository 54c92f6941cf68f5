"""The door to one installation, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Self, TypeVar, overload
from weakref import WeakSet

import psycopg
from psycopg import errors as pg

from sqlstreams import acts
from sqlstreams.aio import AsyncClient
from sqlstreams.client.deadline import Deadline
from sqlstreams.client.log import Log
from sqlstreams.client.manager import Manager
from sqlstreams.client.scheduler import Scheduler
from sqlstreams.client.stream import Stream
from sqlstreams.client.system import System
from sqlstreams.database import Database, address
from sqlstreams.errors import NotFound
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
from sqlstreams.produce.transaction import transaction
from sqlstreams.statements import Act
from sqlstreams.wake import Notifier

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")

_MOVES = 5


class Client:
    """A door to one installation; threads may share it. Opening it connects to nothing; the first call does.

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
        if listen_url is not None:
            address(listen_url, schema=schema, pool_size=1, timeout=timeout)
        self._allow_destroy = allow_destroy
        self._max_pending = check_integer("max_pending", max_pending, low=1, high=10_000_000)
        self._database = Database(self._address)
        self._lease_ttl = lease_ttl
        self._listen_url = listen_url
        self._runs_manager = manager
        self._notifier = Notifier(self._address)
        self._logs: dict[tuple[str, int], Log] = {}
        self._used_logs: WeakSet[Log] = WeakSet()  # also those that were read anew since
        self._logs_lock = threading.Lock()
        self._joined: dict[object, set[int]] = {}
        self._checked = False

    def __enter__(self) -> Self:
        self._database.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is pending, send the last wake-ups and close every connection."""
        with self._logs_lock:
            used = list(self._used_logs)
        for log in used:
            log.commits.close()
        self._notifier.close()
        self._database.close()

    @property
    def system(self) -> System:
        """The installation itself."""
        return System(self)

    @property
    def manager(self) -> Manager:
        """The manager: who runs it, and what it does."""
        return Manager(self)

    @overload
    def stream(self, name: str) -> Stream[RawPayload]: ...
    @overload
    def stream(self, name: str, payload_type: type[PayloadT]) -> Stream[PayloadT]: ...
    def stream(self, name: str, payload_type: type[Any] = RawPayload) -> Stream[Any]:
        """Return a handle on a stream. No I/O happens, and the stream need not exist."""
        return Stream(self, name, payload_type)

    def list_streams(self) -> list[StreamInfo]:
        """Return every stream, by name."""
        return self._run(lambda: acts.list_streams(self._address.schema))

    def list_consumers(self, stream: str | None = None) -> list[GroupInfo]:
        """Return every consumer group, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return self._run(lambda: acts.list_groups(self._address.schema, stream=stream))

    def deadline(self, name: str) -> Deadline:
        """Return a handle on a deadline. No I/O happens, and the deadline need not exist."""
        return Deadline(self, name)

    def list_deadlines(self, stream: str | None = None) -> list[DeadlineInfo]:
        """Return every deadline, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return self._run(lambda: acts.list_deadlines(self._address.schema, stream=stream))

    def scheduler(self, name: str) -> Scheduler:
        """Return a handle on a schedule. No I/O happens, and the schedule need not exist."""
        return Scheduler(self, name)

    def list_schedules(self, stream: str | None = None) -> list[ScheduleInfo]:
        """Return every schedule, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return self._run(lambda: acts.list_schedules(self._address.schema, stream=stream))

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in a transaction: for callers of `produce(connection=…)` who have none of their own.

        It is committed at the end of the block, and rolled back by an exception in it. After the commit the consumers
        of what was produced in it are woken. Raises `DatabaseUnavailable` when the connection broke and nothing was
        written, `ProduceUncertain` when it broke during the commit and the server could not be asked afterwards.
        """
        streams: set[int] = set()
        with transaction(self._database) as connection:
            self._joined[connection] = streams
            try:
                yield connection
            finally:
                del self._joined[connection]
        for stream in streams:
            self._notifier.notify(stream)

    # What the handles use

    def _asynchronous(self) -> AsyncClient:
        return AsyncClient(
            self._address.conninfo,
            schema=self._address.schema,
            pool_size=self._address.pool_size,
            timeout=self._address.timeout,
            lease_ttl=self._lease_ttl,
            listen_url=self._listen_url,
            manager=self._runs_manager,
        )

    def _run(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        if not self._checked:
            self._database.run(lambda: acts.check_installation(self._address.schema))
            self._checked = True
        return self._database.run(act)

    def _move(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        # Consuming processes lock several rows at a time, too, in an order of their own.
        for _ in range(_MOVES - 1):
            with suppress(pg.DeadlockDetected):
                return self._run(act)
        return self._run(act)

    def _find(self, act: Callable[[], Act[ResultT]]) -> ResultT | None:
        try:
            return self._run(act)
        except NotFound:
            return None

    def _install_if_absent(self) -> None:
        if not self._checked and not self._database.run(lambda: acts.is_installed(self._address.schema)):
            self._migrate()

    def _migrate(self) -> list[MigrationStep]:
        applied = []
        while steps := self._database.run(lambda: acts.migrate_next(self._address.schema)):
            applied += steps
        return applied

    def _log(self, stream: str, schema_version: int) -> Log:
        log = self._logs.get((stream, schema_version))
        if log is None:
            info = self._run(lambda: acts.get_stream(self._address.schema, name=stream))
            log = self._logs.setdefault((stream, schema_version), Log(self, info, schema_version))
        return log
