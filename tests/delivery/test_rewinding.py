"""Moving a group: what is delivered again, what never, and what its processes have to do with it meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, InvalidInput, Message, NotFound, Terminal, meta
from tests.support import Note, consuming, eventually


@pytest.fixture
async def client(database_url: str) -> Any:
    """A client whose processes hear within a tenth of a second that a range is not theirs any more."""
    async with AsyncClient(database_url, lease_ttl=timedelta(milliseconds=600)) as client:
        yield client


async def _group(client: AsyncClient, count: int, **options: Any) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    await stream.producer().produce_many([Note(str(number)) for number in range(1, count + 1)])
    return await stream.consumer("g").register(**options)


async def _consume_all(consumer: AsyncConsumer[Note], count: int) -> None:
    seen: set[int] = set()
    async with consuming(consumer, lambda note: seen.add(meta().id)):
        await eventually(lambda: len(seen) == count)
        await eventually(lambda: _is_done(consumer))


async def _is_done(consumer: AsyncConsumer[Note]) -> bool:
    status = await consumer.status()
    return status.committed == status.head and not status.ready and not status.inflight


async def test_a_rewound_group_gets_the_messages_behind_the_position_again(client: AsyncClient) -> None:
    consumer = await _group(client, 10)
    await _consume_all(consumer, 10)
    preview = await consumer.preview_rewind(4)
    assert (await consumer.status()).claimed == 10
    done = await consumer.rewind(4)
    assert done == preview
    assert (done.claimed, done.position, done.messages, done.first_id, done.last_id) == (10, 4, 6, 5, 10)
    assert done.first_at is not None
    assert done.last_at is not None
    assert done.first_at <= done.last_at <= datetime.now(UTC)
    seen: list[int] = []
    async with consuming(consumer, lambda note: seen.append(meta().id), concurrency=1):
        await eventually(lambda: len(seen) == 6)
        await eventually(lambda: _is_done(consumer))
    assert seen == [5, 6, 7, 8, 9, 10]
    assert [(each.action, each.claimed, each.position, each.messages) for each in await consumer.positions()] == [
        ("rewound", 10, 4, 6)
    ]


async def test_rewinding_twice_is_rewinding_once(client: AsyncClient) -> None:
    consumer = await _group(client, 5)
    await _consume_all(consumer, 5)
    first, second = await consumer.rewind("beginning"), await consumer.rewind("beginning")
    assert (first.messages, second.messages, second.claimed, second.position) == (5, 0, 0, 0)
    assert len(await consumer.positions()) == 1
    await _consume_all(consumer, 5)


async def test_a_rewind_never_goes_forward_and_a_skip_never_back(client: AsyncClient) -> None:
    consumer = await _group(client, 10, start=5)
    assert (await consumer.rewind(8)).messages == (await consumer.rewind("head")).messages == 0
    assert (await consumer.skip(3)).messages == (await consumer.skip("beginning")).messages == 0
    assert (await consumer.status()).claimed == 5
    assert await consumer.positions() == []


async def test_a_time_is_a_position_too(client: AsyncClient, database_url: str) -> None:
    consumer = await _group(client, 3)
    await _execute(database_url, "update sqlstreams.message_log_1 set created_at = created_at - interval '1 hour'")
    await consumer._stream.producer().produce(Note("4"))
    assert (await consumer.skip("head")).messages == 4
    assert (await consumer.rewind(datetime.now(UTC) - timedelta(minutes=30))).position == 3


async def test_a_skip_counts_what_it_passes_over_and_delivers_the_rest(client: AsyncClient) -> None:
    consumer = await _group(client, 10)
    preview = await consumer.preview_skip(7)
    done = await consumer.skip(7)
    assert done == preview
    assert (done.claimed, done.position, done.messages, done.first_id, done.last_id) == (0, 7, 7, 1, 7)
    seen: list[int] = []
    async with consuming(consumer, lambda note: seen.append(meta().id), concurrency=1):
        await eventually(lambda: seen == [8, 9, 10])
    (change,) = await consumer.positions()
    assert (change.action, change.claimed, change.position, change.messages) == ("skipped", 0, 7, 7)
    assert change.changed_by


async def test_a_skip_to_the_head_leaves_out_nothing_that_is_uncommitted(
    client: AsyncClient, database_url: str
) -> None:
    consumer = await _group(client, 3)
    async with await psycopg.AsyncConnection.connect(database_url) as slow:
        await consumer._stream.producer().produce(Note("4"), connection=slow)
        await consumer._stream.producer().produce(Note("5"))
        assert (await consumer.skip("head")).position == 3


async def test_a_skip_ahead_of_the_head_is_refused(client: AsyncClient) -> None:
    consumer = await _group(client, 3)
    with pytest.raises(InvalidInput, match="to must not lie ahead of the last message, which is 3, got 4"):
        await consumer.skip(4)
    for naive in (datetime(2026, 1, 1), -1, "middle"):  # noqa: DTZ001  # that is what is wrong
        with pytest.raises(InvalidInput, match="to must be"):
            await consumer.rewind(naive)  # type: ignore[arg-type]  # that as well
    with pytest.raises(NotFound):
        await consumer._stream.consumer("nobody").rewind("beginning")


async def test_a_skip_leaves_retries_and_dead_messages_as_they_are(client: AsyncClient) -> None:
    consumer = await _group(client, 5, max_retries=1, retry_base=timedelta(hours=1), retry_cap=timedelta(hours=1))
    seen: list[int] = []

    def handle(note: Note) -> None:
        seen.append(meta().id)
        raise Terminal("dead") if meta().id == 1 else ValueError("again")

    async with consuming(consumer, handle):
        await eventually(lambda: _has(consumer, ready=4, dead=1))
    await consumer._stream.producer().produce(Note("6"))
    assert (await consumer.skip("head")).messages == 1
    assert await _has(consumer, ready=4, dead=1)


async def test_a_rewind_removes_the_exceptions_of_what_is_delivered_afresh_and_no_others(client: AsyncClient) -> None:
    consumer = await _group(client, 6, max_retries=1, retry_base=timedelta(hours=1), retry_cap=timedelta(hours=1))

    def fail(note: Note) -> None:
        raise Terminal("dead") if meta().id in (2, 4) else ValueError("again")

    async with consuming(consumer, fail):
        await eventually(lambda: _has(consumer, ready=4, dead=2))
        await eventually(lambda: _no_leases(consumer))
    done = await consumer.rewind(3)
    assert (done.ready, done.deferred, done.inflight, done.dead, done.leases) == (2, 0, 0, 1, 0)
    assert await _has(consumer, ready=2, dead=1)
    assert (await consumer.positions())[0].exceptions == 3
    seen: list[int] = []
    async with consuming(consumer, lambda note: seen.append(meta().id)):
        await eventually(lambda: sorted(seen) == [4, 5, 6])


async def test_a_running_process_loses_its_range_and_every_message_is_delivered_again(
    client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await _group(client, 50)
    times: Counter[int] = Counter()
    gate = asyncio.Event()

    async def handle(note: Note) -> None:
        times[meta().id] += 1
        await gate.wait()

    async with consuming(consumer, handle, concurrency=5, prefetch=20):
        await eventually(lambda: len(times) == 5)
        done = await consumer.rewind("beginning")
        assert done.leases >= 1
        await eventually(lambda: consumer.stats.leases_lost >= 1)
        gate.set()
        await eventually(lambda: len(times) == 50)
        await eventually(lambda: _is_done(consumer))
    assert "SQL0040" in caplog.text
    # Those that ran at the moment of the rewind were delivered once more, with a reason; nothing else was.
    assert {message_id for message_id, count in times.items() if count == 2} == {1, 2, 3, 4, 5}
    assert max(times.values()) == 2
    assert (await consumer.positions())[0].leases == done.leases


async def test_a_range_that_the_position_falls_into_is_delivered_from_its_first_open_message(
    client: AsyncClient,
) -> None:
    consumer = await _group(client, 20)
    gate = asyncio.Event()
    seen: Counter[int] = Counter()

    async def handle(note: Note) -> None:
        seen[meta().id] += 1
        await gate.wait()

    async with consuming(consumer, handle, concurrency=3, prefetch=20):
        await eventually(lambda: len(seen) == 3)
        done = await consumer.rewind(15)
        assert (done.position, done.claimed, done.leases) == (0, 20, 1)
        gate.set()
        await eventually(lambda: len(seen) == 20)
        await eventually(lambda: _is_done(consumer))


async def test_an_outcome_from_before_the_rewind_changes_nothing_after_it(client: AsyncClient) -> None:
    consumer = await _group(client, 1, retry_base=timedelta(0), retry_cap=timedelta(0))
    gates = [asyncio.Event() for _ in range(3)]
    started: list[int] = []

    async def handle(note: Note) -> None:
        number = len(started)
        started.append(meta().failures)
        await gates[number].wait()
        if number == 0:
            raise ValueError("no")

    async with consuming(consumer, handle, concurrency=3):
        await eventually(lambda: len(started) == 1)
        await consumer.rewind("beginning")
        await eventually(lambda: len(started) == 2)
        gates[0].set()  # fails, under a token that proves nothing any more
        gates[1].set()
        await eventually(lambda: _is_done(consumer))
    assert started == [0, 0]
    assert await _has(consumer, ready=0, dead=0)


async def test_a_retry_that_runs_during_the_rewind_does_not_come_back(client: AsyncClient) -> None:
    consumer = await _group(client, 1, retry_base=timedelta(0), retry_cap=timedelta(0))
    retrying, gate = asyncio.Event(), asyncio.Event()
    failures: list[int] = []

    async def handle(note: Note) -> None:
        failures.append(meta().failures)
        if len(failures) == 1:
            raise ValueError("no")
        if len(failures) == 2:
            retrying.set()
            await gate.wait()
            raise ValueError("no")

    async with consuming(consumer, handle):
        await asyncio.wait_for(retrying.wait(), 10)
        done = await consumer.rewind("beginning")
        assert done.inflight == 1
        await eventually(lambda: len(failures) == 3)
        gate.set()
        await eventually(lambda: _is_done(consumer))
    assert failures == [0, 1, 0]


async def test_nothing_is_lost_when_several_processes_claim_during_many_rewinds(
    client: AsyncClient, database_url: str
) -> None:
    consumer = await _group(client, 400)
    times: Counter[int] = Counter()

    async def handle(note: Note) -> None:
        times[meta().id] += 1
        await asyncio.sleep(0.001)

    async with AsyncClient(database_url, lease_ttl=timedelta(milliseconds=600)) as other:
        twin = other.stream("notes", Note).consumer("g")
        async with consuming(consumer, handle, prefetch=7), consuming(twin, handle, prefetch=11):
            for position in range(0, 400, 40):
                claimed = position + 20
                await eventually(lambda claimed=claimed: len(times) > claimed)  # type: ignore[misc]  # mypy infers no default of a lambda
                await consumer.rewind(position // 2)
            times.clear()
            await consumer.rewind("beginning")
            await eventually(lambda: len(times) == 400)
            await eventually(lambda: _is_done(consumer))
        assert (await consumer.status()).leases == 0


async def test_ordered_keys_stay_in_order_after_a_rewind(client: AsyncClient, database_url: str) -> None:
    stream = await client.stream("notes", Note).register()
    consumer = await stream.consumer("g").register(
        concurrency="ordered", retry_base=timedelta(milliseconds=5), retry_cap=timedelta(milliseconds=5)
    )
    await stream.producer().produce_many([Message(Note(f"{n}"), key=f"k{n % 5}") for n in range(200)])
    seen: list[tuple[str, int]] = []
    running: set[str] = set()
    tried: set[int] = set()

    async def handle(note: Note) -> None:
        key = meta().key or ""
        assert key not in running
        running.add(key)
        try:
            await asyncio.sleep(0.001)
            if meta().id % 17 == 0 and meta().id not in tried:
                tried.add(meta().id)
                raise ValueError("once")
            seen.append((key, meta().id))
        finally:
            running.discard(key)

    async with AsyncClient(database_url, lease_ttl=timedelta(milliseconds=600)) as other:
        twin = other.stream("notes", Note).consumer("g")
        async with consuming(consumer, handle, prefetch=30), consuming(twin, handle, prefetch=30):
            await eventually(lambda: len(seen) > 100)
            await consumer.rewind("beginning")
            await eventually(lambda: _last_pass(seen) == 200, within=60)
            await eventually(lambda: _is_done(consumer), within=60)
            await eventually(lambda: _no_keys(database_url), within=60)
    for key in {key for key, _ in seen}:
        ids = [message_id for each, message_id in seen if each == key]
        # Those of before the rewind, then all of them, in order: it goes back once.
        assert sum(later < earlier for earlier, later in pairwise(ids)) <= 1
        assert ids[-40:] == sorted(ids[-40:])


def _last_pass(seen: list[tuple[str, int]]) -> int:
    count = 0
    for key in {key for key, _ in seen}:
        ids = [message_id for each, message_id in seen if each == key]
        count += len(ids) - max(
            (at + 1 for at, (earlier, later) in enumerate(pairwise(ids)) if later < earlier),
            default=0,
        )
    return count


async def test_a_message_behind_a_removed_one_of_its_key_goes_on(client: AsyncClient, database_url: str) -> None:
    # given message 1, which waits for the key that the retry of message 2 has
    consumer = await _group(client, 2, start=2, concurrency="exclusive")
    await _execute(
        database_url,
        "insert into sqlstreams.exception_queue_1"
        " (group_id, message_id, state, can_run_after, message_key, concurrency)"
        " values (1, 1, 'deferred', now(), 'k', 'exclusive')"
        "      , (1, 2, 'ready', now() + interval '1 hour', 'k', 'exclusive')",
    )
    done = await consumer.rewind(1)
    assert (done.ready, done.deferred) == (1, 0)
    assert await _has(consumer, ready=1, dead=0)  # message 1


async def test_ids_beyond_the_reach_of_doubles_are_exact(client: AsyncClient, database_url: str) -> None:
    stream = await client.stream("notes", Note).register()
    first = 2**53 + 1
    await _execute(
        database_url,
        f"select sqlstreams.extend_log(1, 0); drop table sqlstreams.message_log_1_from_0;"
        f" create table sqlstreams.message_log_1_big partition of sqlstreams.message_log_1"
        f" for values from ({first - 1}) to ({first + 1_000_000});"
        f" select setval('sqlstreams.message_log_1_id', {first - 1})",
    )
    await stream.producer().produce_many([Note(str(number)) for number in range(3)])
    consumer = await stream.consumer("g").register(start="head")
    assert (await consumer.status()).claimed == first + 2
    assert (await consumer.rewind(first)).messages == 2
    assert (await consumer.skip(first + 1)).messages == 1
    assert (await consumer.rewind(datetime.now(UTC) - timedelta(hours=1))).messages == 2


async def _execute(url: str, query: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(query.encode())


async def _has(consumer: AsyncConsumer[Note], *, ready: int, dead: int) -> bool:
    status = await consumer.status()
    return (status.ready, status.dead, status.inflight) == (ready, dead, 0)


async def _no_leases(consumer: AsyncConsumer[Note]) -> bool:
    return (await consumer.status()).leases == 0


async def _no_keys(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        found = await (await connection.execute("select count(*) from sqlstreams.message_key_lease")).fetchone()
    return found == (0,)
