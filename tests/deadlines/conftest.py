"""A database with reservations, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sqlstreams import AsyncClient
from tests.deadlines.ground import TABLE, query


@pytest.fixture
def url(database_url: str) -> str:
    query(database_url, TABLE)
    return database_url


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url, allow_destroy=True, pool_size=4) as client:
        yield client
