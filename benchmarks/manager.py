"""Measure what a manager with nothing to do costs in statements and processor time, running and standing by."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from _measure import Arguments, Order, Place, Report, arguments, end, place
from msgspec import Struct

from sqlstreams import AsyncClient

# So many starting duties and polls are over by then.
_SETTLED = 3.0
_STREAMS = 20


class Cost(Struct, frozen=True):
    """Of each second."""

    statements: float
    processor: float


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given, shared_preload_libraries="pg_stat_statements") as where:
        where.execute("create extension pg_stat_statements")
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    seconds = given.size(60, tiny=2)
    asyncio.run(_register(where))
    report.sizes(seconds=seconds, streams=_STREAMS)
    ways: dict[str, Callable[[AsyncClient], Awaitable[None]]] = {
        "manager alone": lambda client: client.manager.run(signals=False),
        "consuming and manager": _consume,
    }
    for name, way in ways.items():
        costs = [asyncio.run(_cost(where, seconds, way)) for _ in range(given.rounds)]
        report.at_most(f"statements, {name}", [each.statements for each in costs], 1, unit="a second")
        report.figure(f"client processor, {name}", [each.processor for each in costs], "ms a second")
    standby = [asyncio.run(_standby(where, seconds)) for _ in range(given.rounds)]
    report.at_most("statements, holder and a standby", [each.statements for each in standby], 1, unit="a second")


async def _register(where: Place) -> None:
    async with AsyncClient(where.url) as client:
        for number in range(_STREAMS):
            stream = await client.stream(f"stream-{number}", Order).register()
            await stream.consumer("group").register()


async def _consume(client: AsyncClient) -> None:
    await client.stream("stream-0", Order).consumer("group").consume(_ignore, signals=False)


async def _ignore(order: Order) -> None:
    """Succeed."""


async def _cost(where: Place, seconds: float, way: Callable[[AsyncClient], Awaitable[None]]) -> Cost:
    async with AsyncClient(where.url) as client:
        running = asyncio.ensure_future(way(client))
        try:
            return await _look(where, seconds)
        finally:
            await end(running)


async def _standby(where: Place, seconds: float) -> Cost:
    async with AsyncClient(where.url) as first, AsyncClient(where.url) as second:
        tasks = [asyncio.create_task(each.manager.run(signals=False)) for each in (first, second)]
        try:
            return await _look(where, seconds)
        finally:
            await end(*tasks)


async def _look(where: Place, seconds: float) -> Cost:
    await asyncio.sleep(_SETTLED)
    statements, processor, began = _statements(where), time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    # Looking is the first thing that is not idling any more.
    spent, took = time.process_time() - processor, time.perf_counter() - began
    return Cost((_statements(where) - statements) / took, 1_000 * spent / took)


def _statements(where: Place) -> int:
    ((count,),) = where.execute(
        """select sum(calls)::bigint from pg_stat_statements s join pg_database d on d.oid = s.dbid
            where d.datname = current_database() and s.query not like '%pg_stat_statements%'"""
    )
    return int(count)


if __name__ == "__main__":
    main()
