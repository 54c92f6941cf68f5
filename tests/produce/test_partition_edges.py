"""A log that runs out of partitions makes the next ones, and mostly before they are missed."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from sqlstreams import AsyncClient, Client, meta
from sqlstreams.produce.append import LogRoom
from sqlstreams.statements import Family
from tests.produce.log import ask, partitions, stored
from tests.support import Note, consuming, eventually


def test_single_messages_cross_the_edges(database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream("notes", Note).register(partition_rows=1_000).producer()
        for start in range(995, 4_000, 1_000):
            ask(database_url, f"select setval('sqlstreams.message_log_1_id', {start})")
            for number in range(10):
                producer.produce(Note(f"{start + number}"))
    assert stored(database_url) == [f"{start + number}" for start in range(995, 4_000, 1_000) for number in range(10)]


async def test_a_batch_of_many_partitions_finds_room(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register(partition_rows=1_000)).producer()
        for batch in range(3):
            await producer.produce_many([Note(f"{batch}.{number}") for number in range(5_000)])
    assert stored(database_url) == [f"{batch}.{number}" for batch in range(3) for number in range(5_000)]


def test_a_batch_of_many_partitions_finds_room_on_a_blocking_client(database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream("notes", Note).register(partition_rows=1_000).producer()
        producer.produce_many([Note(str(number)) for number in range(5_000)])
    assert stored(database_url) == [str(number) for number in range(5_000)]


def test_a_batch_of_many_partitions_finds_room_in_the_callers_transaction(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url) as connection:
        producer = client.stream("notes", Note).register(partition_rows=1_000).producer()
        for batch in range(2):
            producer.produce_many([Note(f"{batch}.{number}") for number in range(5_000)], connection=connection)
        for number in range(3):
            producer.produce(Note(str(number)), connection=connection)
        connection.commit()
    assert len(stored(database_url)) == 10_003
    assert stored(database_url)[-3:] == ["0", "1", "2"]


async def test_a_batch_of_many_partitions_finds_room_in_an_async_callers_transaction(database_url: str) -> None:
    async with AsyncClient(database_url) as client, await psycopg.AsyncConnection.connect(database_url) as connection:
        producer = (await client.stream("notes", Note).register(partition_rows=1_000)).producer()
        await producer.produce_many([Note(str(number)) for number in range(5_000)], connection=connection)
        await connection.commit()
    assert stored(database_url) == [str(number) for number in range(5_000)]


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_edge_met_in_pipeline_mode_is_crossed(database_url: str, autocommit: bool) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=autocommit) as connection:
        producer = client.stream("notes", Note).register(partition_rows=1_000).producer()
        ask(database_url, "select setval('sqlstreams.message_log_1_id', 998)")
        with connection.pipeline():
            producer.produce_many([Note("a"), Note("b")], connection=connection)
            producer.produce(Note("c"), connection=connection)
        connection.commit()
    assert stored(database_url) == ["a", "b", "c"]


def test_many_producers_meet_the_edge_at_once(database_url: str) -> None:
    with Client(database_url, pool_size=8) as client, ThreadPoolExecutor(8) as threads:
        producer = client.stream("notes", Note).register(partition_rows=1_000).producer()
        batches = threads.map(lambda _: producer.produce_many([Note("")] * 700), range(24))
        ids = [receipt.id for receipts in batches for receipt in receipts]
    assert len(set(ids)) == len(stored(database_url)) == 24 * 700


def test_twenty_producers_meet_one_edge_and_nobody_fails(database_url: str) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(database_url, pool_size=1)) for _ in range(20)]
        clients[0].stream("notes", Note).register(partition_rows=1_000)
        producers = [client.stream("notes", Note).producer().register() for client in clients]
        ask(database_url, "select setval('sqlstreams.message_log_1_id', 1990)")
        together = Barrier(20)
        threads = stack.enter_context(ThreadPoolExecutor(20))
        ids = list(threads.map(lambda producer: (together.wait(), producer.produce(Note("")).id)[1], producers))
    assert len(set(ids)) == len(stored(database_url)) == 20


@pytest.mark.parametrize("power", [31, 53])
async def test_ids_beyond_what_others_can_count_are_produced_and_consumed(database_url: str, power: int) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register(partition_rows=1_000_000_000)
        consumer = await stream.consumer("g").register(max_retries=0)
        _move_log(database_url, 2**power - 5)
        receipts = await stream.producer().produce_many([Note(str(number)) for number in range(10)])
        seen: list[int] = []

        async def handle(note: Note) -> None:
            seen.append(meta().id)
            if note.text == "7":
                raise ValueError(note.text)

        async with consuming(consumer, handle):
            await eventually(lambda: len(seen) == 10)
            await eventually(lambda: consumer.stats.dead == 1)
        letters = await consumer.dead_letters()
        status = await consumer.status()
    assert sorted(seen) == [receipt.id for receipt in receipts]
    assert max(seen) > 2**power
    assert [letter.id for letter in letters] == [receipts[7].id]
    assert status.head == receipts[-1].id


def _move_log(url: str, last_id: int) -> None:
    """Have the next message take the id behind `last_id`, as if so many had been produced."""
    edge = last_id // 1_000_000_000 * 1_000_000_000
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop table sqlstreams.message_log_1_from_0")
        connection.execute(
            SQL(
                "create table sqlstreams.message_log_1_from_{edge} partition of sqlstreams.message_log_1"
                " for values from ({edge}) to ({until})"
            ).format(edge=SQL(str(edge)), until=Literal(edge + 1_000_000_000))
        )
        connection.execute("select setval('sqlstreams.message_log_1_id', %s)", [last_id])
        connection.execute("update sqlstreams.consumer_group_cursor set claimed = %s", [last_id])


async def test_partitions_are_made_before_they_are_missed(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register(partition_rows=1_000)).producer()
        assert partitions(database_url) == 1
        await producer.produce(Note("first"))
        assert partitions(database_url) == 2
        await asyncio.gather(*(producer.produce_many([Note("")] * 100) for _ in range(9)))
        assert partitions(database_url) == 2
        receipts = await producer.produce_many([Note("")] * 100)
    assert receipts[-1].id == 1_001  # no id was lost at an edge
    assert partitions(database_url) == 3


def test_room_is_certain_only_when_much_is_left_and_it_was_seen_just_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    room = LogRoom(Family("sqlstreams", 1), 1_000_000)
    assert not room.is_certain  # nothing seen yet
    room.extended(2_000_000)
    assert not room.is_certain
    room.saw(500_000)
    assert room.is_certain
    room.saw(1_899_999)
    assert room.is_certain
    room.saw(1_900_000)
    assert not room.is_certain
    room.extended(3_000_000)
    assert room.is_certain
    now += 60
    assert not room.is_certain


def test_room_is_short_when_less_than_a_partition_is_left() -> None:
    room = LogRoom(Family("sqlstreams", 1), 1_000)
    assert room.is_short
    room.extended(2_000)
    room.saw(1_000)
    assert not room.is_short
    room.saw(1_001)
    assert room.is_short
    room.saw(5)  # an older one, that came late
    assert room.is_short


async def test_a_partition_that_cannot_be_made_ahead_takes_no_receipt_away(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register(partition_rows=1_000)
        ask(database_url, "alter function sqlstreams.extend_log rename to extend_log_away")
        assert (await stream.producer().produce(Note("a"))).id == 1
    with Client(database_url) as blocking:
        assert blocking.stream("notes", Note).producer().produce(Note("b")).id == 2
    assert stored(database_url) == ["a", "b"]
