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


async def test_connections_given_back_at_the_moment_of_a_cancellation_are_not_lost(database_url: str) -> None:
    database = AsyncDatabase(address(database_url, schema="sqlstreams", pool_size=2, timeout=10))
    await database.open()
    release = asyncio.Event()
    holding = 0

    async def hold() -> None:
        nonlocal holding
        async with database.connection():
            holding += 1
            await release.wait()

    async def use() -> None:
        async with database.connection():
            pass

    try:
        holders = [asyncio.create_task(hold()) for _ in range(2)]
        await eventually(lambda: holding == 2)
        # Both give back what they hold while a third begins to wait, so that one waits for its place in the queue and
        # the other one for the pool, when they are cancelled.
        waiting = asyncio.create_task(use())
        release.set()
        await asyncio.sleep(0)
        for holder in holders:
            holder.cancel()
        await asyncio.wait(holders)
        await asyncio.wait_for(waiting, 5)
        async with asyncio.timeout(5), database.connection(), database.connection():
            pass
    finally:
        await database.close()
