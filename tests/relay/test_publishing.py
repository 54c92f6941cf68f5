"""What every broker gets: each message once it is confirmed, whole, with an id that stays, and in order."""

from __future__ import annotations

from sqlstreams import AsyncClient, AsyncStream, Message, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import Broker, has_published
from tests.relay.conftest import relaying
from tests.support import eventually

Orders = AsyncStream[RawPayload]


async def test_a_message_travels_whole(client: AsyncClient, orders: Orders, broker: Broker) -> None:
    payload = RawPayload('{"a" :  [1.50, "é\\u00e9"]}'.encode())
    headers = {"traceparent": "00-4bf92f", "Tenant": "north west"}
    receipt = await orders.producer().produce(payload, key="k 1", routing_key="eu.paid", headers=headers)
    relay = Relay(client, "orders", broker.to)

    async with relaying(relay):
        await has_published(relay, 1)

    (found,) = await broker.read(1)
    assert found.payload == payload
    assert {name: found.headers[name] for name in headers} == headers
    told = {name: value for name, value in found.headers.items() if name.startswith("sqlstreams-")}
    assert told.pop("sqlstreams-id").count(f"-{receipt.id}-") == 1
    assert told.pop("sqlstreams-created-at").endswith("+00:00")
    assert told == {
        "sqlstreams-stream": "orders",
        "sqlstreams-key": "k 1",
        "sqlstreams-routing-key": "eu.paid",
        "sqlstreams-schema-version": "1",
    }


async def test_messages_without_keys_arrive_in_the_order_of_the_log(
    client: AsyncClient, orders: Orders, broker: Broker
) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(150)])
    relay = Relay(client, "orders", broker.to, order="none")

    async with relaying(relay):
        await has_published(relay, 150)

    found = await broker.read(150)
    assert {int(each.payload) for each in found} == set(range(150))
    for place in {each.place for each in found}:  # there are several only in Kafka
        in_place = [int(each.payload) for each in found if each.place == place]
        assert in_place == sorted(in_place)


async def test_messages_of_a_key_arrive_in_order(client: AsyncClient, orders: Orders, broker: Broker) -> None:
    await orders.producer().produce_many([Message(RawPayload(b"%d" % n), key=f"k{n % 7}") for n in range(105)])
    relay = Relay(client, "orders", broker.to)

    async with relaying(relay):
        await has_published(relay, 105)

    found = await broker.read(105)
    for key in {each.key for each in found}:
        of_key = [int(each.payload) for each in found if each.key == key]
        assert of_key == sorted(of_key)
        assert len(of_key) == 15


async def test_the_group_is_one_like_any_other(client: AsyncClient, orders: Orders, broker: Broker) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(10)])
    relay = Relay(client, "orders", broker.to)
    assert relay.consumer.name == f"relay-{broker.name}"

    async with relaying(relay):
        await has_published(relay, 10)
    first = await broker.read(10)
    assert (await relay.consumer.status()).lag == 0

    await relay.consumer.rewind("beginning")
    async with relaying(relay):
        await has_published(relay, 20)

    async def is_done() -> bool:
        return (await relay.consumer.status()).lag == 0

    await eventually(is_done)
    again = await broker.read(10 if broker.drops_duplicates else 20)
    assert {each.headers["sqlstreams-id"] for each in again} == {each.headers["sqlstreams-id"] for each in first}
