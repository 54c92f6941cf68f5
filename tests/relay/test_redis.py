"""Redis: names from templates, marks against duplicates, trimming, and what becomes of what it does not take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from sqlstreams import AsyncClient, AsyncStream, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import Redis, a_place, has_published
from tests.relay.conftest import relaying
from tests.support import eventually

Orders = AsyncStream[RawPayload]
FAST = timedelta(milliseconds=200)


@pytest.fixture
async def place() -> AsyncIterator[Redis]:
    async with a_place("redis") as broker:
        assert isinstance(broker, Redis)
        yield broker


async def test_a_mark_keeps_a_message_from_being_added_again(client: AsyncClient, orders: Orders, place: Redis) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(10)])
    relay = Relay(client, "orders", place.to + "&deduplicate=60")
    async with relaying(relay):
        await has_published(relay, 10)

    await relay.consumer.rewind("beginning")
    async with relaying(relay):
        await has_published(relay, 20)

    assert [int(each.payload) for each in await place.read(10)] == list(range(10))


async def test_without_marks_a_message_that_is_published_again_has_the_same_id(
    client: AsyncClient, orders: Orders, place: Redis
) -> None:
    await orders.producer().produce(RawPayload(b"1"))
    relay = Relay(client, "orders", place.to)
    async with relaying(relay):
        await has_published(relay, 1)

    await relay.consumer.rewind("beginning")
    async with relaying(relay):
        await has_published(relay, 2)

    first, second = await place.read(2)
    assert first.headers["sqlstreams-id"] == second.headers["sqlstreams-id"]


async def test_a_stream_is_trimmed_near_its_length(client: AsyncClient, orders: Orders, place: Redis) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(1_000)])
    relay = Relay(client, "orders", place.to + "&maxlen=100")

    async with relaying(relay):
        await has_published(relay, 1_000)

    assert 100 <= len(await place.read(100)) < 400


async def test_with_too_few_replicas_the_relay_waits(client: AsyncClient, orders: Orders, place: Redis) -> None:
    await orders.producer().produce(RawPayload(b"1"))
    relay = Relay(client, "orders", place.to + "&replicas=1", confirm_within=FAST)

    async with relaying(relay):
        await eventually(lambda: relay.stats.repeated >= 1)

    assert (relay.stats.published, relay.consumer.stats.failed) == (0, 0)


async def test_a_name_that_is_something_else_is_charged_when_each_message_names_its_own(
    client: AsyncClient, orders: Orders, place: Redis
) -> None:
    await place.occupy("text")
    await orders.producer(max_retries=0).produce(RawPayload(b"1"), key="text")
    await orders.producer().produce(RawPayload(b"2"), key="free")
    relay = Relay(client, "orders", place.to + "-{key}")

    async with relaying(relay):
        await has_published(relay, 1)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    (dead,) = await relay.consumer.dead_letters()
    assert dead.id == 1
    assert "WRONGTYPE" in (dead.error or "")
