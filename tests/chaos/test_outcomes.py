"""One message's trouble stays its own: whatever a handler raises is recorded, and its worker lives on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sqlstreams import AsyncClient, AsyncConsumer, Delay, Terminal, meta
from tests.chaos.conftest import produce
from tests.support import Note, consuming, eventually


class Speechless(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Abort(BaseException):
    """Not an Exception."""


# What is raised, and what is stored of it.
TROUBLES: list[tuple[BaseException, str, str]] = [
    (KeyboardInterrupt("of its own"), "KeyboardInterrupt", "of its own"),
    (SystemExit(3), "SystemExit", "3"),
    (asyncio.CancelledError("of its own"), "CancelledError", "of its own"),
    (Abort("not an Exception"), "Abort", "not an Exception"),
    (StopIteration("early"), "RuntimeError", "StopIteration"),
    (Speechless(), "Speechless", "cannot be had"),
    (ValueError("a NUL \x00 and a surrogate \ud800"), "ValueError", "a NUL \\x00 and a surrogate \\ud800"),
    (ValueError("x" * 5_000_000), "ValueError", "more characters"),
    (ValueError(), "ValueError", "ValueError()"),
    (ExceptionGroup("several", [ValueError("a"), KeyError("b")]), "ExceptionGroup", "several (2 sub-exceptions)"),
    (BaseExceptionGroup("several", [SystemExit(1)]), "BaseExceptionGroup", "several (1 sub-exception)"),
    (type("Long" * 200, (Exception,), {})("a long name"), "LongLong", "a long name"),
]


def _raise_nothing_or_trouble(note: Note) -> None:
    if meta().id <= len(TROUBLES):
        raise TROUBLES[meta().id - 1][0]


async def _raise_in_the_loop(note: Note) -> None:
    _raise_nothing_or_trouble(note)


@pytest.mark.parametrize("handle", [_raise_in_the_loop, _raise_nothing_or_trouble], ids=["async", "thread"])
async def test_whatever_a_handler_raises_is_recorded_and_its_worker_lives_on(
    client: AsyncClient, group: AsyncConsumer[Note], handle: Callable[[Note], Any]
) -> None:
    await group.register(max_retries=0)
    await produce(client, len(TROUBLES) + 2)
    async with consuming(group, handle, concurrency=1) as task:
        await eventually(lambda: (group.stats.handled, group.stats.dead) == (2, len(TROUBLES)))
        assert not task.done()
    for row, (_, error_type, text) in zip(await _exceptions(client), TROUBLES, strict=True):
        assert row[:3] == ("dead", 1, 0)
        assert row[3].startswith(error_type)
        assert text in row[4]
        assert (len(row[3]) <= 200, len(row[4]) < 10_000) == (True, True)


async def test_a_failed_message_waits_until_its_retries_are_spent_and_is_dead_then(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    await group.register(max_retries=2, retry_base=timedelta(milliseconds=5))
    await produce(client, 1)
    attempts: list[tuple[int, int, int]] = []

    async def handle(note: Note) -> None:
        attempts.append((meta().attempt, meta().failures, meta().delays))
        raise ValueError("always")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 1)
    assert attempts == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]
    assert [row[:3] for row in await _exceptions(client)] == [("dead", 3, 0)]
    status = await group.status()
    assert (status.dead, status.ready, status.lag) == (1, 0, 0)


async def test_a_terminal_message_is_dead_at_once(client: AsyncClient, group: AsyncConsumer[Note]) -> None:
    await produce(client, 1)
    attempts: list[int] = []

    async def handle(note: Note) -> None:
        attempts.append(meta().attempt)
        raise Terminal("never")

    async with consuming(group, handle):
        await eventually(lambda: group.stats.dead == 1)
    ((state, failures, _, error_type, error),) = await _exceptions(client)
    assert (attempts, state, failures, error_type) == ([1], "dead", 1, "Terminal")
    assert "never" in error


async def test_delays_are_counted_apart_and_spend_no_retry(client: AsyncClient, group: AsyncConsumer[Note]) -> None:
    await group.register(max_retries=0)
    await produce(client, 1)
    counts: list[tuple[int, int]] = []

    async def handle(note: Note) -> None:
        counts.append((meta().failures, meta().delays))
        if meta().delays < 3:
            raise Delay(timedelta(milliseconds=20))

    async with consuming(group, handle):
        await eventually(lambda: group.stats.handled == 1)
        await eventually(lambda: _is_empty(client))
    assert counts == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert (group.stats.delayed, group.stats.failed) == (3, 0)


async def test_a_delay_longer_than_time_itself_troubles_nobody_else(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    await produce(client, 3)

    async def handle(note: Note) -> None:
        if meta().id == 1:
            raise Delay(timedelta.max)

    async with consuming(group, handle) as task:
        await eventually(lambda: group.stats.handled == 2 and group.stats.failed + group.stats.delayed == 1)
        assert not task.done()


async def test_a_payload_of_another_shape_is_dead_at_once_and_others_flow(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    async with client._database.connection() as connection:
        await connection.execute("""
            insert into sqlstreams.message_log_1 (payload)
            values ('{"text": "one"}'), ('{"text": 2}'), ('[]'), ('null'), ('{"text": "five"}')
        """)
    seen: list[int] = []

    async def handle(note: Note) -> None:
        seen.append(meta().id)

    async with consuming(group, handle):
        await eventually(lambda: 5 in seen and group.stats.dead == 3)
    assert seen == [1, 5]
    rows = await _exceptions(client)
    assert [row[0] for row in rows] == ["dead"] * len(rows)
    assert {row[3] for row in rows} == {"DecodeFailed"}
    shown = await group.dead_letter(2)
    assert shown is not None
    assert shown.message is not None
    assert bytes(shown.message.payload) == b'{"text": 2}'


async def test_a_handler_that_cancels_its_worker_cancels_consume_and_is_not_charged(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    await produce(client, 1)

    async def handle(note: Note) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(group.consume(handle, signals=False), 10)
    status = await group.status()
    assert (status.lag, status.ready, status.dead) == (1, 0, 0)


async def test_handlers_that_are_functions_run_in_threads_side_by_side_and_know_their_message(
    client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    ids = await produce(client, 4)
    together = threading.Barrier(4, timeout=10)
    seen: list[tuple[int, bool]] = []

    def handle(note: Note) -> None:
        together.wait()
        seen.append((meta().id, threading.current_thread() is threading.main_thread()))

    async with consuming(group, handle, concurrency=4):
        await eventually(lambda: len(seen) == 4)
    assert sorted(seen) == [(each, False) for each in ids]


async def _exceptions(client: AsyncClient) -> list[Any]:
    async with client._database.connection() as connection:
        cursor = await connection.execute(
            "select state, failures, delays, error_type, error from sqlstreams.exception_queue_1 order by message_id"
        )
        return await cursor.fetchall()


async def _is_empty(client: AsyncClient) -> bool:
    return not await _exceptions(client)
