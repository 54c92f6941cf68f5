"""Measure how fast messages are appended, beside the server's own COPY of a file into the same table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import LiteralString

import msgspec
import psycopg
from _measure import (
    STREAM,
    Arguments,
    Order,
    Place,
    Report,
    arguments,
    atimed,
    orders,
    place,
    ratios,
    register,
    rounds,
    run_async,
    timed,
    write_copy_file,
)

from sqlstreams import AsyncClient, AsyncProducer, Client

_BATCH = 1_000
_CONCURRENT = 256
_THREADS = 32
_MANY: LiteralString = """
    select count(*)
      from (select json_agg(json_build_object('payload', p)) as messages from unnest(%s::json[]) as p) as m,
           sqlstreams.produce_many(%s, m.messages)
"""
_ONE: LiteralString = """
    select count(sqlstreams.produce(s.name, p))
      from (select %s::json[] as payloads, %s as name) as s, unnest(s.payloads) as p
"""


def main() -> None:
    given = arguments(str(__doc__), rounds=5)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    many, few = given.size(50_000, tiny=2_000), given.size(2_000, tiny=100)
    payloads = orders(many)
    log = run_async(_register(where))
    whole = write_copy_file(where.directory, payloads)
    parts = _write_parts(where.directory, payloads)
    report.sizes(messages=many, one_at_a_time=few, payload="1000 bytes of JSON")

    def rate(seconds: float, count: int = many) -> float:
        return count / seconds

    contenders: dict[str, Callable[[], float]] = {
        "server-side COPY, one transaction": lambda: rate(timed(lambda: _copy(where, log, [whole]))),
        "server-side COPY, 1,000 a transaction": lambda: rate(timed(lambda: _copy(where, log, parts))),
        "produce_many, 1,000 a batch": lambda: rate(run_async(_batches(where, payloads))),
        "produce_many, 4 batches at a time": lambda: rate(run_async(_batches(where, payloads, at_a_time=4))),
        "produce, 256 at a time": lambda: rate(run_async(_concurrently(where, payloads))),
        "produce, 32 threads, blocking": lambda: rate(_in_threads(where, payloads[: many // 2]), many // 2),
        "sqlstreams.produce_many(…) from SQL, 1,000 a call": lambda: rate(_from_sql(where, _MANY, payloads)),
        "sqlstreams.produce(…) from SQL, 1,000 a transaction": lambda: rate(_from_sql(where, _ONE, payloads)),
        "produce, one at a time": lambda: rate(run_async(_one_by_one(where, payloads[:few])), few),
    }
    copied, _, batched, overlapping, concurrent, _, many_in_sql, one_in_sql, single = (
        found := rounds(where, contenders, count=given.rounds)
    ).values()
    for name, samples in found.items():
        report.figure(name, samples, "messages/s")
    report.at_least("produce_many ÷ COPY", ratios(batched, copied), 0.85)
    report.at_least("produce_many, 4 batches at a time ÷ COPY", ratios(overlapping, copied), 0.85)
    report.at_least("256 at a time ÷ COPY", ratios(concurrent, copied), 0.6)
    report.figure("sqlstreams.produce_many(…) ÷ produce_many", ratios(many_in_sql, batched), "×")
    report.figure("sqlstreams.produce(…) ÷ produce_many", ratios(one_in_sql, batched), "×")
    report.figure("256 at a time ÷ produce_many", ratios(concurrent, batched), "×")
    report.at_least("256 at a time ÷ one at a time", ratios(concurrent, single), 20)


async def _register(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        return await register(client)


def _write_parts(directory: Path, payloads: Sequence[Order]) -> list[Path]:
    paths = []
    for start in range(0, len(payloads), _BATCH):
        (directory / str(start)).mkdir()
        (directory / str(start)).chmod(0o755)
        paths.append(write_copy_file(directory / str(start), payloads[start : start + _BATCH]))
    return paths


def _copy(where: Place, log: str, paths: Sequence[Path]) -> None:
    with psycopg.connect(where.url, autocommit=True) as connection:
        for path in paths:
            connection.execute(f"copy {log} (payload) from '{path}'".encode())


async def _batches(where: Place, payloads: Sequence[Order], *, at_a_time: int = 1) -> float:
    async with AsyncClient(where.url) as client:
        producer = await _producer(client)
        waiting = iter([payloads[start : start + _BATCH] for start in range(0, len(payloads), _BATCH)])
        return await atimed(asyncio.gather(*(_produce_batches(producer, waiting) for _ in range(at_a_time))))


async def _produce_batches(producer: AsyncProducer[Order], waiting: Iterator[Sequence[Order]]) -> None:
    for batch in waiting:
        await producer.produce_many(batch)


async def _concurrently(where: Place, payloads: Sequence[Order]) -> float:
    async with AsyncClient(where.url) as client:
        producer = await _producer(client)
        waiting = iter(payloads)
        return await atimed(asyncio.gather(*(_produce(producer, waiting) for _ in range(_CONCURRENT))))


async def _produce(producer: AsyncProducer[Order], waiting: Iterator[Order]) -> None:
    for payload in waiting:
        await producer.produce(payload)


async def _one_by_one(where: Place, payloads: Sequence[Order]) -> float:
    async with AsyncClient(where.url) as client:
        producer = await _producer(client)
        return await atimed(_produce(producer, iter(payloads)))


async def _producer(client: AsyncClient) -> AsyncProducer[Order]:
    producer = await client.stream(STREAM, Order).producer().register()
    await producer.produce_many(orders(10))
    return producer


def _from_sql(where: Place, query: LiteralString, payloads: Sequence[Order]) -> float:
    texts = [msgspec.json.encode(payload).decode() for payload in payloads]
    with psycopg.connect(where.url, autocommit=True) as connection:

        def produce() -> None:
            for start in range(0, len(texts), _BATCH):
                connection.execute(query, [texts[start : start + _BATCH], STREAM])

        return timed(produce)


def _in_threads(where: Place, payloads: Sequence[Order]) -> float:
    with Client(where.url) as client, ThreadPoolExecutor(_THREADS) as pool:
        producer = client.stream(STREAM, Order).producer().register()
        producer.produce_many(orders(10))
        return timed(lambda: list(pool.map(producer.produce, payloads)))


if __name__ == "__main__":
    main()
