"""Connections to one installation: pools that heal, and the two drivers of acts and statements."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import psycopg
from msgspec import Struct
from psycopg import errors as pg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader
from psycopg.types.json import JsonBinaryLoader, JsonLoader
from psycopg.types.string import ByteaBinaryLoader
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from sqlstreams.errors import DatabaseUnavailable, InvalidInput, NotInstalled
from sqlstreams.names import check_schema, encode_text
from sqlstreams.options import check_integer, check_number
from sqlstreams.statements import Act, Statement

RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")

# A half-open connection is noticed within about half a minute instead of hours; the user's own settings win.
_CONNECTION_DEFAULTS: Final = {
    "application_name": "sqlstreams",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_PROOF_WITHIN: Final = 5.0
# The pools double their pauses between attempts to connect, for minutes; starting over keeps them at a second.
_RECONNECT_AFRESH: Final = 2.0
# Errors that say "this connection is of no use any more", not "this statement is wrong".
_BROKEN: Final = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.ReadOnlySqlTransaction,
    pg.IdleSessionTimeout,
    pg.IdleInTransactionSessionTimeout,
)


_UTC_NAMES: Final = (b"UTC", b"Etc/UTC", b"GMT")  # what servers call it by default

# The driver reads as much at a time as the longest value that a connection ever answered with, but at first 16 kB. Long
# claims are then read in 25 turns of the event loop instead of 150 (docs/benchmarks.md).
_GREETING: Final = b"select pg_backend_pid(), repeat(' ', 131072)"


class Address(Struct, frozen=True):
    """Where an installation is, and how many connections may be opened to it."""

    conninfo: str
    schema: str
    pool_size: int
    timeout: float


def address(url: str, *, schema: str, pool_size: int, timeout: float) -> Address:
    """Check and complete what a client was opened with. Opens nothing."""
    if not url or not isinstance(url, str):
        raise InvalidInput("url", f"must be a PostgreSQL URL or connection string, got {url!r}")
    encode_text("url", url)
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidInput("url", f"is not a PostgreSQL URL or connection string: {str(error).strip()}") from None
    return Address(
        conninfo=make_conninfo("", **{**_CONNECTION_DEFAULTS, **given}),
        schema=check_schema(schema),
        pool_size=check_integer("pool_size", pool_size, low=1, high=1000),
        timeout=check_number("timeout", timeout, low=0.001, high=86_400),
    )


class _Bytes(Loader):
    """JSON as the bytes that the server sent: decoding is for the codec."""

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def prepare_adapters(adapters: AdaptersMap) -> None:
    """Make a connection of ours return json columns as bytes."""
    adapters.register_loader("json", _Bytes)
    # In binary format json is its text, so the driver's own loader of bytea does it, without a call into Python.
    adapters.register_loader("json", ByteaBinaryLoader)


def _restore(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    # What a user may have changed on a connection that was lent.
    connection.row_factory = tuple_row
    prepare_adapters(connection.adapters)


class _Utc(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        return super().load(data).astimezone(UTC)


class _UtcBinary(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        return super().load(data).astimezone(UTC)


def _read_in_utc(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    # In the zone of the session, two instants of an hour that its clock repeats may seem to be one, and one to be two.
    if cursor.connection.pgconn.parameter_status(b"TimeZone") not in _UTC_NAMES:
        cursor.adapters.register_loader("timestamptz", _Utc)
        cursor.adapters.register_loader("timestamptz", _UtcBinary)


def _hand_over(adapters: AdaptersMap) -> None:
    adapters.register_loader("json", JsonLoader)
    adapters.register_loader("json", JsonBinaryLoader)


def is_broken(error: BaseException) -> bool:
    """Say whether an error means that the connection is lost, rather than that the statement was wrong."""
    if isinstance(error, (*_BROKEN, PoolTimeout, DatabaseUnavailable)):
        return True
    return (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        and getattr(error, "sqlstate", None) is None
    )


def translate(error: psycopg.Error, schema: str) -> Exception:
    """Return what an error of the database means in our words, or the error itself."""
    if isinstance(error, PoolTimeout):
        return DatabaseUnavailable(f"no database connection could be had in time: {error}")
    if is_broken(error):
        return DatabaseUnavailable(f"the connection to the database failed: {str(error).strip()}")
    if isinstance(error, pg.UndefinedTable | pg.InvalidSchemaName) and error.diag.message_primary:
        return NotInstalled(f"schema {schema!r} lacks what this call needs: {error.diag.message_primary}")
    if isinstance(error, pg.UniqueViolation) and error.diag.constraint_name == "stream_config_name_key":
        return InvalidInput("new_name", "is taken: another gave a stream this name at the same moment")
    return error


def _reconnect(pool: ConnectionPool) -> None:
    pool.check()  # which also has a pool without connections grow


async def _areconnect(pool: AsyncConnectionPool) -> None:
    await pool.check()


class Database:
    """One installation, blocking: a pool that opens on first use."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.schema = address.schema
        self.through_pooler = False
        self._reached = False
        self._pool = ConnectionPool(
            address.conninfo,
            min_size=0,
            max_size=address.pool_size,
            timeout=address.timeout,
            kwargs={"autocommit": True, "row_factory": tuple_row},
            configure=self._configure,
            reconnect_timeout=_RECONNECT_AFRESH,
            reconnect_failed=_reconnect,
            open=False,
        )

    def open(self) -> None:
        """Allow connections; the first one is made when it is needed."""
        self._pool.open()

    def _reach(self) -> None:
        # A pool tries for its whole time-out and then does not say what was wrong; the first attempt does at once.
        psycopg.connect(self.address.conninfo, autocommit=True).close()
        self._reached = True

    def close(self) -> None:
        """Close every connection."""
        self._pool.close(timeout=5)

    def _configure(self, connection: psycopg.Connection[Any]) -> None:
        prepare_adapters(connection.adapters)
        backend = connection.execute("select pg_backend_pid()").fetchone()
        if backend and backend[0] != connection.info.backend_pid:
            self.through_pooler = True
            connection.prepare_threshold = None

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection for a moment; one that broke is replaced."""
        try:
            if not self._reached:
                self._reach()
            with self._pool.connection() as connection:
                try:
                    yield connection
                except BaseException as error:
                    if is_broken(error):
                        connection.close()
                    raise
        except psycopg.Error as error:
            raise translate(error, self.schema) from error

    @contextmanager
    def lend(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection to a user: one that loads json as the driver does by itself."""
        with self.connection() as connection:
            _hand_over(connection.adapters)
            try:
                yield connection
            finally:
                _restore(connection)

    def run(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        """Drive an act in one transaction; once more when the connection turned out to be dead."""
        return self._twice(lambda: self._run_once(act()))

    def query(self, statement: Statement[RowT]) -> list[RowT]:
        """Ask one statement in a transaction of its own; once more when the connection turned out to be dead."""
        return self._twice(lambda: self._query_once(statement))

    def ask_alone(self, statement: Statement[Any], *, within: float) -> bool:
        """Ask a statement that runs in no transaction; return False when it was given up.

        That is after `within` seconds, or since somebody else is at it.
        """
        with self.connection() as connection:
            given_up = threading.Event()
            timer = threading.Timer(within, _give_up, (connection, given_up))
            timer.start()
            try:
                execute(connection, statement)
            except (pg.QueryCanceled, pg.LockNotAvailable, pg.ObjectNotInPrerequisiteState):
                return False
            finally:
                timer.cancel()
                timer.join()
            if given_up.is_set():
                connection.close()  # the cancellation came too late and might meet the next statement
        return True

    def _run_once(self, act: Act[ResultT]) -> ResultT:
        with self.connection() as connection, connection.transaction():
            return drive(connection, act)

    def _query_once(self, statement: Statement[RowT]) -> list[RowT]:
        with self.connection() as connection:
            return execute(connection, statement)

    def _twice(self, attempt: Callable[[], ResultT]) -> ResultT:
        try:
            return attempt()
        except DatabaseUnavailable as error:
            self.renew_pool(error)
            return attempt()

    def renew_pool(self, error: DatabaseUnavailable) -> None:
        """Replace the connections that broke; raise `error` again when there was none to be had in time."""
        if isinstance(error.__cause__, PoolTimeout):
            raise error
        self._pool.check()


def _give_up(connection: psycopg.Connection[Any], given_up: threading.Event) -> None:
    given_up.set()
    with suppress(psycopg.Error):  # then the server is gone, as the statement will say
        connection.cancel_safe(timeout=_PROOF_WITHIN)


async def _agive_up(connection: psycopg.AsyncConnection[Any], given_up: asyncio.Event, within: float) -> None:
    await asyncio.sleep(within)
    given_up.set()
    with suppress(psycopg.Error):  # then the server is gone, as the statement will say
        await connection.cancel_safe(timeout=_PROOF_WITHIN)


class _AsyncPool(AsyncConnectionPool):
    """A pool that loses no connection to a cancellation, and does not wait for ever to learn whether one works."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._returning: set[asyncio.Task[None]] = set()

    async def putconn(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Take a connection back, also when the task that gives it is cancelled meanwhile."""
        # A pool that is interrupted here forgets the connection, and whoever was about to be given it.
        returning = asyncio.create_task(super().putconn(conn))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        await asyncio.sleep(0)  # it takes a single turn of the loop, but for when others are at the pool

    @staticmethod
    async def check_connection(conn: psycopg.AsyncConnection[Any]) -> None:
        try:
            async with asyncio.timeout(_PROOF_WITHIN):
                await conn.execute("")
        except TimeoutError:
            await conn.close()
            raise psycopg.OperationalError("the connection did not answer in time") from None


class AsyncDatabase:
    """One installation, for asyncio: a pool that opens on first use."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.schema = address.schema
        self.through_pooler = False
        self._reached = False
        self._renewal: asyncio.Task[None] | None = None
        self._pool = _AsyncPool(
            address.conninfo,
            min_size=0,
            max_size=address.pool_size,
            timeout=address.timeout,
            kwargs={"autocommit": True, "row_factory": tuple_row},
            configure=self._configure,
            reconnect_timeout=_RECONNECT_AFRESH,
            reconnect_failed=_areconnect,
            open=False,
        )

    async def open(self) -> None:
        """Allow connections; the first one is made when it is needed."""
        await self._pool.open()

    async def _reach(self) -> None:
        # A pool tries for its whole time-out and then does not say what was wrong; the first attempt does at once.
        await (await psycopg.AsyncConnection.connect(self.address.conninfo, autocommit=True)).close()
        self._reached = True

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close(timeout=5)

    async def _configure(self, connection: psycopg.AsyncConnection[Any]) -> None:
        prepare_adapters(connection.adapters)
        backend = await (await connection.execute(_GREETING)).fetchone()
        if backend and backend[0] != connection.info.backend_pid:
            self.through_pooler = True
            connection.prepare_threshold = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection for a moment; one that broke is replaced."""
        try:
            if not self._reached:
                await self._reach()
            asked_before = _cancellations()
            async with self._pool.connection() as connection:
                # The pool swallows a cancellation that comes together with the connection.
                if _cancellations() > asked_before:
                    raise asyncio.CancelledError
                try:
                    yield connection
                except BaseException as error:
                    if is_broken(error):
                        await connection.close()
                    raise
        except psycopg.Error as error:
            raise translate(error, self.schema) from error

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection to a user: one that loads json as the driver does by itself."""
        async with self.connection() as connection:
            _hand_over(connection.adapters)
            try:
                yield connection
            finally:
                _restore(connection)

    async def run(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        """Drive an act in one transaction; once more when the connection turned out to be dead."""
        try:
            return await self._run_once(act())
        except DatabaseUnavailable as error:
            await self.renew_pool(error)
            return await self._run_once(act())

    async def query(self, statement: Statement[RowT]) -> list[RowT]:
        """Ask one statement in a transaction of its own; once more when the connection turned out to be dead."""
        try:
            return await self.query_once(statement)
        except DatabaseUnavailable as error:
            await self.renew_pool(error)
            return await self.query_once(statement)

    async def query_once(self, statement: Statement[RowT]) -> list[RowT]:
        """Ask one statement; a lost connection or a late answer leaves open whether it took effect."""
        async with self.in_time(statement.name) as connection:
            return await aexecute(connection, statement)

    async def query_together(self, *statements: Statement[Any]) -> list[list[Any]]:
        """Ask statements in one transaction and one round trip; return the rows of each. See `query_once`."""
        async with self.in_time(statements[-1].name) as connection:
            return await aexecute_together(connection, statements)

    @asynccontextmanager
    async def in_time(self, name: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection for no longer than `timeout`, to ask what is called `name`."""
        try:
            async with asyncio.timeout(self.address.timeout), self.connection() as connection:
                yield connection
        except TimeoutError:
            self._start_renewal()
            raise DatabaseUnavailable(f"no answer to {name} within {self.address.timeout:g} s") from None
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, PoolTimeout):
                self._start_renewal()  # where one connection broke, the idle ones often did
            raise

    async def ask_alone(self, statement: Statement[Any], *, within: float) -> bool:
        """Ask a statement that runs in no transaction; return False when it was given up.

        That is after `within` seconds, or since somebody else is at it.
        """
        async with self.connection() as connection:
            given_up = asyncio.Event()
            timer = asyncio.create_task(_agive_up(connection, given_up, within))
            try:
                await aexecute(connection, statement)
            except (pg.QueryCanceled, pg.LockNotAvailable, pg.ObjectNotInPrerequisiteState):
                return False
            finally:
                if not given_up.is_set():
                    timer.cancel()
                await asyncio.wait([timer])
            if given_up.is_set():
                await connection.close()  # the cancellation came too late and might meet the next statement
        return True

    async def _run_once(self, act: Act[ResultT]) -> ResultT:
        async with self.connection() as connection, connection.transaction():
            return await adrive(connection, act)

    async def renew_pool(self, error: DatabaseUnavailable) -> None:
        """Replace the connections that broke; raise `error` again when there was none to be had in time."""
        if isinstance(error.__cause__, PoolTimeout):
            raise error
        await asyncio.shield(self._start_renewal())

    def _start_renewal(self) -> asyncio.Task[None]:
        # One at a time, and in a task that nobody cancels: the pool would swallow that, or lose connections.
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._pool.check(), name="sqlstreams-renew-pool")
        return self._renewal


def _cancellations() -> int:
    """Return how often the current task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def execute(connection: psycopg.Connection[Any], statement: Statement[RowT]) -> list[RowT]:
    """Ask one statement on a connection, ours or a user's."""
    # Not the connection's own kind of cursor: Django's fills in parameters on the client, which knows no json arrays.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        _read_in_utc(cursor)
        cursor.execute(statement.query, statement.parameters, binary=statement.parameters is not None)
        synchronise(connection)
        return [statement.row(*row) for row in cursor.fetchall()] if cursor.description else []


async def aexecute(connection: psycopg.AsyncConnection[Any], statement: Statement[RowT]) -> list[RowT]:
    """Ask one statement on a connection, ours or a user's."""
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        _read_in_utc(cursor)
        await cursor.execute(statement.query, statement.parameters, binary=statement.parameters is not None)
        await asynchronise(connection)
        return [statement.row(*row) for row in await cursor.fetchall()] if cursor.description else []


async def aexecute_together(
    connection: psycopg.AsyncConnection[Any], statements: Sequence[Statement[Any]]
) -> list[list[Any]]:
    """Ask statements in one transaction and one round trip; return the rows of each."""
    cursors = [connection.cursor() for _ in statements]
    async with connection.pipeline():
        await connection.execute("begin")
        for cursor, statement in zip(cursors, statements, strict=True):
            _read_in_utc(cursor)
            await cursor.execute(statement.query, statement.parameters, binary=True)
        await connection.execute("commit")
    return [
        [statement.row(*row) for row in await cursor.fetchall()] if cursor.description else []
        for statement, cursor in zip(statements, cursors, strict=True)
    ]


def synchronise(connection: psycopg.Connection[Any]) -> None:
    """Have the answers of a user's connection in pipeline mode; any other connection has them already."""
    if connection.info.pipeline_status != PipelineStatus.OFF:
        with connection.pipeline():
            pass  # the end of an inner block waits for them


async def asynchronise(connection: psycopg.AsyncConnection[Any]) -> None:
    """Have the answers of a user's connection in pipeline mode; any other connection has them already."""
    if connection.info.pipeline_status != PipelineStatus.OFF:
        async with connection.pipeline():
            pass  # the end of an inner block waits for them


def drive(connection: psycopg.Connection[Any], act: Act[ResultT]) -> ResultT:
    """Take an act from step to step on one connection."""
    try:
        statement = next(act)
        while True:
            statement = act.send(execute(connection, statement))
    except StopIteration as stop:
        return cast("ResultT", stop.value)


async def adrive(connection: psycopg.AsyncConnection[Any], act: Act[ResultT]) -> ResultT:
    """Take an act from step to step on one connection."""
    try:
        statement = next(act)
        while True:
            statement = act.send(await aexecute(connection, statement))
    except StopIteration as stop:
        return cast("ResultT", stop.value)
