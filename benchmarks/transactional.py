"""Measure what it costs that a handler's write and the record of its delivery commit together, beside a bare loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

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
from msgspec import json

from sqlstreams import AsyncClient

_PAGE = 1_000
_AT_A_TIME = 10
_INSERT = b"insert into effects (number, customer) values (%s, %s)"


def main() -> None:
    given = arguments(str(__doc__), rounds=5)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    count = given.size(10_000, tiny=300)
    log = asyncio.run(_register(where))
    payloads = orders(count)
    fill(where, log, write_copy_file(where.directory, payloads), count=count, rows_in_file=count)
    where.execute("create table effects (number bigint, customer text)")
    report.sizes(messages=count, handlers_at_a_time=_AT_A_TIME)

    contenders: dict[str, Callable[[], float]] = {
        "bare loop: SELECT, then INSERT and commit": lambda: count / in_process(_bare, where.url, log, count),
        "consume, the handler commits its INSERT": lambda: count / in_process(_consume_plain, where.url, count),
        "consume, transactional": lambda: count / in_process(_consume_transactional, where.url, count),
        "consume, transactional, batches of 20": lambda: count / in_process(_consume_batches, where.url, count),
    }
    bare, plain, transactional, batched = (found := rounds(where, contenders, count=given.rounds)).values()
    for name, samples in found.items():
        report.figure(name, samples, "messages/s")
    report.figure("transactional ÷ bare loop", ratios(transactional, bare), "×")
    report.figure("in batches ÷ bare loop", ratios(batched, bare), "×")
    report.figure("transactional ÷ the handler commits", ratios(transactional, plain), "×")


async def _register(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        return await register(client)


# The least: as many connections as handlers, each takes the next message, writes and commits


def _bare(url: str, log: str, count: int) -> float:
    return asyncio.run(_bare_loops(url, log, count))


async def _bare_loops(url: str, log: str, count: int) -> float:
    connections = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(_AT_A_TIME)]
    raw_json(connections[0])
    started = time.perf_counter()
    rows: list[Any] = []
    last = 0
    while last < count:
        query = f"select id, payload from {log} where id > %s order by id limit {_PAGE}".encode()
        rows = await (await connections[0].execute(query, [last], binary=True)).fetchall()
        last = rows[-1][0]
        following = iter(rows)
        await asyncio.gather(*(_write(connection, following) for connection in connections))
    wall = time.perf_counter() - started
    for connection in connections:
        await connection.close()
    return wall


async def _write(connection: psycopg.AsyncConnection[Any], rows: Any) -> None:
    for _, payload in rows:
        order = json.decode(payload, type=Order)
        async with connection.transaction():
            await connection.execute(_INSERT, [order.number, order.customer])


# The library


def _consume_plain(url: str, count: int) -> float:
    return asyncio.run(_with_own_connections(url, count))


async def _with_own_connections(url: str, count: int) -> float:
    free = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(_AT_A_TIME)]
    all_of_them = list(free)

    async def handle(order: Order) -> None:
        connection = free.pop()
        async with connection.transaction():
            await connection.execute(_INSERT, [order.number, order.customer])
        free.append(connection)

    wall = await _consume(url, handle, count, transactional=False)
    for connection in all_of_them:
        await connection.close()
    return wall


def _consume_transactional(url: str, count: int) -> float:
    async def handle(order: Order, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(_INSERT, [order.number, order.customer])

    return asyncio.run(_consume(url, handle, count, transactional=True))


def _consume_batches(url: str, count: int) -> float:
    async def handle(batch: list[Order], connection: psycopg.AsyncConnection[Any]) -> None:
        async with connection.cursor() as cursor:
            await cursor.executemany(_INSERT, [(order.number, order.customer) for order in batch])

    return asyncio.run(_consume(url, handle, count, transactional=True, batch=20))


async def _consume(
    url: str, handle: Callable[..., Any], count: int, *, transactional: bool, batch: int | None = None
) -> float:
    async with AsyncClient(url) as client:
        consumer = await client.stream(STREAM, Order).consumer(f"group-{time.time_ns()}").register()
        done = asyncio.Event()
        taken = 0

        async def counted(payload: Any, *connection: Any) -> None:
            nonlocal taken
            await handle(payload, *connection)
            taken += 1 if batch is None else len(payload)
            if taken == count:
                done.set()

        started = time.perf_counter()
        running = asyncio.create_task(
            consumer.consume(counted, transactional=transactional, batch=batch, concurrency=_AT_A_TIME, signals=False)
        )
        await until(done, running)
        wall = time.perf_counter() - started
        await end(running)
        return wall


if __name__ == "__main__":
    main()
