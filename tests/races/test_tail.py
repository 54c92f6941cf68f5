"""Reading along without a group: by the same rule, nothing that may still appear is passed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from sqlstreams.options import Start
from tests.races.conftest import Log
from tests.support import eventually


@asynccontextmanager
async def tailing(log: Log, start: Start) -> AsyncIterator[list[int]]:
    """Read along beside the block; yield the list that the ids go to."""
    ids: list[int] = []

    async def read() -> None:
        async for message in log.stream.tail(start):
            ids.append(message.id)  # noqa: PERF401  # the list is read meanwhile

    task = asyncio.create_task(read())
    try:
        yield ids
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_tail_shows_messages_as_they_come(log: Log) -> None:
    async with tailing(log, "beginning") as ids:
        for _ in range(3):
            produced = await log.commit_one()
            await eventually(lambda produced=produced: ids[-1:] == [produced], within=2)  # type: ignore[misc]  # mypy infers no default of a lambda
    assert ids == [1, 2, 3]


async def test_tail_from_the_head_leaves_out_what_was_there(log: Log) -> None:
    await log.commit_one()
    async with tailing(log, "head") as ids:
        await _until_it_has_looked(log)
        second = await log.commit_one()
        await eventually(lambda: ids == [second], within=2)


async def test_tail_waits_for_an_id_that_may_still_appear(log: Log) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    second = await log.commit_one()
    async with tailing(log, "beginning") as ids:
        await _until_it_has_looked(log)
        assert ids == []
        await slow.commit()
        await eventually(lambda: ids == [first, second], within=2)


async def test_tail_passes_an_id_that_was_rolled_back(log: Log) -> None:
    slow = await log.connect()
    await log.insert(slow)
    second = await log.commit_one()
    async with tailing(log, "beginning") as ids:
        await _until_it_has_looked(log)
        assert ids == []
        await slow.rollback()
        await eventually(lambda: ids == [second], within=2)


async def test_tail_misses_nothing_and_keeps_the_order_while_others_commit_out_of_order(log: Log) -> None:
    connections = [await log.connect() for _ in range(5)]
    async with tailing(log, "beginning") as ids:
        await asyncio.gather(*(_produce(log, each, seed) for seed, each in enumerate(connections)))
        await log.commit_one()
        cursor = await connections[0].execute(f"select id from {log.table} order by id".encode())
        committed = [row[0] for row in await cursor.fetchall()]
        await connections[0].rollback()
        await eventually(lambda: len(ids) >= len(committed), within=10)
    assert ids == committed


async def _until_it_has_looked(log: Log) -> None:
    """Wait until the client has asked the server a number of questions, of which a look takes four."""
    watcher = await log.connect()
    await watcher.set_autocommit(True)
    questions: set[Any] = set()

    async def has_looked() -> bool:
        cursor = await watcher.execute(
            "select pid, query_start from pg_stat_activity"
            " where datname = current_database() and application_name = 'sqlstreams'"
        )
        questions.update(await cursor.fetchall())
        return len(questions) > 8

    await eventually(has_looked)


async def _produce(log: Log, connection: psycopg.AsyncConnection[Any], seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(100):
        await log.insert(connection)
        await asyncio.sleep(dice.choice((0, 0.001, 0.01)))
        await (connection.rollback() if dice.random() < 0.2 else connection.commit())
