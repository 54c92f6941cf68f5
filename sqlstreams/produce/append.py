"""One transaction that appends messages, exactly once even when the answer to its commit is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from sqlstreams import statements
from sqlstreams.database import (
    AsyncDatabase,
    Database,
    adrive,
    aexecute,
    asynchronise,
    drive,
    execute,
    is_broken,
    synchronise,
)
from sqlstreams.errors import DatabaseUnavailable, ProduceUncertain, SqlstreamsError
from sqlstreams.produce.batch import Appendable, Appended, append_messages, prepare_adapters
from sqlstreams.statements import Act, Family, Statement

ResultT = TypeVar("ResultT")

_log = logging.getLogger("sqlstreams.produce")

_ASK_EVERY = 0.05
# Twice what producers can use up in a second (benchmarks/produce.py).
_FRESH_FOR = 1.0
_ROOM = 100_000
_ATTEMPTS = 10


class CommitLost(Exception):
    """The connection broke while a commit was under way."""

    def __init__(self, xact: int, appended: Appended) -> None:
        self.xact = xact
        self.appended = appended

    @property
    def what(self) -> str:
        """What would have been committed."""
        ids = self.appended.ids
        return f"ids {ids[0]} to {ids[-1]} may be in the log or not" if ids else "there was nothing to append"


class LogRoom:
    """What this client knows of the room left in a stream's log, so that partitions are made before they are missed."""

    def __init__(self, family: Family, partition_rows: int) -> None:
        self.family = family
        self.partition_rows = partition_rows
        self._edge = 0
        self._last_id = 0
        self._seen_at = -_FRESH_FOR

    def saw(self, last_id: int) -> None:
        """Take note of the highest id that was just appended."""
        self._last_id = max(self._last_id, last_id)
        self._seen_at = time.monotonic()

    def extended(self, edge: int) -> None:
        """Take note of the first id without a partition."""
        self._edge = max(self._edge, edge)

    @property
    def is_short(self) -> bool:
        """Whether less than one whole partition is left behind the last id."""
        return self._edge - self._last_id < self.partition_rows

    @property
    def is_certain(self) -> bool:
        """Whether no other producer can have used up what is left since we looked."""
        return self._edge - self._last_id > _ROOM and time.monotonic() - self._seen_at < _FRESH_FOR

    def extension(self, size: int = 0, *, attempt: int = 0) -> Statement[statements.Edge]:
        """Return the statement that makes room for `size` messages and one more partition's worth of ids.

        Twice as much with each attempt: other producers use up ids meanwhile, also those of their failed attempts.
        """
        ahead = size * 2 ** min(attempt, 6) + self.partition_rows
        return statements.extend_log(self.family, ahead=ahead)


def meets_edge(error: BaseException) -> bool:
    """Say whether an append failed for want of a partition (the log has no check constraints)."""
    return isinstance(error, pg.CheckViolation) and error.diag.constraint_name is None


# Blocking


def append(database: Database, room: LogRoom, batch: Appendable) -> Appended:
    """Append in a transaction of our own. A lost commit is asked about and, if it failed, tried again."""
    for attempt in range(_ATTEMPTS):
        try:
            appended = _commit(database, batch)
        except pg.CheckViolation as error:
            if not meets_edge(error):
                raise
            with suppress(pg.LockNotAvailable):  # another one is making it
                make_room(database, room, batch.size, attempt=attempt)
            continue
        except (pg.DeadlockDetected, pg.SerializationFailure):  # with a transaction that takes keys in another order
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        except DatabaseUnavailable as error:  # before the commit
            if attempt + 1 == _ATTEMPTS:
                raise
            database.renew_pool(error)
            continue
        except CommitLost as lost:
            if not was_committed(database, lost.xact, what=lost.what):
                continue
            appended = lost.appended
        _saw(room, appended)
        _make_room_ahead(database, room)
        return appended
    raise DatabaseUnavailable(f"the messages could not be appended in {_ATTEMPTS} attempts; nothing was written")


def append_within(connection: psycopg.Connection[Any], room: LogRoom, batch: Appendable) -> Appended:
    """Append in the caller's transaction; where the log may have no room left, inside a savepoint that heals it."""
    prepare_adapters(connection.adapters)
    join_transaction(connection)
    if (
        room.is_certain
        and not batch.needs_savepoint
        and connection.info.transaction_status == TransactionStatus.INTRANS
    ):
        appended = drive(connection, append_messages(batch))
    else:
        appended = _append_healing(connection, room, batch)
    _saw(room, appended)
    return appended


def act_within(connection: psycopg.Connection[Any], act: Act[ResultT]) -> ResultT:
    """Drive an act in the caller's transaction, which goes on when the act fails."""
    join_transaction(connection)
    with connection.transaction():
        return drive(connection, act)


def make_room(database: Database, room: LogRoom, size: int = 0, *, attempt: int = 0) -> None:
    """Make the next partitions, for `size` messages and more."""
    room.extended(database.query(room.extension(size, attempt=attempt))[0].edge)


def _make_room_ahead(database: Database, room: LogRoom) -> None:
    if not room.is_short:
        return
    # The messages are in the log already, so this must not fail; whoever meets the edge makes room then.
    try:
        make_room(database, room)
    except (psycopg.Error, SqlstreamsError) as error:
        _log.info("SQL0105 no partition was made ahead for stream %d: %s", room.family.stream, error)


def _commit(database: Database, batch: Appendable) -> Appended:
    with database.connection() as connection:
        prepare_adapters(connection.adapters)
        with connection.pipeline():
            connection.execute("begin")
            xacts = connection.execute(*_sendable(statements.read_xact(database.schema)), binary=True)
            cursors = [connection.execute(*_sendable(statement), binary=True) for statement in batch]
        ((xact,),) = xacts.fetchall()
        appended = drive(connection, batch.finish([row for cursor in cursors for (row,) in cursor.fetchall()]))
        try:
            connection.execute("commit")
        except psycopg.Error as error:
            if is_broken(error):
                raise CommitLost(xact, appended) from error
            raise
        return appended


def join_transaction(connection: psycopg.Connection[Any]) -> None:
    """Begin the caller's transaction, where the driver would begin one for the first statement."""
    # What psycopg would begin for the first statement it must also begin here: a block would end it at its own end.
    synchronise(connection)
    if connection.info.transaction_status == TransactionStatus.IDLE and not connection.autocommit:
        connection.execute("select")
        synchronise(connection)


def _append_healing(connection: psycopg.Connection[Any], room: LogRoom, batch: Appendable) -> Appended:
    with connection.transaction():
        try:
            with connection.transaction():
                return drive(connection, append_messages(batch))
        except pg.CheckViolation as error:
            if not meets_edge(error):
                raise
        execute(connection, room.extension(batch.size))  # not noted in `room`: the caller may roll it back
        return drive(connection, append_messages(batch))


def was_committed(database: Database, xact: int, *, what: str) -> bool:
    """Ask what became of a transaction whose commit was not answered; raise `ProduceUncertain` when nobody says."""
    until = time.monotonic() + database.address.timeout
    while time.monotonic() < until:
        try:
            status = database.query(statements.ask_commit(database.schema, xact=xact))[0].status
        except DatabaseUnavailable:
            status = "in progress"
        if status in ("committed", "aborted"):
            return status == "committed"
        time.sleep(_ASK_EVERY)
    raise _uncertain(xact, what)


# asyncio


async def aappend(
    database: AsyncDatabase, room: LogRoom, batch: Appendable, *, inserted: Callable[[], None]
) -> Appended:
    """Append in a transaction of our own. A lost commit is asked about and, if it failed, tried again.

    `inserted` is called when the messages have their ids and only the commit is left.
    """
    for attempt in range(_ATTEMPTS):
        try:
            appended = await _acommit(database, batch, inserted)
        except pg.CheckViolation as error:
            if not meets_edge(error):
                raise
            with suppress(pg.LockNotAvailable):  # another one is making it
                await amake_room(database, room, batch.size, attempt=attempt)
            continue
        except (pg.DeadlockDetected, pg.SerializationFailure):  # with a transaction that takes keys in another order
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        except DatabaseUnavailable as error:  # before the commit
            if attempt + 1 == _ATTEMPTS:
                raise
            await database.renew_pool(error)
            continue
        except CommitLost as lost:
            if not await awas_committed(database, lost.xact, what=lost.what):
                continue
            appended = lost.appended
        _saw(room, appended)
        await _amake_room_ahead(database, room)
        return appended
    raise DatabaseUnavailable(f"the messages could not be appended in {_ATTEMPTS} attempts; nothing was written")


async def aappend_within(connection: psycopg.AsyncConnection[Any], room: LogRoom, batch: Appendable) -> Appended:
    """Append in the caller's transaction; where the log may have no room left, inside a savepoint that heals it."""
    prepare_adapters(connection.adapters)
    await ajoin_transaction(connection)
    if (
        room.is_certain
        and not batch.needs_savepoint
        and connection.info.transaction_status == TransactionStatus.INTRANS
    ):
        appended = await adrive(connection, append_messages(batch))
    else:
        appended = await _aappend_healing(connection, room, batch)
    _saw(room, appended)
    return appended


async def aact_within(connection: psycopg.AsyncConnection[Any], act: Act[ResultT]) -> ResultT:
    """Drive an act in the caller's transaction, which goes on when the act fails."""
    await ajoin_transaction(connection)
    async with connection.transaction():
        return await adrive(connection, act)


async def amake_room(database: AsyncDatabase, room: LogRoom, size: int = 0, *, attempt: int = 0) -> None:
    """Make the next partitions, for `size` messages and more."""
    room.extended((await database.query(room.extension(size, attempt=attempt)))[0].edge)


async def _amake_room_ahead(database: AsyncDatabase, room: LogRoom) -> None:
    if not room.is_short:
        return
    try:
        await amake_room(database, room)
    except (psycopg.Error, SqlstreamsError) as error:
        _log.info("SQL0105 no partition was made ahead for stream %d: %s", room.family.stream, error)


async def _acommit(database: AsyncDatabase, batch: Appendable, inserted: Callable[[], None]) -> Appended:
    async with database.connection() as connection:
        prepare_adapters(connection.adapters)
        async with connection.pipeline():
            await connection.execute("begin")
            xacts = await connection.execute(*_sendable(statements.read_xact(database.schema)), binary=True)
            cursors = [await connection.execute(*_sendable(statement), binary=True) for statement in batch]
        ((xact,),) = await xacts.fetchall()
        rows = [row for cursor in cursors for (row,) in await cursor.fetchall()]
        appended = await adrive(connection, batch.finish(rows))
        inserted()
        try:
            await connection.execute("commit")
        except psycopg.Error as error:
            if is_broken(error):
                raise CommitLost(xact, appended) from error
            raise
        return appended


async def ajoin_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    """Begin the caller's transaction, where the driver would begin one for the first statement."""
    await asynchronise(connection)
    if connection.info.transaction_status == TransactionStatus.IDLE and not connection.autocommit:
        await connection.execute("select")
        await asynchronise(connection)


async def _aappend_healing(connection: psycopg.AsyncConnection[Any], room: LogRoom, batch: Appendable) -> Appended:
    async with connection.transaction():
        try:
            async with connection.transaction():
                return await adrive(connection, append_messages(batch))
        except pg.CheckViolation as error:
            if not meets_edge(error):
                raise
        await aexecute(connection, room.extension(batch.size))  # not noted in `room`: the caller may roll it back
        return await adrive(connection, append_messages(batch))


async def awas_committed(database: AsyncDatabase, xact: int, *, what: str) -> bool:
    """Ask what became of a transaction whose commit was not answered; raise `ProduceUncertain` when nobody says."""
    until = time.monotonic() + database.address.timeout
    while time.monotonic() < until:
        try:
            status = (await database.query(statements.ask_commit(database.schema, xact=xact)))[0].status
        except DatabaseUnavailable:
            status = "in progress"
        if status in ("committed", "aborted"):
            return status == "committed"
        await asyncio.sleep(_ASK_EVERY)
    raise _uncertain(xact, what)


def _saw(room: LogRoom, appended: Appended) -> None:
    if appended.ids:
        room.saw(appended.ids[-1])


def _sendable(statement: Statement[Any]) -> tuple[Any, Any]:
    return statement.query, statement.parameters


def _uncertain(xact: int, what: str) -> ProduceUncertain:
    return ProduceUncertain(
        f"the connection broke during the commit of transaction {xact}, and the server could not be asked what became "
        f"of it: {what}"
    )
