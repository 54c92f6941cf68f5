"""Producing at the edge of the log's last partition, and with ids that no 32 or 53 bits can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta

import psycopg
import pytest

from sqlstreams import AsyncClient, Client
from tests.races.conftest import Log
from tests.support import Note, consuming, eventually

PARTITION = 1_000


async def _read_ids(log: Log) -> list[int]:
    return [message.id for message in await log.stream.read(limit=100_000)]


async def _move_to(log: Log, last_id: int) -> None:
    """Let the next id be the one behind `last_id`."""
    async with await psycopg.AsyncConnection.connect(log.url) as connection:
        await connection.execute(f"select setval('{log.table}_id', {last_id})".encode())


@pytest.mark.parametrize("size", [1, 400, 2_500])
async def test_twenty_producers_that_meet_one_edge_at_once_lose_nothing(log: Log, size: int) -> None:
    await log.stream.register(partition_rows=PARTITION)
    async with AsyncExitStack() as stack:
        # given: twenty clients that know the log, and one id left in its last partition
        clients = [await stack.enter_async_context(AsyncClient(log.url, pool_size=2)) for _ in range(20)]
        producers = [await client.stream("notes", Note).producer().register() for client in clients]
        await log.commit_one()
        await _move_to(log, await _edge(log) - 2)
        # when
        receipts = await asyncio.gather(*(producer.produce_many([Note("x")] * size) for producer in producers))
    # then
    ids = sorted(receipt.id for batch in receipts for receipt in batch)
    assert len(ids) == 20 * size
    assert (await _read_ids(log))[1:] == ids


async def test_threads_that_meet_one_edge_at_once_lose_nothing(log: Log) -> None:
    await log.stream.register(partition_rows=PARTITION)
    with Client(log.url) as client, ThreadPoolExecutor(20) as threads:
        producer = client.stream("notes", Note).producer().register()
        producer.produce(Note("first"))
        await _move_to(log, await _edge(log) - 2)
        produce_many: Callable[[list[Note]], list[object]] = producer.produce_many  # type: ignore[assignment]
        loop = asyncio.get_running_loop()
        batches = await asyncio.gather(
            *(loop.run_in_executor(threads, produce_many, [Note("x")] * 60) for _ in range(20))
        )
    assert sum(len(batch) for batch in batches) == 1_200
    assert len(await _read_ids(log)) == 1_201


async def test_a_callers_transaction_survives_the_edge_with_what_it_did_before(log: Log) -> None:
    await log.stream.register(partition_rows=PARTITION)
    producer = log.stream.producer()
    connection = await log.connect()
    await connection.execute("create table kept (id int)")
    await _move_to(log, await _edge(log) - 1)
    receipt = await producer.produce(Note("within"), connection=connection)
    await connection.commit()
    assert await _read_ids(log) == [receipt.id]
    await connection.execute("select id from kept")


async def test_transactions_that_stay_open_at_the_edge_do_not_make_others_fail(log: Log) -> None:
    """The one that made the partition has not committed it, so the others have to wait or to make room themselves."""
    await log.stream.register(partition_rows=PARTITION)
    producer = log.stream.producer()
    connection = await log.connect()
    await _move_to(log, await _edge(log) - 1)
    within = await producer.produce(Note("within"), connection=connection)
    other = asyncio.create_task(producer.produce(Note("beside")))
    watcher = await log.connect()
    await eventually(lambda: _somebody_waits(watcher))
    await connection.commit()
    beside = await other
    assert await _read_ids(log) == sorted([within.id, beside.id])


async def _somebody_waits(connection: psycopg.AsyncConnection[object]) -> bool:
    cursor = await connection.execute(
        "select 1 from pg_locks where not granted and database = (select oid from pg_database"
        " where datname = current_database())"
    )
    return await cursor.fetchone() is not None


async def _edge(log: Log) -> int:
    async with await psycopg.AsyncConnection.connect(log.url) as connection:
        cursor = await connection.execute("select sqlstreams.log_edge(1)")
        (edge,) = await cursor.fetchone() or (0,)
        return int(edge)


@pytest.mark.parametrize("power", [31, 32, 53])
async def test_ids_beyond_this_power_of_two_travel_unharmed(log: Log, power: int) -> None:
    # given: a log whose next id is just below
    start = 2**power - 3
    async with await psycopg.AsyncConnection.connect(log.url) as connection:
        part = f"{log.table}_from_{start}"
        await connection.execute(f"create table {part} (like {log.table} including all)".encode())
        await connection.execute(
            f"alter table {log.table} attach partition {part} for values from ({start}) to ({start + 10})".encode()
        )
    await _move_to(log, start - 1)
    # when: messages are produced, alone and in a batch, and one of them fails at first
    producer = log.stream.producer()
    receipts = [await producer.produce(Note("one")), *await producer.produce_many([Note("many")] * 3)]
    await log.consumer.register(retry_base=timedelta(0))
    # then
    expected = list(range(start, start + 4))
    assert [receipt.id for receipt in receipts] == expected
    failed: set[int] = set()

    async def handle(note: Note) -> None:
        await log.handle(note)
        if log.seen[-1] == 2**power and not failed:
            failed.add(log.seen.pop())
            raise ValueError("once")

    async with consuming(log.consumer, handle, concurrency=1):
        await eventually(lambda: len(log.seen) == 4)
        await eventually(lambda: _is_finished(log))
    assert sorted(log.seen) == expected
    status = await log.consumer.status()
    assert (status.head, status.claimed, status.committed) == (expected[-1],) * 3
    assert (await log.stream.status()).head == expected[-1]
    assert [message.id for message in await log.stream.read(2**power - 1)] == [2**power]


async def _is_finished(log: Log) -> bool:
    status = await log.consumer.status()
    return (status.lag, status.ready, status.inflight) == (0, 0, 0)
