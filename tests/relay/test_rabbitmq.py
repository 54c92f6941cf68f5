"""RabbitMQ: what becomes of messages that no queue takes, that it refuses, and that it is silent about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from sqlstreams import AsyncClient, AsyncStream, Message, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import RABBITMQ, Rabbitmq, a_place, behind_a_network, has_published, new_name
from tests.relay.conftest import relaying
from tests.support import eventually

Orders = AsyncStream[RawPayload]


@pytest.fixture
async def place() -> AsyncIterator[Rabbitmq]:
    async with a_place("rabbitmq") as broker:
        assert isinstance(broker, Rabbitmq)
        yield broker


async def test_a_message_that_no_queue_takes_is_charged_alone(
    client: AsyncClient, orders: Orders, place: Rabbitmq
) -> None:
    await orders.producer(max_retries=0).produce(RawPayload(b"1"), routing_key="nowhere")
    await orders.producer().produce(RawPayload(b"2"), routing_key="to.here")
    relay = Relay(client, "orders", f"amqp://{RABBITMQ}/?exchange={place.exchange}&routing_key={{routing_key}}")

    async with relaying(relay):
        await has_published(relay, 1)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    (dead,) = await relay.consumer.dead_letters()
    assert dead.id == 1
    assert "no queue takes the routing key 'nowhere'" in (dead.error or "")
    assert relay.stats.outages == 0


async def test_without_its_exchange_the_relay_waits(client: AsyncClient, orders: Orders, place: Rabbitmq) -> None:
    await orders.producer().produce(RawPayload(b"1"))
    later = Rabbitmq(RABBITMQ, exchange=new_name())
    relay = Relay(client, "orders", later.to)

    async with relaying(relay):
        await eventually(lambda: relay.stats.outages == 1)
        await later.create()
        await has_published(relay, 1)
    await later.destroy()

    assert (relay.stats.refused, relay.consumer.stats.failed) == (0, 0)


async def test_without_its_queue_the_relay_waits(client: AsyncClient, orders: Orders, place: Rabbitmq) -> None:
    await orders.producer().produce(RawPayload(b"1"))
    relay = Relay(client, "orders", f"amqp://{RABBITMQ}/?exchange={place.exchange}&routing_key=nowhere")

    async with relaying(relay):
        await eventually(lambda: relay.stats.outages == 1)

    assert (relay.stats.refused, relay.consumer.stats.failed) == (0, 0)


async def test_a_message_that_closes_the_channel_is_found_and_charged_alone(
    client: AsyncClient, orders: Orders, place: Rabbitmq
) -> None:
    messages = [Message(RawPayload(b"%d" % n)) for n in range(30)]
    messages[11] = Message(RawPayload(b"11"), headers={"CC": "must be a list"}, max_retries=0)
    await orders.producer().produce_many(messages)
    relay = Relay(client, "orders", place.to)

    async with relaying(relay):
        await has_published(relay, 29)
        await eventually(lambda: relay.consumer.stats.dead == 1)

    (dead,) = await relay.consumer.dead_letters()
    assert dead.id == 12
    assert (relay.stats.refused, relay.stats.published) == (1, 29)
    assert {int(each.payload) for each in await place.read(29)} == set(range(30)) - {11}


async def test_a_header_that_has_no_form_in_amqp_is_charged_alone(
    client: AsyncClient, orders: Orders, place: Rabbitmq
) -> None:
    await orders.producer(max_retries=0).produce(RawPayload(b"1"), headers={"h" * 300: "x"})
    relay = Relay(client, "orders", place.to)

    async with relaying(relay):
        await eventually(lambda: relay.consumer.stats.dead == 1)

    assert relay.stats.outages == 0


async def test_a_broker_that_is_silent_is_away(client: AsyncClient, orders: Orders) -> None:
    async with behind_a_network() as (network, place):
        relay = Relay(client, "orders", place.to, confirm_within=timedelta(milliseconds=300))
        async with relaying(relay):
            await orders.producer().produce(RawPayload(b"1"))
            await has_published(relay, 1)
            network.fall_silent()
            await orders.producer().produce(RawPayload(b"2"))
            await eventually(lambda: relay.stats.outages == 1)
            network.heal()
            await has_published(relay, 2)

        assert {int(each.payload) for each in await place.read(2)} == {1, 2}
    assert relay.consumer.stats.failed == 0
