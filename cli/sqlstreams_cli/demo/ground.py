"""The demo's own place in a database: a schema that it made and may clear, used by one run at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from sqlstreams import DatabaseUnavailable
from sqlstreams_cli.failing import Failed

_MARK = "Made by `sqlstreams demo`, which clears it at every run."


@asynccontextmanager
async def own_ground(url: str, schema: str) -> AsyncIterator[None]:
    """Make the schema, or recognise it as ours, and keep other runs out of it; raise `Failed` otherwise."""
    async with await _connect(url) as lock, lock.transaction():
        await _lock(lock, schema)
        async with await _connect(url) as connection:
            await _own(connection, schema)
        yield


async def make_anew(url: str, schema: str) -> None:
    """Drop the schema, which is ours, and make it again, empty."""
    async with await _connect(url) as connection:
        await connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))
        await _make(connection, schema)


async def _connect(url: str) -> psycopg.AsyncConnection[Any]:
    try:
        return await psycopg.AsyncConnection.connect(url)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"no connection to the database: {str(error).strip()}") from error


async def _lock(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    # The open transaction holds it, not the session: that works through a pooler too.
    await connection.execute("set local idle_in_transaction_session_timeout = 0")
    name = f"sqlstreams demo in {schema}"
    found = await connection.execute("select pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [name])
    if await found.fetchone() != (True,):
        raise Failed(
            f"another `sqlstreams demo` is running in schema {schema!r}",
            fix="wait for its end, or name another schema with --schema",
        )


async def _own(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    found = await connection.execute(
        "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = %s", [schema]
    )
    match await found.fetchone():
        case None:
            await _make(connection, schema)
        case (mark,) if mark != _MARK:
            raise Failed(
                f"schema {schema!r} was not made by the demo, so it is left alone",
                fix="name another schema with --schema; it will be made",
            )


async def _make(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    name = sql.Identifier(schema)
    await connection.execute(sql.SQL("create schema {}").format(name))
    await connection.execute(sql.SQL("comment on schema {} is {}").format(name, sql.Literal(_MARK)))
