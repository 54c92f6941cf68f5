"""Groups and streams that are destroyed while they are consumed, and consumers that share a client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, NotFound, meta
from sqlstreams.statements import Statement
from tests.chaos.conftest import all_is_done, produce
from tests.support import Note, consuming, eventually, waits_for_a_lock


async def _nothing(note: Note) -> None:
    """Succeed."""


async def _fail(note: Note) -> None:
    raise ValueError("always")


async def _wait(note: Note) -> None:
    await asyncio.sleep(600)


HANDLERS = pytest.mark.parametrize("handler", [_nothing, _fail, _wait])


@HANDLERS
@pytest.mark.parametrize("count", [0, 50])
async def test_consume_ends_with_not_found_when_its_group_is_destroyed(
    client: AsyncClient, group: AsyncConsumer[Note], handler: Callable[[Note], object], count: int
) -> None:
    await produce(client, count)
    task = asyncio.create_task(group.consume(handler, signals=False))
    await eventually(lambda: group.stats.claims > 0)
    await group.destroy()
    with pytest.raises(NotFound):
        await asyncio.wait_for(task, 8)


async def test_a_group_is_destroyed_behind_a_claim_that_is_under_way(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as claiming:
        await claiming.execute("select from sqlstreams.consumer_group_cursor for update")
        destroying = asyncio.create_task(group.destroy())
        await eventually(lambda: waits_for_a_lock(database_url))
        await claiming.execute(
            "insert into sqlstreams.claim_lease (token, group_id, instance_id, low, high, resolved, gated)"
            " select gen_random_uuid(), group_id, null, 1, 1, 0, false from sqlstreams.consumer_group_cursor"
        )
        await claiming.commit()
        await asyncio.wait_for(destroying, 10)
    assert await group.get() is None


@HANDLERS
@pytest.mark.parametrize("count", [0, 50])
async def test_consume_ends_with_not_found_when_its_stream_is_destroyed(
    client: AsyncClient, group: AsyncConsumer[Note], handler: Callable[[Note], object], count: int
) -> None:
    await produce(client, count)
    task = asyncio.create_task(group.consume(handler, signals=False))
    await eventually(lambda: group.stats.claims > 0)
    await client.stream("notes", Note).destroy()
    with pytest.raises(NotFound):
        await asyncio.wait_for(task, 8)


async def test_destroying_one_stream_leaves_the_polls_of_the_others(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    other = await client.stream("others", Note).register()
    survivor = await other.consumer("g").register()
    async with consuming(survivor, _nothing):
        task = asyncio.create_task(group.consume(_nothing, signals=False))
        await eventually(lambda: group.stats.claims > 0 and survivor.stats.claims > 0)
        await client.stream("notes", Note).destroy()
        with pytest.raises(NotFound):
            await asyncio.wait_for(task, 8)
        # Inserted by SQL, so that nothing but a poll tells of it.
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            await connection.execute("""insert into sqlstreams.message_log_2 (payload) values ('{"text": "quiet"}')""")
        await eventually(lambda: survivor.stats.handled == 1, within=5)


async def test_two_consumers_of_one_group_on_one_client_share_the_work(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    seen: tuple[Counter[int], Counter[int]] = Counter(), Counter()

    async def first(note: Note) -> None:
        seen[0][meta().id] += 1
        await asyncio.sleep(0.002)

    async def second(note: Note) -> None:
        seen[1][meta().id] += 1
        await asyncio.sleep(0.002)

    twin = client.stream("notes", Note).consumer("g")
    async with consuming(group, first, prefetch=10), consuming(twin, second, prefetch=10):
        ids = await produce(client, 500)
        await all_is_done(group)
    assert seen[0] + seen[1] == Counter(ids)
    assert all(seen)


async def test_one_of_two_consumers_of_a_group_may_leave_while_the_other_works(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    seen: Counter[int] = Counter()
    attempts: set[int] = set()

    async def handle(note: Note) -> None:
        await asyncio.sleep(0.002)
        seen[meta().id] += 1
        attempts.add(meta().attempt)

    ids = await produce(client, 600)
    twin = client.stream("notes", Note).consumer("g")
    async with consuming(group, handle, prefetch=50, concurrency=3):
        for _ in range(5):
            before = sum(seen.values())
            async with consuming(twin, handle, prefetch=10, concurrency=3):
                await eventually(lambda before=before: sum(seen.values()) >= before + 30)  # type: ignore[misc]
        await all_is_done(group)
    assert (seen, attempts) == (Counter(ids), {1})
    assert await group.reclaims() == []


async def test_all_groups_of_a_client_share_one_process_row_and_one_poll(client: AsyncClient) -> None:
    stream = await client.stream("notes", Note).register()
    groups = [await stream.consumer(f"g{number}").register() for number in range(20)]
    tasks = [asyncio.create_task(group.consume(_nothing, signals=False)) for group in groups]
    await eventually(lambda: all(group.stats.claims > 0 for group in groups))
    async with client._database.connection() as connection:
        cursor = await connection.execute("select count(*) from sqlstreams.consumer_instance")
        assert await cursor.fetchall() == [(1,)]
    polls: list[list[int]] = []
    query_once = client._database.query_once

    async def listening(statement: Statement[Any]) -> object:
        if statement.name == "poll":
            polls.append([group for groups in (statement.parameters or {}).values() for group in groups])
        return await query_once(statement)

    client._database.query_once = listening  # type: ignore[method-assign, assignment]
    await eventually(lambda: len(polls) >= 2)
    assert [len(set(asked)) for asked in polls] == [20] * len(polls)
    assert [task.get_name() for task in asyncio.all_tasks()].count("sqlstreams-poll") == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
