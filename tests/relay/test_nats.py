"""NATS: subjects from templates, and what becomes of a message that JetStream does not take."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest

from sqlstreams import AsyncClient, AsyncStream, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import Nats, a_place, has_published, new_name
from tests.relay.conftest import relaying
from tests.support import eventually

Orders = AsyncStream[RawPayload]


@pytest.fixture
async def place() -> AsyncIterator[Nats]:
    async with a_place("nats") as broker:
        assert isinstance(broker, Nats)
        yield broker


async def test_the_subject_is_made_from_the_message(client: AsyncClient, orders: Orders, place: Nats) -> None:
    await orders.producer().produce(RawPayload(b"1"), routing_key="eu.paid")
    await orders.producer().produce(RawPayload(b"2"))
    relay = Relay(client, "orders", place.to + ".{stream}.{routing_key|other}")

    async with relaying(relay):
        await has_published(relay, 2)

    assert await place.subjects() == [f"{place.subject}.orders.eu.paid", f"{place.subject}.orders.other"]


async def test_without_a_stream_for_its_one_subject_the_relay_waits(client: AsyncClient, orders: Orders) -> None:
    await orders.producer().produce(RawPayload(b"1"))
    async with a_place("nats") as found:
        assert isinstance(found, Nats)
        place = Nats(found.place, subject=new_name())
        relay = Relay(client, "orders", place.to)
        async with relaying(relay):
            await eventually(lambda: relay.stats.outages == 1)
            await place.create()
            await has_published(relay, 1)
        await place.destroy()

    assert (relay.stats.refused, relay.consumer.stats.failed) == (0, 0)


@pytest.mark.parametrize(
    ("routing_key", "said"),
    [
        ("nowhere", "no stream of JetStream takes the subject"),
        ("a b", "is no subject of NATS"),
        (None, "has no routing_key"),
    ],
)
async def test_a_message_that_has_nowhere_to_go_is_charged_alone(
    client: AsyncClient, orders: Orders, place: Nats, routing_key: str | None, said: str
) -> None:
    await orders.producer(max_retries=0).produce(RawPayload(b"1"), routing_key=routing_key)
    await orders.producer().produce(RawPayload(b"2"), routing_key=f"{place.subject}.there")
    relay = Relay(client, "orders", f"nats://{place.place}/{{routing_key}}")

    async with relaying(relay):
        await has_published(relay, 1)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    (dead,) = await relay.consumer.dead_letters()
    assert dead.id == 1
    assert said in (dead.error or "")
    assert relay.stats.outages == 0


async def test_a_message_that_is_too_large_is_charged_alone(client: AsyncClient, orders: Orders, place: Nats) -> None:
    connection = await nats.connect(f"nats://{place.place}")
    most = connection.max_payload
    await connection.close()
    await orders.register(max_payload=2 * most)
    await orders.producer(max_retries=0).produce_many(
        [RawPayload(b'"%s"' % (b"x" * (most - 2))), RawPayload(b'"%s"' % (b"x" * (most - 1_000)))]
    )
    relay = Relay(client, "orders", place.to)

    async with relaying(relay):
        await has_published(relay, 1)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    (dead,) = await relay.consumer.dead_letters()
    assert dead.id == 1
    assert f"NATS takes {most}" in (dead.error or "")
