"""A client that gives up soon on what it would have to wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sqlstreams import AsyncClient


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up detaching at once."""
    monkeypatch.setattr("sqlstreams.manager.retention._DETACH_WITHIN", 0.2)


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    """A client that may destroy. Without the manager, which would remove what a test has made old."""
    async with AsyncClient(database_url, allow_destroy=True, manager=False) as client:
        yield client
