"""A task that is cancelled ends, whatever comes to it at the same moment."""

from __future__ import annotations

import asyncio

from sqlstreams.database import AsyncDatabase, address
from tests.support import eventually


async def test_a_cancellation_that_comes_together_with_a_connection_is_not_lost(database_url: str) -> None:
    database = AsyncDatabase(address(database_url, schema="sqlstreams", pool_size=1, timeout=10))
    await database.open()
    used = False

    async def use() -> None:
        nonlocal used
        async with database.connection():
            used = True

    try:
        async with database.connection():
            waiting = asyncio.create_task(use())
            await eventually(lambda: bool(database._pool._waiting))
        waiting.cancel()  # it has been given the connection, and does not run yet
        await asyncio.wait([waiting], timeout=10)
        assert waiting.cancelled()
        assert not used
        async with asyncio.timeout(10), database.connection():
            pass  # the connection went back
    finally:
        await database.close()
