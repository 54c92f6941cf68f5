"""Measure how fast a handler that does nothing consumes, beside a bare SELECT of the same rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import psycopg
from _measure import (
    STREAM,
    Arguments,
    Order,
    Place,
    Report,
    arguments,
    end,
    fill,
    in_process,
    orders,
    place,
    ratios,
    raw_json,
    register,
    rounds,
    until,
    write_copy_file,
)
from msgspec import Struct

from sqlstreams import AsyncClient

_PAGE = 1_000


class Spent(Struct, frozen=True):
    """What one process spent on its messages, in seconds."""

    wall: float
    processor: float


def main() -> None:
    given = arguments(str(__doc__), rounds=5)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    count, in_threads = given.size(200_000, tiny=5_000), given.size(40_000, tiny=1_000)
    log = asyncio.run(_register(where))
    payloads = orders(min(count, 10_000))
    fill(where, log, write_copy_file(where.directory, payloads), count=count, rows_in_file=len(payloads))
    report.sizes(messages=count, in_threads=in_threads)

    processor: list[float] = []
    contenders: dict[str, Callable[[], float]] = {
        "bare SELECT, pages of 1,000": lambda: count / in_process(_select, where.url, log, count),
        "consume, async handler": lambda: count / _consuming(where, count, processor),
        "consume, async handler, history of all": lambda: count / in_process(_consume_kept, where.url, count).wall,
        "consume, plain handler in threads": lambda: (
            in_threads / in_process(_consume_plain, where.url, in_threads).wall
        ),
    }
    selected, consumed, kept, _ = (found := rounds(where, contenders, count=given.rounds)).values()
    for name, samples in found.items():
        report.figure(name, samples, "messages/s")
    report.at_least("async handler ÷ SELECT", ratios(consumed, selected), 0.6)
    report.figure("history of all ÷ history of failures", ratios(kept, consumed), "×")
    report.at_most("client processor time", processor, 15, unit="µs/message")


async def _register(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        return await register(client)


def _consuming(where: Place, count: int, processor: list[float]) -> float:
    spent = in_process(_consume_async, where.url, count)
    processor.append(spent.processor / count * 1e6)
    return spent.wall


def _select(url: str, log: str, count: int) -> float:
    return asyncio.run(_select_pages(url, log, count))


async def _select_pages(url: str, log: str, count: int) -> float:
    query = f"""
        select id, payload, message_key, routing_key, options, schema_version, created_at
          from {log} where id > %s order by id limit {_PAGE}""".encode()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        raw_json(connection)
        cursor = connection.cursor(binary=True)
        started, last, seen = time.perf_counter(), 0, 0
        while seen < count:
            rows = await (await cursor.execute(query, [last])).fetchall()
            last, seen = rows[-1][0], seen + len(rows)
        return time.perf_counter() - started


def _consume_kept(url: str, count: int) -> Spent:
    return _consume_async(url, count, delivery_log="all")


def _consume_async(url: str, count: int, *, delivery_log: str = "failures") -> Spent:
    seen, done = 0, asyncio.Event()

    async def handle(order: Order) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    return asyncio.run(_consume(url, handle, done, delivery_log=delivery_log))


def _consume_plain(url: str, count: int) -> Spent:
    return asyncio.run(_consume_in_threads(url, count))


async def _consume_in_threads(url: str, count: int) -> Spent:
    seen, done, loop = 0, asyncio.Event(), asyncio.get_running_loop()

    def handle(order: Order) -> None:
        nonlocal seen
        seen += 1
        if seen >= count:  # two threads may meet in the line above, so that one is lost; more are waiting
            loop.call_soon_threadsafe(done.set)

    return await _consume(url, handle, done)


async def _consume(
    url: str,
    handle: Callable[[Order], Awaitable[None] | None],
    done: asyncio.Event,
    *,
    delivery_log: str = "failures",
) -> Spent:
    async with AsyncClient(url) as client:
        consumer = (
            await client.stream(STREAM, Order).consumer(f"group-{time.time_ns()}").register(delivery_log=delivery_log)
        )
        wall, processor = time.perf_counter(), time.process_time()
        running = asyncio.create_task(consumer.consume(handle, signals=False))
        await until(done, running)
        spent = Spent(time.perf_counter() - wall, time.process_time() - processor)
        await end(running)
        return spent


if __name__ == "__main__":
    main()
