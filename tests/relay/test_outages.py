"""A broker that is killed in the middle and comes back: nothing is lost, nothing is charged, repeats are counted."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from sqlstreams import AsyncClient, AsyncStream, Message, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import Broker, Killable, a_place, a_place_of_our_own, has_published
from tests.relay.conftest import relaying
from tests.support import eventually

Orders = AsyncStream[RawPayload]
COUNT = 300
FEW = 60
_RELAY = """
import asyncio, datetime, sys, sqlstreams, sqlstreams.relay
async def run():
    async with sqlstreams.AsyncClient(sys.argv[1], lease_ttl=datetime.timedelta(seconds=1)) as client:
        await sqlstreams.relay.Relay(client, "orders", sys.argv[2]).run(concurrency=5)
asyncio.run(run())
"""
QUICK = timedelta(seconds=1)


@pytest.mark.parametrize("name", ["nats", "redis", "rabbitmq", "kafka"])
async def test_a_broker_that_is_killed_in_the_middle_gets_every_message(
    client: AsyncClient, orders: Orders, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    hurried = orders.producer(timeout=timedelta(milliseconds=20))
    await hurried.produce_many([Message(RawPayload(b"%d" % n), key=f"k{n % 40}") for n in range(COUNT)])
    async with AsyncExitStack() as stack:
        server, broker = await stack.enter_async_context(a_place_of_our_own(name, tmp_path))
        relay = Relay(client, "orders", broker.to, confirm_within=QUICK)
        await stack.enter_async_context(relaying(relay, concurrency=25))

        await has_published(relay, COUNT // 4)
        await _kill_and_start(server, relay)
        await has_published(relay, COUNT)
        await _nothing_was_charged(relay)

        found = await broker.read(COUNT)
    times = Counter(int(each.payload) for each in found)
    assert set(times) == set(range(COUNT))
    assert times.total() - COUNT <= relay.stats.repeated
    _first_ones_are_in_order(broker, [(each.key, int(each.payload)) for each in found])
    told = [each.message for each in caplog.records if "SQL0140" in each.message]
    assert "does not take messages" in told[0]
    assert "takes messages again" in told[-1]


async def test_a_signal_does_not_wait_for_a_broker_that_is_away(
    client: AsyncClient, orders: Orders, tmp_path: Path
) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(10)])
    async with a_place_of_our_own("nats", tmp_path) as (server, broker):
        server.kill()
        relay = Relay(client, "orders", broker.to)
        running = asyncio.create_task(relay.run(grace=timedelta(minutes=5)))
        await eventually(lambda: relay.stats.outages == 1 and relay.consumer.stats.claimed == 10)
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await running

    status = await relay.consumer.status()
    assert (status.ready, status.dead, status.lag, relay.consumer.stats.failed) == (0, 0, 10, 0)


async def test_what_a_relay_had_not_written_down_when_it_was_killed_is_published_again_with_the_same_id(
    client: AsyncClient, orders: Orders, database_url: str, tmp_path: Path
) -> None:
    await orders.producer().produce_many([Message(RawPayload(b"%d" % n), key=f"k{n % 40}") for n in range(FEW)])
    async with a_place("redis") as broker:
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", _RELAY, database_url, broker.to)
        await broker.read(FEW // 4)
        killed.kill()
        await killed.wait()
        relay = Relay(client, "orders", broker.to)
        async with relaying(relay):
            await _nothing_was_charged(relay)
        found = await broker.read(FEW)

    times = Counter(int(each.payload) for each in found)
    assert set(times) == set(range(FEW))
    assert len({each.headers["sqlstreams-id"] for each in found}) == FEW
    _first_ones_are_in_order(broker, [(each.key, int(each.payload)) for each in found])


@pytest.mark.parametrize("name", ["nats", "redis"])
async def test_a_relay_that_is_stopped_while_its_broker_is_away_gives_back_at_once_and_uncharged(
    client: AsyncClient, orders: Orders, tmp_path: Path, name: str
) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(10)])
    async with a_place_of_our_own(name, tmp_path) as (server, broker):
        server.kill()
        relay = Relay(client, "orders", broker.to, confirm_within=QUICK)
        async with relaying(relay) as running:
            await eventually(lambda: relay.stats.outages >= 1 and relay.consumer.stats.claimed == 10)
            running.cancel()
            async with asyncio.timeout(5):
                await asyncio.wait([running])
        status = await relay.consumer.status()
        assert (status.ready, status.dead, status.lag, relay.consumer.stats.failed) == (0, 0, 10, 0)

        server.start()
        async with relaying(again := Relay(client, "orders", broker.to)):
            await has_published(again, 10)
        assert len(await broker.read(10)) == 10


async def _kill_and_start(server: Killable, relay: Relay) -> None:
    server.kill()
    await eventually(lambda: relay.stats.outages >= 1)
    server.start()


async def _nothing_was_charged(relay: Relay) -> None:
    async def is_done() -> bool:
        status = await relay.consumer.status()
        assert status.dead == 0
        return (status.lag, status.ready, status.inflight, status.deferred) == (0, 0, 0, 0)

    await eventually(is_done)
    assert (relay.consumer.stats.failed, relay.consumer.stats.delayed, relay.stats.refused) == (0, 0, 0)


def _first_ones_are_in_order(broker: Broker, found: list[tuple[str | None, int]]) -> None:
    seen: dict[str | None, int] = {}
    repeated: set[int] = set()
    for key, number in found:
        if number not in repeated:
            assert number > seen.get(key, -1), f"{broker.name} has {number} behind {seen[key]}"
            seen[key] = number
            repeated.add(number)
