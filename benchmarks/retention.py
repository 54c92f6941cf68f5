"""Measure how long producers wait for commits while old partitions are dropped beside a long reader of the log."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta

import psycopg
from _measure import STREAM, Arguments, Order, Place, Report, arguments, orders, percentile, place, ratios

from sqlstreams import AsyncClient, AsyncProducer, AsyncStream

_PARTITION = 1_000
_PAUSE = 0.002


def main() -> None:
    given = arguments(str(__doc__), rounds=1)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    seconds = given.size(120, tiny=4)
    report.sizes(seconds=seconds, ids_a_partition=_PARTITION)
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(given.rounds):
        for found, expiring in ((alone, False), (beside, True)):
            where.settle()
            found.append(percentile(asyncio.run(_produce(where, seconds, expiring=expiring)), 0.99))
    report.figure("commit p99, nothing else", alone, "ms")
    report.figure("commit p99, a reader and retention beside it", beside, "ms")
    report.figure("p99, beside ÷ alone", ratios(beside, alone), "×")


async def _produce(where: Place, seconds: float, *, expiring: bool) -> list[float]:
    """Return the milliseconds of each produce, one at a time, in a stream with partitions that are too old."""
    async with AsyncClient(where.url, manager=False) as client, AsyncExitStack() as stack:
        stream = await client.stream(STREAM, Order).register(partition_rows=_PARTITION, retention=timedelta(seconds=1))
        producer = stream.producer()
        for _ in range(30):
            await producer.produce_many(orders(100))
        if expiring:
            reader = await stack.enter_async_context(await psycopg.AsyncConnection.connect(where.url))
            await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            info = await stream.get()
            assert info is not None
            await reader.execute(f"select count(*) from sqlstreams.message_log_{info.id}".encode())
            return await _time_produces(producer, seconds, beside=stream)
        return await _time_produces(producer, seconds, beside=None)


async def _time_produces(
    producer: AsyncProducer[Order], seconds: float, *, beside: AsyncStream[Order] | None
) -> list[float]:
    retention = None if beside is None else asyncio.create_task(_expire(beside))
    taken, payloads, until = list[float](), orders(100), time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        await producer.produce(payloads[len(taken) % 100])
        taken.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(_PAUSE)
    if retention is not None:
        retention.cancel()
        await asyncio.gather(retention, return_exceptions=True)
    return taken


async def _expire(stream: AsyncStream[Order]) -> None:
    while True:
        await stream.expire()
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
