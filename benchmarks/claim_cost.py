"""Measure what a long log, many groups and waiting messages cost: claims, WAL, idle statements and memory."""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections.abc import Awaitable, Callable

from _measure import (
    PAYLOAD_BYTES,
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
    percentile,
    place,
    ratios,
    register,
    rounds,
    until,
    write_copy_file,
)
from msgspec import Struct

from sqlstreams import AsyncClient, AsyncProducer

_LONG, _SHORT = STREAM, "short"
_GROUPS = 50
# So few that the claim, not its messages, is what takes the time.
_CLAIM = 10
_IDLE_FIRST = 3.0


class Claims(Struct, frozen=True):
    """Milliseconds from claim to claim."""

    p50: float
    p99: float


def main() -> None:
    given = arguments(str(__doc__), rounds=5)
    with place(given, shared_preload_libraries="pg_stat_statements") as where:
        where.execute("create extension pg_stat_statements")
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    short, long = 10_000, given.size(2_000_000, tiny=50_000)
    logs = asyncio.run(_register(where))
    copy_file = write_copy_file(where.directory, orders(10_000))
    for log, count in zip(logs, (long, short), strict=True):
        fill(where, log, copy_file, count=count, rows_in_file=10_000)
    report.sizes(short_log=short, long_log=long, groups=_GROUPS, messages_a_claim=_CLAIM)
    _measure_claims(report, given, where, long=long)
    _measure_memory(report, given, where, waiting=long)
    _measure_wal(report, given, where)
    _measure_idle(report, given, where)


async def _register(where: Place) -> list[str]:
    async with AsyncClient(where.url) as client:
        # The long log has partitions as it would have in use.
        return [await register(client, _LONG, partition_rows=1_000_000), await register(client, _SHORT)]


# Claims


def _measure_claims(report: Report, given: Arguments, where: Place, *, long: int) -> None:
    claims = given.size(900, tiny=200)
    found: dict[str, list[Claims]] = {"short log": [], "long log": [], "long log, 50 groups": []}

    def claiming(name: str, *, stream: str, after: int, groups: int) -> Callable[[], float]:
        def once() -> float:
            found[name].append(in_process(_claim, where.url, stream, after, claims, groups))
            return found[name][-1].p50

        return once

    contenders = {
        "short log": claiming("short log", stream=_SHORT, after=0, groups=1),
        "long log": claiming("long log", stream=_LONG, after=long // 2, groups=1),
        "long log, 50 groups": claiming("long log, 50 groups", stream=_LONG, after=long // 2, groups=_GROUPS),
    }
    rounds(where, contenders, count=given.rounds)
    for name, measured in found.items():
        report.figure(f"claim to claim p50, {name}", [each.p50 for each in measured], "ms")
        report.figure(f"claim to claim p99, {name}", [each.p99 for each in measured], "ms")
    one, of_long, of_many = ([each.p50 for each in measured] for measured in found.values())
    report.figure("p50, long log ÷ short log", ratios(of_long, one), "×")
    report.figure("p50, 50 groups ÷ 1 group", ratios(of_many, of_long), "×")
    one, of_long, of_many = ([each.p99 for each in measured] for measured in found.values())
    report.at_most("p99, long log ÷ short log", ratios(of_long, one), 1.3)
    report.at_most("p99, 50 groups ÷ 1 group", ratios(of_many, of_long), 1.3)


def _claim(url: str, stream: str, after: int, claims: int, groups: int) -> Claims:
    return asyncio.run(_time_claims(url, stream, after, claims, groups))


async def _time_claims(url: str, stream: str, after: int, claims: int, groups: int) -> Claims:
    """Time one group's claims from handler call to handler call, while the other groups are consumed and idle."""
    seen, times, done = 0, list[float](), asyncio.Event()

    async def handle(order: Order) -> None:
        nonlocal seen
        seen += 1
        if seen % _CLAIM == 1:
            times.append(time.perf_counter())
        if len(times) > claims:
            done.set()

    async with AsyncClient(url) as client:
        busy = await client.stream(stream, Order).consumer(f"busy-{time.time_ns()}").register(start=after)
        tasks = await _consume_idly(client, stream, groups - 1)
        tasks.append(asyncio.create_task(busy.consume(handle, concurrency=1, prefetch=_CLAIM, signals=False)))
        await until(done, tasks[-1])
        await end(*tasks)
    took = [(after - before) * 1e3 for before, after in itertools.pairwise(times)]
    return Claims(percentile(took, 0.5), percentile(took, 0.99))


async def _consume_idly(client: AsyncClient, stream: str, groups: int) -> list[asyncio.Task[None]]:
    tasks = []
    for number in range(groups):
        consumer = await client.stream(stream, Order).consumer(f"idle-{number}").register(start="head")
        tasks.append(asyncio.create_task(consumer.consume(_do_nothing, signals=False)))
    return tasks


async def _do_nothing(order: Order) -> None:
    return None


# Memory


def _measure_memory(report: Report, given: Arguments, where: Place, *, waiting: int) -> None:
    handled = given.size(100_000, tiny=5_000)
    found = [in_process(_consume_some, where.url, handled) for _ in range(given.rounds)]
    report.at_most(f"memory of a consumer with {waiting:,} waiting", found, 150, unit="MiB")


def _consume_some(url: str, count: int) -> float:
    asyncio.run(_consume_from_the_beginning(url, count))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _consume_from_the_beginning(url: str, count: int) -> None:
    seen, done = 0, asyncio.Event()

    async def handle(order: Order) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    async with AsyncClient(url) as client:
        consumer = await client.stream(_LONG, Order).consumer(f"memory-{time.time_ns()}").register()
        task = asyncio.create_task(consumer.consume(handle, signals=False))
        await until(done, task)
        await end(task)


# WAL


def _measure_wal(report: Report, given: Arguments, where: Place) -> None:
    payloads = orders(given.size(20_000, tiny=2_000))

    async def batches(producer: AsyncProducer[Order]) -> None:
        for start in range(0, len(payloads), 1_000):
            await producer.produce_many(payloads[start : start + 1_000])

    async def concurrently(producer: AsyncProducer[Order]) -> None:
        await asyncio.gather(*(producer.produce(payload) for payload in payloads))

    for name, produce in (("produce_many, 1,000 a batch", batches), ("concurrent produce", concurrently)):
        written = [asyncio.run(_wal_of(where, produce)) for _ in range(given.rounds)]
        per_byte = [each / len(payloads) / PAYLOAD_BYTES for each in written]
        report.at_most(f"WAL ÷ payload, {name}", per_byte, 1.25)


async def _wal_of(where: Place, produce: Callable[[AsyncProducer[Order]], Awaitable[None]]) -> int:
    async with AsyncClient(where.url) as client:
        producer = await client.stream(_LONG, Order).producer().register()
        await producer.produce_many(orders(10))
        before = _wal(where)
        await produce(producer)
        return _wal(where) - before


def _wal(where: Place) -> int:
    ((position,),) = where.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
    return int(position)


# Idling


def _measure_idle(report: Report, given: Arguments, where: Place) -> None:
    seconds = given.size(15, tiny=3)
    found = [asyncio.run(_idle(where, seconds)) for _ in range(min(given.rounds, 2))]
    report.at_most("statements of an idle process with 50 groups", found, 1, unit="a second")


async def _idle(where: Place, seconds: float) -> float:
    async with AsyncClient(where.url) as client:
        tasks = await _consume_idly(client, _SHORT, _GROUPS)
        await asyncio.sleep(_IDLE_FIRST)
        before, began = _statements(where), time.perf_counter()
        await asyncio.sleep(seconds)
        counted, took = _statements(where) - before, time.perf_counter() - began
        await end(*tasks)
    return counted / took


def _statements(where: Place) -> int:
    ((count,),) = where.execute(
        """select sum(calls)::bigint from pg_stat_statements s join pg_database d on d.oid = s.dbid
            where d.datname = current_database() and s.query not like '%pg_stat_statements%'"""
    )
    return int(count)


if __name__ == "__main__":
    main()
