"""Instants are read in UTC, whatever the time zone of the session: local times of a repeated hour say too little."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, Client
from sqlstreams.database import aexecute, execute
from sqlstreams.statements import Statement

FIRST, SECOND = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
"""Both are 02:30 in Berlin."""

LATEST: Statement[tuple[Any, ...]] = Statement(
    "latest", b"select %(first)s, array[%(second)s, null]", {"first": FIRST, "second": SECOND}, lambda *row: row
)


@pytest.fixture
def berlin_url(database_url: str) -> str:
    """A database whose sessions are in a zone that repeats an hour."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"alter database {name} set timezone to 'Europe/Berlin'".encode())
    return database_url


def check(rows: list[tuple[Any, ...]]) -> None:
    ((first, (second, nothing)),) = rows
    assert (first, second, nothing) == (FIRST, SECOND, None)
    assert first < second
    assert first.tzinfo is second.tzinfo is UTC


def test_on_connections_of_a_client_and_of_a_user(berlin_url: str) -> None:
    with Client(berlin_url) as client:
        check(client._database.query(LATEST))
        with client.transaction() as connection:
            check(execute(connection, LATEST))
            # What the user reads on it by himself is as the driver has it.
            assert connection.execute("select %s", [FIRST]).fetchone() != (FIRST,)
    with psycopg.connect(berlin_url) as connection:
        check(execute(connection, LATEST))
        assert str(connection.execute("select %s", [FIRST]).fetchone()).count("Europe/Berlin") == 1


async def test_on_connections_of_an_async_client_and_of_a_user(berlin_url: str) -> None:
    async with AsyncClient(berlin_url) as client:
        check(await client._database.query(LATEST))
        for rows in await client._database.query_together(LATEST, LATEST):
            check(rows)
        async with client.transaction() as connection:
            check(await aexecute(connection, LATEST))
    async with await psycopg.AsyncConnection.connect(berlin_url) as connection:
        check(await aexecute(connection, LATEST))
        await connection.execute("set time zone 'UTC'")
        check(await aexecute(connection, LATEST))
