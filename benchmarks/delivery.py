"""Measure what failures, dead messages and keys cost a consumer, beside the plain path in the same run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from _measure import (
    STREAM,
    Arguments,
    Order,
    Place,
    Report,
    arguments,
    atimed,
    end,
    in_process,
    orders,
    place,
    ratios,
    register,
    rounds,
    until,
)

from sqlstreams import AsyncClient, Message, meta

_FAILING = 20  # one in so many
_KEYS = (1, 100, 10_000)


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    count, dead = given.size(20_000, tiny=1_000), given.size(5_000_000, tiny=5_000)
    asyncio.run(_fill(where.url, count))
    _bury(where, dead)
    report.sizes(messages=count, dead=dead, failing=f"1 in {_FAILING}")
    contenders: dict[str, Callable[[], float]] = {
        "plain": lambda: count / in_process(_plain, where.url, count),
        f"1 in {_FAILING} fails once": lambda: count / in_process(_storm, where.url, count),
        "beside dead messages": lambda: count / in_process(_beside_dead, where.url, count),
    } | {
        f"ordered, {keys:,} keys": lambda keys=keys: count / in_process(_ordered, where.url, count, keys)
        for keys in _KEYS
    }
    found = rounds(where, contenders, count=given.rounds)
    for name, samples in found.items():
        report.figure(name, samples, "messages/s")
    for name in list(found)[1:]:
        report.figure(f"{name} ÷ plain", ratios(found[name], found["plain"]), "×")


def _stream(keys: int | None) -> str:
    return STREAM if keys is None else f"{STREAM}-{keys}"


async def _fill(url: str, count: int) -> None:
    # The same payloads for all; keys are met in turns.
    payloads = orders(min(count, 10_000))
    async with AsyncClient(url) as client:
        for keys in (None, *_KEYS):
            await register(client, _stream(keys))
            producer = client.stream(_stream(keys), Order).producer()
            for first in range(0, count, 1_000):
                numbers = range(first, min(first + 1_000, count))
                await producer.produce_many(
                    [
                        Message(payloads[number % len(payloads)], key=None if keys is None else str(number % keys))
                        for number in numbers
                    ]
                )


def _bury(where: Place, dead: int) -> None:
    asyncio.run(_register_buried(where.url))
    # Ids below those of the log, so that the group meets only the rows and not the messages.
    where.execute(
        """insert into sqlstreams.exception_queue_1
                  (group_id, message_id, state, failures, can_run_after, error_type, error)
           select g.id, -n, 'dead', 11, now(), 'ValueError', repeat('x', 100)
             from sqlstreams.consumer_group_config g, generate_series(1, %s) as n
            where g.name = 'buried'""",
        [dead],
    )
    where.execute("vacuum (analyze) sqlstreams.exception_queue_1")


async def _register_buried(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.stream(STREAM, Order).consumer("buried").register()


def _plain(url: str, count: int) -> float:
    return asyncio.run(_consume(url, count, stream=STREAM, group=_new_group()))


def _storm(url: str, count: int) -> float:
    return asyncio.run(_consume(url, count, stream=STREAM, group=_new_group(), failing=True))


def _beside_dead(url: str, count: int) -> float:
    return asyncio.run(_consume(url, count, stream=STREAM, group="buried", rewind=True))


def _ordered(url: str, count: int, keys: int) -> float:
    return asyncio.run(_consume(url, count, stream=_stream(keys), group=_new_group(), concurrency="ordered"))


def _new_group() -> str:
    return f"group-{time.time_ns()}"


async def _consume(
    url: str, count: int, *, stream: str, group: str, failing: bool = False, rewind: bool = False, **options: Any
) -> float:
    """Return the seconds until every message has succeeded."""
    async with AsyncClient(url) as client:
        consumer = client.stream(stream, Order).consumer(group)
        await consumer.register(retry_base=timedelta(milliseconds=100), **options)
        if rewind:
            await _start_again(client, group)
        handler, done = _handler(count, failing=failing)
        running = asyncio.create_task(consumer.consume(handler, signals=False))
        seconds = await atimed(until(done, running))
        await end(running)
        return seconds


async def _start_again(client: AsyncClient, group: str) -> None:
    # Not by rewind(), which would count the dead messages and remove them.
    async with client._database.connection() as connection:
        await connection.execute(
            """update sqlstreams.consumer_group_cursor set claimed = 0
                where group_id = (select id from sqlstreams.consumer_group_config where name = %s)""",
            [group],
        )


def _handler(count: int, *, failing: bool) -> tuple[Callable[[Order], Awaitable[None]], asyncio.Event]:
    seen, done = 0, asyncio.Event()

    async def handle(order: Order) -> None:
        nonlocal seen
        if failing and (about := meta()).attempt == 1 and about.id % _FAILING == 0:
            raise ValueError("not this time")
        seen += 1
        if seen == count:
            done.set()

    return handle, done


if __name__ == "__main__":
    main()
