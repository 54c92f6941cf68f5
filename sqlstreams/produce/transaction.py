"""Transactions for callers who have none of their own. A lost commit is asked about, as that of a produce is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import psycopg

from sqlstreams import statements
from sqlstreams.database import AsyncDatabase, Database, aexecute, execute
from sqlstreams.errors import DatabaseUnavailable
from sqlstreams.produce.append import awas_committed, was_committed

_WHAT: Final = "what was written in it may be there or not"


@contextmanager
def transaction(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """Lend a connection in a transaction that is committed at the end of the block, and rolled back by an exception."""
    xact: int | None = None
    try:
        with database.lend() as connection, connection.transaction():
            yield connection
            xact = execute(connection, statements.read_assigned_xact(database.schema))[0]
    except DatabaseUnavailable:
        if xact is None or not was_committed(database, xact, what=_WHAT):
            raise


@asynccontextmanager
async def atransaction(database: AsyncDatabase) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Lend a connection in a transaction that is committed at the end of the block, and rolled back by an exception."""
    xact: int | None = None
    try:
        async with database.lend() as connection, connection.transaction():
            yield connection
            xact = (await aexecute(connection, statements.read_assigned_xact(database.schema)))[0]
    except DatabaseUnavailable:
        if xact is None or not await awas_committed(database, xact, what=_WHAT):
            raise
