"""Measure how many messages are produced and consumed at once with a flat backlog, beside COPY alone."""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from _measure import (
    STREAM,
    Arguments,
    Order,
    Place,
    Report,
    arguments,
    end,
    orders,
    place,
    processes,
    ratios,
    register,
    rounds,
    until,
    write_copy_file,
)
from msgspec import Struct

from sqlstreams import AsyncClient, AsyncProducer

_BATCH = 1_000
# The producer waits while more than this is waiting to be consumed.
_BACKLOG = 20_000
_WARM_UP = 1.0


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    seconds, copied = given.size(10, tiny=1), given.size(50_000, tiny=2_000)
    log = asyncio.run(_register(where))
    copy_file = write_copy_file(where.directory, orders(copied))
    report.sizes(seconds=seconds, copied=copied, most_waiting=_BACKLOG)

    backlogs: list[float] = []

    def together(in_flight: int) -> Callable[[], float]:
        return lambda: _together(where, seconds, in_flight, backlogs)

    contenders: dict[str, Callable[[], float]] = {
        "server-side COPY alone": lambda: _copy(where, log, copy_file, copied, seconds),
        "produced and consumed, one batch at a time": together(1),
        "produced and consumed, two batches at a time": together(2),
    }
    found = rounds(where, contenders, count=given.rounds)
    copy, one, two = found.values()
    for name, samples in found.items():
        report.figure(name, samples, "messages/s")
    report.figure("waiting at the end", backlogs, "messages")
    report.at_least("together ÷ COPY, one batch at a time", ratios(one, copy), 0.75)
    report.at_least("together ÷ COPY, two batches at a time", ratios(two, copy), 0.75)


async def _register(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        return await register(client)


def _copy(where: Place, log: str, copy_file: Path, rows: int, seconds: float) -> float:
    """Return how many messages a second one connection appends when it does nothing else for as long."""
    began, copied = time.perf_counter(), 0
    with psycopg.connect(where.url, autocommit=True) as connection:
        while time.perf_counter() - began < seconds:
            connection.execute(f"copy {log} (payload) from '{copy_file}'".encode())
            copied += rows
    return copied / (time.perf_counter() - began)


def _together(where: Place, seconds: float, in_flight: int, backlogs: list[float]) -> float:
    """Return how many messages a second were both produced and consumed."""
    board = where.directory / f"board-{time.time_ns()}"
    board.write_bytes(bytes(_Board.SIZE))
    with processes(2) as start:
        consuming = start(_consume, where.url, board, seconds)
        start(_produce, where.url, board, in_flight).result()
        window: _Window = consuming.result()
    backlogs.append(window.waiting)
    return min(window.produced, window.consumed) / seconds


class _Window(Struct, frozen=True):
    """How many messages were produced and consumed in it, and how many were waiting at its end."""

    produced: float
    consumed: float
    waiting: int


class _Board:
    """What two processes tell each other, in a file that both have mapped."""

    SIZE = 24

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._values = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("q")

    produced = property(lambda self: self._values[0], lambda self, count: self._values.__setitem__(0, count))
    consumed = property(lambda self: self._values[1], lambda self, count: self._values.__setitem__(1, count))
    ended = property(lambda self: self._values[2], lambda self, so: self._values.__setitem__(2, so))


def _produce(url: str, path: Path, in_flight: int) -> None:
    asyncio.run(_produce_until_ended(url, _Board(path), in_flight))


async def _produce_until_ended(url: str, board: _Board, in_flight: int) -> None:
    payloads = orders(_BATCH)
    async with AsyncClient(url) as client:
        producer = await client.stream(STREAM, Order).producer().register()
        await asyncio.gather(*(_keep_producing(producer, payloads, board) for _ in range(in_flight)))


async def _keep_producing(producer: AsyncProducer[Order], payloads: list[Order], board: _Board) -> None:
    while not board.ended:
        if board.produced - board.consumed > _BACKLOG:
            await asyncio.sleep(0.001)
            continue
        await producer.produce_many(payloads)
        board.produced += len(payloads)


def _consume(url: str, path: Path, seconds: float) -> _Window:
    return asyncio.run(_consume_for(url, _Board(path), seconds))


async def _consume_for(url: str, board: _Board, seconds: float) -> _Window:
    consumed, begun = 0, asyncio.Event()

    async def handle(order: Order) -> None:
        nonlocal consumed
        consumed += 1
        if consumed % 100 == 0:
            board.consumed = consumed
            begun.set()

    async with AsyncClient(url) as client:
        consumer = await client.stream(STREAM, Order).consumer(f"group-{time.time_ns()}").register(start="head")
        running = asyncio.create_task(consumer.consume(handle, signals=False))
        await until(begun, running)
        await asyncio.sleep(_WARM_UP)
        before, consumed_before, began = board.produced, consumed, time.perf_counter()
        await asyncio.sleep(seconds)
        scale = seconds / (time.perf_counter() - began)
        window = _Window(
            (board.produced - before) * scale, (consumed - consumed_before) * scale, board.produced - consumed
        )
        board.ended = 1
        await end(running)
    return window


if __name__ == "__main__":
    main()
