"""How long a delivery may take, and how often a message may fail and be delayed: by message, producer and group."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from sqlstreams import AsyncClient, AsyncStream, Delay, DeliveryLimits, InvalidInput, Message, meta
from tests.support import Note, consuming, eventually

SOON = timedelta(milliseconds=5)
SHORT = timedelta(milliseconds=100)


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database_url) as client:
        yield client


@pytest.fixture
async def notes(client: AsyncClient) -> AsyncStream[Note]:
    return await client.stream("notes", Note).register()


async def _rows(client: AsyncClient) -> list[Any]:
    async with client._database.connection() as connection:
        cursor = await connection.execute(
            "select message_id, state, failures, delays, error_type, error from sqlstreams.exception_queue_1 order by 1"
        )
        return await cursor.fetchall()


async def _is_empty(client: AsyncClient) -> bool:
    return not await _rows(client)


async def test_an_async_handler_over_its_time_is_cancelled_and_its_message_has_failed(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(timeout=SHORT, max_retries=0)
    await notes.producer().produce_many([Note("hangs"), Note("works")])
    cancelled, done = [], []

    async def handle(note: Note) -> None:
        if note.text == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(meta().timeout)
        done.append(note.text)

    async with consuming(group, handle, concurrency=1):
        await eventually(lambda: group.stats.dead == 1 and done == ["works"])
    assert cancelled == [SHORT]
    ((_, state, failures, _, error_type, error),) = await _rows(client)
    assert (state, failures, error_type) == ("dead", 1, "TimeoutError")
    assert error.startswith("the handler took longer than its timeout of 0.1 s\nat ")
    assert group.stats.abandoned == 0


async def test_a_handler_that_suppresses_its_cancellation_has_failed_when_it_ends(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(timeout=SHORT, max_retries=0)
    await notes.producer().produce(Note("deaf"))
    suppressed, may_end = asyncio.Event(), asyncio.Event()

    async def handle(note: Note) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        suppressed.set()
        await may_end.wait()

    async with consuming(group, handle):
        await asyncio.wait_for(suppressed.wait(), 10)
        assert await _is_empty(client)
        may_end.set()
        await eventually(lambda: group.stats.dead == 1)
    assert [row[4] for row in await _rows(client)] == ["TimeoutError"]
    assert group.stats.handled == 0


async def test_a_thread_over_its_time_is_abandoned_and_its_place_is_taken_by_another(
    client: AsyncClient, notes: AsyncStream[Note], caplog: pytest.LogCaptureFixture
) -> None:
    group = await notes.consumer("g").register(timeout=SHORT, max_retries=0)
    await notes.producer().produce_many([Note("stuck"), Note("stuck"), *[Note("works")] * 4])
    may_end, ended, works = threading.Event(), [], []

    def handle(note: Note) -> None:
        if note.text == "stuck":
            may_end.wait(20)
            ended.append(meta().id)
        else:
            works.append(meta().id)

    async with consuming(group, handle, concurrency=2):
        await eventually(lambda: len(works) == 4 and group.stats.dead == 2)
        assert group.stats.abandoned == 2
        may_end.set()
        await eventually(lambda: len(ended) == 2)
        assert [row[:2] for row in await _rows(client)] == [(1, "dead"), (2, "dead")]
    assert group.stats.handled == 4
    assert caplog.text.count("SQL0109") == 2
    assert "SQL0109 message 1 of group g" in caplog.text


async def test_a_handler_in_time_is_left_alone_and_one_that_follows_has_its_own_time(
    notes: AsyncStream[Note],
) -> None:
    group = await notes.consumer("g").register(timeout=timedelta(milliseconds=400), max_retries=0)
    await notes.producer().produce_many([Note(str(number)) for number in range(8)])

    async def handle(note: Note) -> None:
        await asyncio.sleep(0.1)

    async with consuming(group, handle, concurrency=1):
        await eventually(lambda: group.stats.handled == 8)
    assert group.stats.failed == 0


async def test_a_timeout_of_the_handlers_own_is_a_failure_like_any_other(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(timeout=timedelta(seconds=30), max_retries=0)
    await notes.producer().produce(Note("x"))

    def handle(note: Note) -> None:
        raise TimeoutError("of its own")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 1)
    assert "of its own" in (await _rows(client))[0][5]
    assert group.stats.abandoned == 0


async def test_being_stopped_charges_nobody_whose_time_is_over_at_the_same_moment(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(timeout=SHORT)
    await notes.producer().produce(Note("x"))
    late, may_end = asyncio.Event(), asyncio.Event()

    async def handle(note: Note) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            late.set()
            await may_end.wait()

    async with consuming(group, handle):
        await asyncio.wait_for(late.wait(), 10)
    assert await _is_empty(client)
    assert (await group.status()).lag == 1


async def test_a_message_delayed_too_often_is_dead_and_says_so(client: AsyncClient, notes: AsyncStream[Note]) -> None:
    group = await notes.consumer("g").register(max_retries=0, max_delays=2)
    await notes.producer().produce(Note("x"))

    async def handle(note: Note) -> None:
        raise Delay(SOON, "the shop is closed")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 1)
    ((_, state, failures, delays, error_type, error),) = await _rows(client)
    assert (state, failures, delays, error_type) == ("dead", 0, 3, "Delay")
    assert "max_delays is 2" in error
    assert "the shop is closed" in error


async def test_a_message_comes_before_its_producer_and_that_before_the_group(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(
        timeout=timedelta(seconds=60), max_retries=5, max_delays=5, retry_base=SOON
    )
    producer = notes.producer(max_retries=1, timeout=timedelta(seconds=30))
    await notes.producer().produce(Note("plain"))
    await producer.produce(Note("from the producer"))
    await producer.produce(Note("its own"), max_retries=0, max_delays=0)
    await producer.produce_many([Note("many"), Message(Note("its own"), max_retries=2)])
    seen: dict[int, list[tuple[Any, ...]]] = {}

    async def handle(note: Note) -> None:
        about = meta()
        seen.setdefault(about.id, []).append((about.timeout, about.max_retries, about.max_delays))
        raise ValueError("always")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 5)
    half, whole = timedelta(seconds=30), timedelta(seconds=60)
    assert seen == {
        1: [(whole, 5, 5)] * 6,
        2: [(half, 1, 5)] * 2,
        3: [(half, 0, 0)],
        4: [(half, 1, 5)] * 2,
        5: [(half, 2, 5)] * 3,
    }


async def test_the_limits_of_a_group_bound_what_messages_ask_for(client: AsyncClient, notes: AsyncStream[Note]) -> None:
    limits = DeliveryLimits(timeout=(None, SHORT), max_retries=(1, 2))
    group = await notes.consumer("g").register(max_retries=1, retry_base=SOON, limits=limits)
    info = await group.get()
    assert info is not None
    assert info.limits == limits
    await notes.producer(max_retries=100, timeout=timedelta(hours=1)).produce(Note("much"))
    await notes.producer(max_retries=0).produce(Note("little"))

    async def handle(note: Note) -> None:
        assert meta().timeout == SHORT
        raise ValueError("always")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 2)
    assert [(row[2], row[4]) for row in await _rows(client)] == [(3, "ValueError"), (2, "ValueError")]


async def test_each_message_waits_for_its_own_pause(client: AsyncClient, notes: AsyncStream[Note]) -> None:
    group = await notes.consumer("g").register(retry_base=timedelta(hours=1), retry_cap=timedelta(hours=1))
    await notes.producer().produce(Note("slow"))
    await notes.producer().produce(Note("soon"), retry_base=SOON, retry_cap=SOON)
    done: list[str] = []

    async def handle(note: Note) -> None:
        if meta().attempt == 1:
            raise ValueError("once")
        done.append(note.text)

    async with consuming(group, handle):
        await eventually(lambda: done == ["soon"])
    ((message_id, state, *_),) = await _rows(client)
    assert (message_id, state) == (1, "ready")


async def test_retries_run_beside_fresh_messages_by_the_same_handlers(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(retry_base=SOON)
    await notes.producer().produce_many([Note("fails"), *(Note(str(number)) for number in range(200))])
    retried, begun, running, most = asyncio.Event(), list[str](), 0, 0

    async def handle(note: Note) -> None:
        nonlocal running, most
        begun.append(note.text)
        running += 1
        most = max(most, running)
        with contextlib.suppress(TimeoutError):
            if note.text != "fails":
                await asyncio.wait_for(retried.wait(), 0.02)  # so that all of them together take two seconds
        running -= 1
        if note.text == "fails" and meta().attempt == 1:
            raise ValueError("once")
        if note.text == "fails":
            retried.set()

    async with consuming(group, handle, concurrency=2):
        await eventually(lambda: len(begun) == 202)
    assert begun.index("fails", 1) < 100
    assert most == 2


async def test_a_running_consumer_goes_by_what_was_declared_last(
    client: AsyncClient, notes: AsyncStream[Note], database_url: str
) -> None:
    group = await notes.consumer("g").register(max_retries=1_000, retry_base=SOON, retry_cap=SOON)
    await notes.producer().produce(Note("x"))

    async def handle(note: Note) -> None:
        raise ValueError("always")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.failed > 3)
        await group.register(max_retries=3)
        await eventually(lambda: group.stats.dead == 1)
    ((_, state, *_, error_type, _),) = await _rows(client)
    assert (state, error_type) == ("dead", "ValueError")


async def test_a_message_whose_process_died_too_often_is_dead_without_another_try(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    group = await notes.consumer("g").register(max_retries=0)
    await notes.producer().produce_many([Note("spent"), Note("whole")])
    handled: list[str] = []

    async def handle(note: Note) -> None:
        handled.append(note.text)
        if meta().attempt == 1:
            raise Delay(timedelta(seconds=60))

    async with consuming(group, handle):
        await eventually(lambda: group.stats.delayed == 2)
    async with client._database.connection() as connection:
        await connection.execute(
            "update sqlstreams.exception_queue_1"
            "   set can_run_after = now(), failures = 2 - message_id, error_type = 'ProcessDied', error = 'it died'"
        )
    handled.clear()
    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 1 and group.stats.handled == 1)
    assert handled == ["whole"]
    ((message_id, state, failures, _, error_type, error),) = await _rows(client)
    assert (message_id, state, failures, error_type, error) == (1, "dead", 1, "ProcessDied", "it died")


async def test_a_concurrency_of_the_producers_goes_for_messages_with_a_key(
    client: AsyncClient, notes: AsyncStream[Note]
) -> None:
    producer = notes.producer(concurrency="ordered")
    await producer.produce(Note("without"))
    await producer.produce_many([Note("without"), Message(Note("with"), key="k")])
    async with client._database.connection() as connection:
        cursor = await connection.execute("select options from sqlstreams.message_log_1 order by id")
        stored = [row[0] for row in await cursor.fetchall()]
        keyed = await (await connection.execute("select keyed from sqlstreams.stream_config")).fetchone()
    assert stored == [None, None, b'{"concurrency":"ordered"}']
    assert keyed == (True,)


@pytest.mark.parametrize(
    "options", [{"timeout": timedelta(0)}, {"max_retries": -1}, {"max_delays": 1.5}, {"retry_exponent": 0}]
)
async def test_options_that_cannot_work_are_refused_at_the_call(
    notes: AsyncStream[Note], options: dict[str, Any]
) -> None:
    (field,) = options
    with pytest.raises(InvalidInput) as refused:
        notes.producer(**options)
    assert refused.value.field == field
    with pytest.raises(InvalidInput) as refused:
        await notes.producer().produce(Note("x"), **options)
    assert refused.value.field == field
    with pytest.raises(InvalidInput) as refused:
        await notes.producer().produce_many([Note("x"), Message(Note("y"), **options)])
    assert refused.value.field == f"messages[1].{field}"
