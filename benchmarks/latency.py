"""Measure how long after a commit the handler starts, at 200 messages/s from another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
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
    percentile,
    place,
    processes,
    raw_json,
    register,
    until,
)
from msgspec import Struct

from sqlstreams import AsyncClient

_PER_SECOND = 200
# The first messages meet connections that are still to be opened.
_WARM_UP = 40
# The port is closed, so that no notification is ever heard.
_NOBODY = "postgresql://127.0.0.1:1/nobody?connect_timeout=1"


class Sent(Struct, frozen=True):
    """When producing a message was begun and when its commit had returned, in ns of the host's clock."""

    called: int
    returned: int


class Task(Struct, frozen=True):
    """What both processes of a measurement need to know. `listen_url` None means the database's."""

    url: str
    log: str
    count: int
    ready: Path
    listen_url: str | None = None


Send = Callable[[Task], list[Sent]]
Receive = Callable[[Task], dict[int, int]]
"""Returns when the handler of each message started, by the message's number, in ns of the host's clock."""


class Latencies(Struct, frozen=True):
    """Milliseconds until the handler started, of each message."""

    since_call: list[float]
    since_commit: list[float]


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    count = given.size(1_600, tiny=200)
    report.sizes(messages=count, messages_per_second=_PER_SECOND)
    log = asyncio.run(_register(where))
    contenders: dict[str, Callable[[], Latencies]] = {
        "notified": lambda: _latencies(_produce, _consume, _task(where, log, count)),
        "polling alone": lambda: _latencies(_produce, _consume, _task(where, log, count, listen_url=_NOBODY)),
        "bare NOTIFY and SELECT": lambda: _latencies(_insert, _listen, _task(where, log, count)),
    }
    found: dict[str, list[Latencies]] = {name: [] for name in contenders}
    for _ in range(given.rounds):
        for name, latencies in contenders.items():
            where.settle()
            found[name].append(latencies())
    for name, measured in found.items():
        _tell(report, name, measured)


def _tell(report: Report, name: str, measured: list[Latencies]) -> None:
    for part, most in ((0.5, 2), (0.99, 10)):
        since_commit = [percentile(each.since_commit, part) for each in measured]
        since_call = [percentile(each.since_call, part) for each in measured]
        title = f"{name}, p{part * 100:.0f} since the commit returned"
        if name == "notified":
            report.at_most(title, since_commit, most, unit="ms")
        else:
            report.figure(title, since_commit, "ms")
        report.figure(f"{name}, p{part * 100:.0f} since it was begun", since_call, "ms")


async def _register(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        return await register(client)


def _task(where: Place, log: str, count: int, *, listen_url: str | None = None) -> Task:
    return Task(where.url, log, count, where.directory / f"ready-{time.time_ns()}", listen_url)


def _latencies(send: Send, receive: Receive, task: Task) -> Latencies:
    with processes(2) as start:
        receiving = start(receive, task)
        sent = start(send, task).result()
        started = receiving.result()
    measured = [(each, started[number]) for number, each in enumerate(sent)][_WARM_UP:]
    return Latencies(
        since_call=[(at - each.called) / 1e6 for each, at in measured],
        since_commit=[(at - each.returned) / 1e6 for each, at in measured],
    )


# The library


def _produce(task: Task) -> list[Sent]:
    _until_exists(task.ready)
    return asyncio.run(_produce_at_pace(task))


async def _produce_at_pace(task: Task) -> list[Sent]:
    async with AsyncClient(task.url) as client:
        producer = await client.stream(STREAM, Order).producer().register()
        sent, began = [], time.monotonic()
        for order in orders(task.count):
            await asyncio.sleep(began + order.number / _PER_SECOND - time.monotonic())
            called = time.time_ns()
            await producer.produce(order)
            sent.append(Sent(called, time.time_ns()))
        return sent


def _consume(task: Task) -> dict[int, int]:
    return asyncio.run(_consume_all(task))


async def _consume_all(task: Task) -> dict[int, int]:
    starts: dict[int, int] = {}
    done = asyncio.Event()

    async def handle(order: Order) -> None:
        starts[order.number] = time.time_ns()
        if order.number < 0:
            task.ready.touch()
        if order.number == task.count - 1:
            done.set()

    async with AsyncClient(task.url, listen_url=task.listen_url) as client:
        stream = client.stream(STREAM, Order)
        consumer = await stream.consumer(f"group-{time.time_ns()}").register(start="head")
        running = asyncio.create_task(consumer.consume(handle, signals=False))
        await stream.producer().produce(msgspec.structs.replace(orders(1)[0], number=-1))
        await until(done, running)
        await end(running)
    return starts


def _until_exists(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


# The least that can be done with PostgreSQL: one connection inserts and notifies, another listens and selects


def _insert(task: Task) -> list[Sent]:
    _until_exists(task.ready)
    with psycopg.connect(task.url, autocommit=True) as connection:
        sent, began = [], time.monotonic()
        for order in orders(task.count):
            time.sleep(max(0.0, began + order.number / _PER_SECOND - time.monotonic()))
            payload = msgspec.json.encode(order)
            called = time.time_ns()
            connection.execute(f"insert into {task.log} (payload) values (%s::json)".encode(), [payload.decode()])
            sent.append(Sent(called, time.time_ns()))
            connection.execute(b"notify bare")
        return sent


def _listen(task: Task) -> dict[int, int]:
    starts: dict[int, int] = {}
    with psycopg.connect(task.url, autocommit=True) as listening, psycopg.connect(task.url, autocommit=True) as reading:
        raw_json(reading)
        found = reading.execute(f"select coalesce(max(id), 0) from {task.log}".encode()).fetchone()
        last = found[0] if found else 0
        listening.execute(b"listen bare")
        task.ready.touch()
        query = f"select id, payload from {task.log} where id > %s order by id limit 1000".encode()
        for _ in listening.notifies():
            for message_id, payload in reading.execute(query, [last], binary=True):
                order = msgspec.json.decode(payload, type=Order)
                starts[order.number] = time.time_ns()
                last = message_id
            if len(starts) == task.count:
                return starts
    raise AssertionError("the connection ended")


if __name__ == "__main__":
    main()
