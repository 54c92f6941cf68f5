"""The duties that keep the tables in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from sqlstreams import AsyncClient
from sqlstreams.database import AsyncDatabase
from sqlstreams.manager.upkeep import Compaction, Leases, Partitions, Statistics
from tests.manager.support import database, execute
from tests.support import Note, eventually


@pytest.fixture
async def on(database_url: str) -> AsyncIterator[AsyncDatabase]:
    async with database(database_url) as opened:
        yield opened


async def _partitions(client: AsyncClient, name: str = "notes") -> int:
    return (await client.stream(name).status()).partitions


async def _use_ids(url: str, count: int) -> None:
    await execute(url, f"select setval('sqlstreams.message_log_1_id', {count})")


async def test_a_log_with_less_than_a_partition_left_is_extended_once(
    client: AsyncClient, on: AsyncDatabase, database_url: str
) -> None:
    await client.stream("notes", Note).register(partition_rows=1_000)
    duties = [Partitions(on), Partitions(on)]
    assert [(await duty.run_once()).done for duty in duties] == [0, 0]
    await _use_ids(database_url, 500)
    ran = await asyncio.gather(*(duty.run_once() for duty in duties))
    assert await _partitions(client) == 2
    assert max(each.done for each in ran) == 1
    assert [(await duty.run_once()).done for duty in duties] == [0, 0]
    # Half the partition since the last look: the next one is due before the other half is gone.
    assert (await duties[0].run_once()).due_in is None
    await _use_ids(database_url, 900)
    due_in = (await duties[0].run_once()).due_in
    assert due_in is not None
    assert due_in >= 1


async def test_a_log_that_cannot_be_extended_holds_up_no_other(
    client: AsyncClient, on: AsyncDatabase, database_url: str
) -> None:
    for name in ("notes", "letters"):
        await client.stream(name, Note).register(partition_rows=1_000)
    await execute(
        database_url,
        "select setval('sqlstreams.message_log_1_id', 500), setval('sqlstreams.message_log_2_id', 500)",
        "create table sqlstreams.message_log_1_from_1000 ()",
    )
    with pytest.raises(psycopg.errors.DuplicateTable):
        await Partitions(on).run_once()
    assert await _partitions(client, "letters") == 2


async def test_processes_that_are_long_gone_are_forgotten_unless_they_hold_something(
    client: AsyncClient, on: AsyncDatabase, database_url: str
) -> None:
    await client.stream("notes", Note).register()
    await client.stream("notes", Note).consumer("g").register()
    await execute(
        database_url,
        "insert into sqlstreams.consumer_instance (token, hostname, pid, library, expires_at)"
        " select gen_random_uuid(), 'h', n, '1', now() - make_interval(hours => n * 10) from generate_series(1, 5) n",
        "insert into sqlstreams.claim_lease (token, group_id, instance_id, low, high, resolved)"
        " values (gen_random_uuid(), 1, 5, 1, 1, 0)",
        "insert into sqlstreams.worker_instance (worker, term, token, hostname, pid, library, expires_at)"
        " values ('manager', 1, gen_random_uuid(), 'h', 1, '1', now() - interval '2 hours')",
    )
    ran = await Leases(on).run_once()
    assert (ran.done, ran.again) == (3, False)
    assert await execute(database_url, "select pid from sqlstreams.consumer_instance order by 1") == [(1,), (2,), (5,)]
    assert (await Leases(on).run_once()).done == 0


async def test_a_log_that_grew_is_analyzed_once_as_a_whole(
    client: AsyncClient, on: AsyncDatabase, database_url: str
) -> None:
    for name in ("notes", "quiet"):
        await client.stream(name, Note).register()
    async with AsyncClient(database_url) as producing:  # the server counts what a session did when that one ends
        await producing.stream("notes", Note).producer().produce_many([Note(str(n)) for n in range(3_000)])
    rows = "select reltuples::int from pg_class where oid = 'sqlstreams.message_log_1'::regclass"
    assert await execute(database_url, rows) == [(-1,)]
    await _until_counted(database_url)

    ran = await Statistics(on).run_once()

    assert (ran.done, ran.again) == (1, False)
    assert await execute(database_url, rows) == [(3000,)]
    assert (await Statistics(on).run_once()).done == 0


async def _until_counted(url: str) -> None:
    async def is_counted() -> bool:
        counted = "select sum(n_live_tup)::int from pg_stat_user_tables where relname like 'message_log_1_%'"
        return await execute(url, counted) == [(3000,)]

    await eventually(is_counted)


async def test_streams_that_say_how_long_are_compacted_step_by_step(
    client: AsyncClient, on: AsyncDatabase, database_url: str
) -> None:
    await client.stream("kept", Note).register()
    compacted = await client.stream("notes", Note).register(compact_after=timedelta(days=1))
    for stream in ("kept", "notes"):
        producer = client.stream(stream, Note).producer()
        for rank in range(3):
            await producer.produce(Note("x"), key="k", compaction_rank=rank)
    await execute(
        database_url,
        "update sqlstreams.message_log_1 set created_at = now() - interval '2 days'",
        "update sqlstreams.message_log_2 set created_at = now() - interval '2 days'",
    )
    duty = Compaction(on)
    ran = await duty.run_once()
    assert (ran.done, ran.again) == (2, False)
    assert [each.id for each in await compacted.history("k")] == [3]
    assert len(await client.stream("kept", Note).history("k")) == 3
    assert (await duty.run_once()).done == 0
    await client.stream("notes", Note).destroy()
    assert (await duty.run_once()).done == 0
