"""Measure how fast a stream is relayed to each broker of this machine, beside a bare publisher of the same library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from _brokers import AT_A_TIME, BROKERS, present
from _measure import (
    Arguments,
    Place,
    Report,
    arguments,
    end,
    fill,
    orders,
    place,
    ratios,
    register,
    rounds,
    write_copy_file,
)

from sqlstreams import AsyncClient
from sqlstreams.relay import Relay

_KEYS = 1_000
_PATIENCE = 300.0


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    count = given.size(10_000, tiny=200)
    asyncio.run(_fill(where, count))
    here = present()
    absent = ", ".join(name for name in BROKERS if name not in here)
    report.sizes(messages=count, keys=_KEYS, on_their_way=AT_A_TIME, brokers_absent=absent or "none")
    for broker in here:
        _measure_broker(report, given, where, broker=broker, count=count)


def _measure_broker(report: Report, given: Arguments, where: Place, *, broker: str, count: int) -> None:
    contenders: dict[str, Callable[[], float]] = {
        f"{broker}: bare publisher": lambda: count / _bare(broker, count),
        f"{broker}: relay, order none": lambda: count / _relay(where.url, broker, "plain", count),
        f"{broker}: relay, order key": lambda: count / _relay(where.url, broker, "keyed", count),
    }
    found = rounds(where, contenders, count=given.rounds)
    for name, samples in found.items():
        report.figure(name, samples, "messages/s")
    bare, plain, keyed = found.values()
    report.figure(f"{broker}: order none ÷ bare", ratios(plain, bare), "×")
    report.figure(f"{broker}: order key ÷ bare", ratios(keyed, bare), "×")


async def _fill(where: Place, count: int) -> None:
    async with AsyncClient(where.url) as client:
        plain, keyed = await register(client, "plain"), await register(client, "keyed")
    payloads = orders(count)
    fill(where, plain, write_copy_file(where.directory, payloads), count=count, rows_in_file=count)
    where.execute("select sqlstreams.extend_log(%s, %s)", [int(keyed.rpartition("_")[2]), count])
    copied = f"select payload, 'key-' || id %% {_KEYS} from {plain} order by id limit %s"
    where.execute(f"insert into {keyed} (payload, message_key) {copied}", [count])


def _bare(broker: str, count: int) -> float:
    return asyncio.run(_publish_bare(broker, [msgspec.json.encode(order) for order in orders(count)]))


async def _publish_bare(broker: str, payloads: list[bytes]) -> float:
    async with BROKERS[broker][1]() as ground:
        started = time.perf_counter()
        await ground.publish(payloads)
        return time.perf_counter() - started


def _relay(url: str, broker: str, stream: str, count: int) -> float:
    return asyncio.run(_publish_by_relay(url, broker, stream, count))


async def _publish_by_relay(url: str, broker: str, stream: str, count: int) -> float:
    async with BROKERS[broker][1]() as ground, AsyncClient(url) as client:
        order = "key" if stream == "keyed" else "none"
        relay = Relay(client, stream, ground.to, group=f"relay-{time.time_ns()}", order=order)
        running = asyncio.create_task(relay.run(concurrency=AT_A_TIME, signals=False))
        await _until(lambda: relay.consumer.stats.claimed > 0, running)
        started = time.perf_counter()
        await _until(lambda: relay.stats.published >= count, running)
        spent = time.perf_counter() - started
        await end(running)
        return spent


async def _until(is_so: Callable[[], bool], running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not is_so() and not running.done():  # noqa: ASYNC110  # it counts, and tells nobody
            await asyncio.sleep(0.002)


if __name__ == "__main__":
    main()
