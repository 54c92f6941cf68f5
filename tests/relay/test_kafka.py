"""Kafka: topics from templates, settings of the library, and what becomes of what it does not take."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sqlstreams import AsyncClient, AsyncStream, InvalidInput, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import Kafka, a_place, has_published
from tests.relay.conftest import relaying
from tests.support import eventually

Orders = AsyncStream[RawPayload]


@pytest.fixture
async def place() -> AsyncIterator[Kafka]:
    async with a_place("kafka") as broker:
        assert isinstance(broker, Kafka)
        yield broker


async def test_the_topic_is_made_from_the_message(client: AsyncClient, orders: Orders, place: Kafka) -> None:
    await orders.producer(max_retries=0).produce(RawPayload(b"1"), routing_key="eu/paid")
    await orders.producer().produce(RawPayload(b"2"), routing_key="eu.paid")
    relay = Relay(client, "orders", f"kafka://{place.hosts}/{{routing_key}}")

    async with relaying(relay):
        await has_published(relay, 1)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    (dead,) = await relay.consumer.dead_letters()
    assert dead.id == 1
    assert "is no topic of Kafka" in (dead.error or "")
    assert [each.payload for each in await Kafka(place.hosts, topic="eu.paid").read(1)] == [b"2"]


async def test_a_message_that_is_too_large_is_charged_alone(client: AsyncClient, orders: Orders, place: Kafka) -> None:
    await orders.producer(max_retries=0).produce(RawPayload(b'"%s"' % (b"x" * 3_000)))
    await orders.producer().produce(RawPayload(b"2"))
    relay = Relay(client, "orders", place.to + "?message.max.bytes=2000")

    async with relaying(relay):
        await has_published(relay, 1)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    assert [each.id for each in await relay.consumer.dead_letters()] == [1]
    assert relay.stats.outages == 0


async def test_a_setting_that_the_library_does_not_know_ends_the_relay(
    client: AsyncClient, orders: Orders, place: Kafka
) -> None:
    relay = Relay(client, "orders", place.to + "?no.such.setting=1")

    with pytest.raises(InvalidInput, match=r"no\.such\.setting"):
        await relay.run(signals=False)
