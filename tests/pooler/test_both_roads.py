"""The path of a message from its producers to its groups: the same directly and through PgBouncer."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from sqlstreams import AsyncClient, Client, Delay, Receipt, Terminal, meta
from tests.support import Note, consuming, eventually


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url) as client:
        await client.stream("notes", Note).register()
        yield client


def test_twenty_starters_at_once_install_an_empty_database_once(empty_url: str) -> None:
    together = threading.Barrier(20)

    def register() -> list[int]:
        with Client(empty_url) as client:
            together.wait()
            return [step.version for step in client.system.register()]

    with ThreadPoolExecutor(20) as threads:
        applied = [step for steps in threads.map(lambda _: register(), range(20)) for step in steps]
    with Client(empty_url) as client:
        status = client.system.status()
    assert sorted(applied) == sorted(step.version for step in status.applied)
    assert status.pending == ()


def test_the_blocking_client_produces_from_threads_and_consumes(url: str) -> None:
    with Client(url) as client:
        stream = client.stream("notes", Note).register()
        producer = stream.producer().register()
        with ThreadPoolExecutor(20) as threads:
            ids = [receipt.id for receipt in threads.map(lambda _: producer.produce(Note("x")), range(200))]
        ids += [receipt.id for receipt in producer.produce_many([Note("y")] * 300)]
        assert [message.id for message in stream.read(limit=1_000)] == sorted(ids)
        assert stream.status().head == len(ids) == 500


async def test_every_group_gets_every_message_in_order(client: AsyncClient) -> None:
    stream = client.stream("notes", Note)
    producer = await stream.producer().register()
    receipts = await producer.produce_many([Note(str(number)) for number in range(2_500)])
    for group in ("first", "second"):
        consumer = await stream.consumer(group).register()
        seen: list[int] = []

        async def handle(note: Note, seen: list[int] = seen) -> None:
            seen.append(meta().id)

        async with consuming(consumer, handle, concurrency=1):
            await eventually(lambda seen=seen: len(seen) >= 2_500)  # type: ignore[misc]  # mypy infers no default of a lambda
        assert seen == [receipt.id for receipt in receipts]
        status = await consumer.status()
        assert (status.committed, status.lag, status.leases) == (2_500, 0, 0)


async def test_a_failed_message_is_delivered_again_until_it_succeeds(client: AsyncClient) -> None:
    stream = client.stream("notes", Note)
    await stream.producer().produce(Note("stubborn"))
    consumer = await stream.consumer("group").register(retry_base=timedelta(milliseconds=10))
    attempts: list[int] = []

    async def handle(note: Note) -> None:
        attempts.append(meta().attempt)
        if len(attempts) < 3:
            raise ValueError("not yet")

    async with consuming(consumer, handle):
        await eventually(lambda: len(attempts) == 3 and consumer.stats.handled == 1)
    assert attempts == [1, 2, 3]
    status = await consumer.status()
    assert (status.ready, status.inflight, status.dead) == (0, 0, 0)


async def test_two_hundred_concurrent_produces_get_an_id_each(client: AsyncClient) -> None:
    stream = client.stream("notes", Note)
    producer = await stream.producer().register()
    receipts = await asyncio.gather(*(producer.produce(Note(str(number))) for number in range(200)))
    stored = {message.id: message.payload for message in await stream.read(limit=1_000)}
    assert [stored[receipt.id] for receipt in receipts] == [f'{{"text":"{number}"}}'.encode() for number in range(200)]


async def test_produces_within_a_callers_transaction_share_its_end(client: AsyncClient, url: str) -> None:
    stream = client.stream("notes", Note)
    producer = stream.producer()
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as connection:
        for _ in range(10):
            async with connection.transaction():
                await producer.produce(Note("kept"), connection=connection)
            with suppress(ZeroDivisionError):
                async with connection.transaction():
                    await producer.produce_many([Note("undone")] * 3, connection=connection)
                    raise ZeroDivisionError
    assert [message.payload for message in await stream.read()] == [b'{"text":"kept"}'] * 10


async def test_two_processes_share_a_group_and_repeat_only_what_failed(client: AsyncClient, url: str) -> None:
    stream = client.stream("notes", Note)
    seen: Counter[int] = Counter()

    async def handle(note: Note) -> None:
        seen[meta().id] += 1
        match meta().id % 20:
            case 0 if meta().failures == 0:
                raise ValueError("not yet")
            case 1 if meta().delays == 0:
                raise Delay(timedelta(milliseconds=1))
            case 2:
                raise Terminal("never")

    async with AsyncClient(url) as other:
        one = await stream.consumer("group").register(retry_base=timedelta(milliseconds=10))
        two = other.stream("notes", Note).consumer("group")
        async with consuming(one, handle, prefetch=20), consuming(two, handle, prefetch=20):
            for _ in range(10):
                await asyncio.gather(*(stream.producer().produce(Note("x")) for _ in range(40)))
            await eventually(lambda: one.stats.handled + two.stats.handled == 380)
        status = await one.status()
    assert (status.committed, status.ready, status.inflight, status.dead) == (400, 0, 0, 20)
    assert Counter(seen.values()) == {1: 360, 2: 40}
    assert (await one.reclaims()) == []


async def test_what_a_stopped_process_did_not_do_is_free_for_others_at_once(client: AsyncClient, url: str) -> None:
    stream = client.stream("notes", Note)
    await stream.producer().produce_many([Note("x")] * 50)
    consumer = await stream.consumer("group").register()
    started = asyncio.Event()

    async def hang(note: Note) -> None:
        started.set()
        await asyncio.Event().wait()

    async with consuming(consumer, hang, prefetch=50):
        await started.wait()
    seen: list[int] = []

    async def handle(note: Note) -> None:
        seen.append(meta().id)
        assert meta().attempt == 1

    async with (
        AsyncClient(url) as other,
        consuming(other.stream("notes", Note).consumer("group"), handle, concurrency=1),
    ):
        await eventually(lambda: len(seen) == 50, within=5)
    assert seen == list(range(1, 51))
    assert await consumer.reclaims() == []


async def test_what_a_silent_process_did_not_do_is_taken_over_and_recorded(url: str) -> None:
    brief = timedelta(milliseconds=600)
    async with AsyncClient(url) as client, AsyncClient(url, lease_ttl=brief) as silent:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce_many([Note("x")] * 50)
        consumer = await stream.consumer("group").register()
        started = asyncio.Event()
        seen: list[int] = []

        async def hang(note: Note) -> None:
            started.set()
            await asyncio.Event().wait()

        async def handle(note: Note) -> None:
            seen.append(meta().id)

        async with consuming(silent.stream("notes", Note).consumer("group"), hang, prefetch=50):
            await started.wait()
            heartbeat = silent._presence._heartbeat
            assert heartbeat is not None
            heartbeat.stop()
            async with consuming(consumer, handle, concurrency=1):
                await eventually(lambda: len(seen) == 50, within=10)
                (reclaim,) = await consumer.reclaims()
        assert seen == list(range(1, 51))
        assert (reclaim.low, reclaim.high) == (1, 50)


async def test_tail_shows_messages_as_they_come(client: AsyncClient) -> None:
    stream = client.stream("notes", Note)
    tail = stream.tail("beginning")
    for _ in range(3):
        receipt: Receipt = await stream.producer().produce(Note("x"))
        assert (await asyncio.wait_for(anext(tail), 5)).id == receipt.id


async def test_status_names_who_holds_back_a_claim(client: AsyncClient, database_url: str) -> None:
    stream = client.stream("notes", Note)
    consumer = await stream.consumer("group").register()
    async with await psycopg.AsyncConnection.connect(database_url, application_name="slow") as slow:
        await slow.execute("insert into sqlstreams.message_log_1 (payload) values ('1')")
        await stream.producer().produce(Note("x"))
        async with consuming(consumer, lambda note: None):
            await eventually(lambda: bool(consumer.stats.waiting_for))
            assert [holder.application for holder in (await consumer.status()).holders] == ["slow"]
            await slow.rollback()
            await eventually(lambda: consumer.stats.handled == 1, within=5)


async def test_a_schedule_fires_and_is_looked_at(url: str) -> None:
    async with AsyncClient(url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.consumer("group").register()
        every = await client.scheduler("every").register("notes", "@every 1s", Note("x"), catch_up="all")
        running = asyncio.create_task(every.schedule(signals=False))

        async def has_fired() -> bool:
            return len(await every.fires()) >= 2

        await eventually(has_fired)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await every.suspend()
        await every.run()
        (last, *_) = await every.messages()
        assert (last.kind, [each.outcome for each in last.groups]) == ("manual", ["pending"])
