"""Transactions that append to streams by the way, and make room in a log where it has none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar

import psycopg

from sqlstreams import statements
from sqlstreams.database import AsyncDatabase, Database, adrive, drive
from sqlstreams.errors import DatabaseUnavailable
from sqlstreams.produce.append import meets_edge
from sqlstreams.produce.batch import prepare_adapters
from sqlstreams.produce.transaction import atransaction, transaction
from sqlstreams.statements import Act, Family, Statement

ResultT = TypeVar("ResultT")

_ATTEMPTS: Final = 5
_ROOM: Final = 10_000


def within(database: Database, act: Callable[[], Act[ResultT]], *, stream_ids: Collection[int]) -> ResultT:
    """Drive an act that produces, in a transaction of its own. Try again where nothing was written."""
    for attempt in range(_ATTEMPTS):
        try:
            with transaction(database) as connection:
                prepare_adapters(connection.adapters)
                return drive(connection, act())
        except psycopg.errors.CheckViolation as error:
            if not _is_edge_of(error, stream_ids):
                raise
            for stream_id in stream_ids:
                database.query(_extension(database.schema, stream_id, attempt))
        except DatabaseUnavailable as error:
            if attempt:
                raise
            database.renew_pool(error)
    raise _no_room(stream_ids)


async def awithin(database: AsyncDatabase, act: Callable[[], Act[ResultT]], *, stream_ids: Collection[int]) -> ResultT:
    """Drive an act that produces, in a transaction of its own. Try again where nothing was written."""
    for attempt in range(_ATTEMPTS):
        try:
            async with atransaction(database) as connection:
                prepare_adapters(connection.adapters)
                return await adrive(connection, act())
        except psycopg.errors.CheckViolation as error:
            if not _is_edge_of(error, stream_ids):
                raise
            for stream_id in stream_ids:
                await database.query(_extension(database.schema, stream_id, attempt))
        except DatabaseUnavailable as error:
            if attempt:
                raise
            await database.renew_pool(error)
    raise _no_room(stream_ids)


def _is_edge_of(error: psycopg.Error, stream_ids: Collection[int]) -> bool:
    # A user's table may have no partition for what is written there: that is the same error of another table.
    return meets_edge(error) and error.diag.table_name in {f"message_log_{stream_id}" for stream_id in stream_ids}


def _extension(schema: str, stream_id: int, attempt: int) -> Statement[statements.Edge]:
    return statements.extend_log(Family(schema, stream_id), ahead=_ROOM * 2**attempt)


def _no_room(stream_ids: Collection[int]) -> DatabaseUnavailable:
    logs = ", ".join(map(str, sorted(stream_ids)))
    return DatabaseUnavailable(
        f"the logs of the streams {logs} could not be extended in {_ATTEMPTS} attempts; nothing was written"
    )
