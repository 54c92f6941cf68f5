"""A database that cannot be reached: the first call says why, at once."""

from __future__ import annotations

import time

import pytest
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, Client, DatabaseUnavailable


def test_the_first_call_says_at_once_what_is_wrong(server_url: str) -> None:
    began = time.monotonic()
    with (
        Client(make_conninfo(server_url, dbname="no_such_database")) as client,
        pytest.raises(DatabaseUnavailable, match='database "no_such_database" does not exist'),
    ):
        client.list_streams()
    assert time.monotonic() - began < 10


async def test_the_first_call_says_at_once_what_is_wrong_for_asyncio(server_url: str) -> None:
    began = time.monotonic()
    async with AsyncClient(make_conninfo(server_url, dbname="no_such_database")) as client:
        with pytest.raises(DatabaseUnavailable, match='database "no_such_database" does not exist'):
            await client.list_streams()
    assert time.monotonic() - began < 10


def test_nobody_listening_is_said_so() -> None:
    with Client("postgresql://127.0.0.1:1/nowhere") as client, pytest.raises(DatabaseUnavailable, match="refused"):
        client.list_streams()
