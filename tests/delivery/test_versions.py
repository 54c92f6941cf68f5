"""Schema versions: each process delivers what it can read, and what it cannot waits for one that can."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, InvalidInput, Message, RawPayload, meta
from sqlstreams.consume.consumption import Consumption
from sqlstreams.statements import Polled
from tests.support import consuming, eventually


class OrderV1(Struct, frozen=True):
    """As it began."""

    euros: int


class OrderV2(Struct, frozen=True):
    """As it is now."""

    schema_version: ClassVar[int] = 2
    cents: int


@dataclass(frozen=True)
class OrderV3:
    """As it will be."""

    schema_version: ClassVar[int] = 3
    cents: int
    currency: str


def in_cents(old: dict[str, Any]) -> OrderV2:
    return OrderV2(cents=old["euros"] * 100)


async def _both_versions(client: AsyncClient, count: int, **options: Any) -> None:
    one = await client.stream("orders", OrderV1).register()
    two = await client.stream("orders", OrderV2).register()
    await one.consumer("g").register(retry_base=timedelta(milliseconds=10), **options)
    for number in range(count):
        await one.producer().produce(OrderV1(number), key="k")
        await two.producer().produce(OrderV2(number), key="k")


async def test_old_and_new_processes_side_by_side_each_deliver_what_they_read(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url) as other:
        await _both_versions(client, 60)
        old: list[OrderV1] = []
        new: list[OrderV2] = []

        async def handle_old(order: OrderV1) -> None:
            assert isinstance(order, OrderV1)
            if order.euros % 7 == 0 and meta().failures == 0:
                raise ValueError("now and then")
            old.append(order)

        async def handle_new(order: OrderV2) -> None:
            assert isinstance(order, OrderV2)
            if order.cents % 7 == 0 and meta().failures == 0:
                raise ValueError("now and then")
            new.append(order)

        first, second = (
            client.stream("orders", OrderV1).consumer("g"),
            other.stream("orders", OrderV2).consumer("g"),
        )
        async with consuming(first, handle_old, prefetch=10), consuming(second, handle_new, prefetch=10):
            await eventually(lambda: len(old) == len(new) == 60)
            await eventually(lambda: _nothing_left(client))
        assert first.stats.unread + second.stats.unread > 0
        assert sorted(order.euros for order in old) == sorted(order.cents for order in new) == list(range(60))


async def _nothing_left(client: AsyncClient) -> bool:
    status = await client.stream("orders").consumer("g").status()
    return (status.ready, status.inflight, status.unread, status.dead, status.lag) == (0, 0, 0, 0, 0)


async def test_what_nobody_reads_is_counted_holds_back_nothing_and_is_charged_with_nothing(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 20)
        consumer = client.stream("orders", OrderV1).consumer("g")
        handled: list[int] = []

        async def handle(order: OrderV1) -> None:
            handled.append(order.euros)

        async with consuming(consumer, handle):
            await eventually(lambda: consumer.stats.unread == 20 and len(handled) == 20)
            await eventually(lambda: _committed(client, 40))
        status = await consumer.status()
        assert (status.unread, status.ready, status.dead, status.lag) == (20, 0, 0, 0)
        (unread,) = await consumer.unread_versions()
        assert (unread.schema_version, unread.waiting, unread.first_id) == (2, 20, 2)
        # and when a process comes that reads them, they are delivered as if for the first time
        attempts: list[int] = []

        async def handle_new(order: OrderV2) -> None:
            attempts.append(meta().attempt)

        async with consuming(client.stream("orders", OrderV2).consumer("g"), handle_new):
            await eventually(lambda: len(attempts) == 20)
            await eventually(lambda: _nothing_left(client))
        assert set(attempts) == {1}
        assert await consumer.unread_versions() == []


async def _committed(client: AsyncClient, message_id: int) -> bool:
    return (await client.stream("orders").consumer("g").status()).committed == message_id


async def test_what_a_dead_process_left_of_another_version_waits_for_a_process_that_reads_it(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 3)
        # Given a range of all six messages, whose process died twice
        async with client._database.connection() as connection:
            await connection.execute("update sqlstreams.consumer_group_cursor set claimed = 6")
            await connection.execute(
                "insert into sqlstreams.claim_lease (token, group_id, low, high, resolved, reclaims)"
                " values (gen_random_uuid(), 1, 1, 6, 0, 2)"
            )
        consumer, handled = client.stream("orders", OrderV1).consumer("g"), list[int]()

        async def handle(order: OrderV1) -> None:
            handled.append(order.euros)

        async with consuming(consumer, handle):
            await eventually(lambda: consumer.stats.unread == 3 and len(handled) == 3)
            await eventually(lambda: _committed(client, 6))
        status = await consumer.status()
        assert (sorted(handled), status.unread, status.ready, status.dead) == ([0, 1, 2], 3, 0, 0)


async def test_a_retry_of_a_version_waits_for_a_process_that_reads_it_and_keeps_its_count(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 1)
        consumer = client.stream("orders", OrderV2).consumer("g")

        async def fail(order: OrderV2) -> None:
            raise ValueError("not yet")

        async with consuming(consumer, fail, upcast={1: in_cents}):
            await eventually(lambda: consumer.stats.failed >= 4)
        old = client.stream("orders", OrderV1).consumer("g")
        async with consuming(old, lambda order: None):
            await eventually(lambda: old.stats.unread == 1)
        failures: list[int] = []

        async def handle(order: OrderV2) -> None:
            failures.append(meta().failures)

        async with consuming(consumer, handle):
            await eventually(lambda: len(failures) == 1)
        assert failures[0] >= 1


async def test_a_converter_makes_old_messages_into_the_present_type(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 3)
        seen: list[tuple[OrderV3, int]] = []

        async def handle(order: OrderV3) -> None:
            seen.append((order, meta().schema_version))

        upcast = {
            1: lambda old: {"cents": old["euros"] * 100, "currency": "EUR"},
            2: lambda old: OrderV3(old["cents"], "EUR"),
        }
        async with consuming(client.stream("orders", OrderV3).consumer("g"), handle, upcast=upcast, concurrency=1):
            await eventually(lambda: len(seen) == 6)
        assert seen == [
            (OrderV3(cents, "EUR"), version)
            for number in range(3)
            for cents, version in ((number * 100, 1), (number, 2))
        ]


@pytest.mark.parametrize("made", [{"cents": "many"}, object(), float("nan"), {}])
async def test_a_converter_that_makes_nothing_of_the_type_is_a_failure_and_not_the_end(
    database_url: str, made: object
) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 1)
        consumer = client.stream("orders", OrderV2).consumer("g")
        right = False
        seen: list[OrderV2] = []

        async def handle(order: OrderV2) -> None:
            seen.append(order)

        async with consuming(consumer, handle, upcast={1: lambda old: in_cents(old) if right else made}):
            await eventually(lambda: consumer.stats.failed >= 1)
            right = True
            await eventually(lambda: len(seen) == 2)
        assert consumer.stats.dead == 0


@pytest.mark.parametrize("payload_type", [RawPayload, dict, dict[str, Any], Any], ids=repr)
async def test_a_type_that_takes_any_json_reads_every_version(database_url: str, payload_type: Any) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 2)
        seen: list[Any] = []

        async def handle(order: Any) -> None:
            seen.append(msgspec.json.decode(order) if isinstance(order, bytes) else order)

        async with consuming(client.stream("orders", payload_type).consumer("g"), handle, concurrency=1):
            await eventually(lambda: len(seen) == 4)
        assert seen == [{"euros": 0}, {"cents": 0}, {"euros": 1}, {"cents": 1}]


async def test_in_order_a_key_waits_for_its_unread_message_while_other_keys_go_on(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 0, concurrency="ordered")
        one, two = client.stream("orders", OrderV1).producer(), client.stream("orders", OrderV2).producer()
        await one.produce(OrderV1(0), key="a")
        await two.produce(OrderV2(1), key="a")
        await one.produce_many([Message(OrderV1(number), key="a") for number in (2, 3)])
        await one.produce(OrderV1(4), key="b")
        handled: list[int] = []

        async def handle(order: OrderV1) -> None:
            handled.append(order.euros)

        async def handle_new(order: OrderV2) -> None:
            handled.append(order.cents)

        old = client.stream("orders", OrderV1).consumer("g")
        async with consuming(old, handle):
            await eventually(lambda: sorted(handled) == [0, 4])
            await eventually(lambda: _waiting_behind(client))
            (blocked,) = await old.blocked_keys()
            assert (blocked.key, blocked.blocked_by, blocked.state) == ("a", 2, "unread")
            await one.produce(OrderV1(5), key="a")
            await one.produce(OrderV1(6), key="b")
            await eventually(lambda: sorted(handled) == [0, 4, 6])
            async with consuming(client.stream("orders", OrderV2).consumer("g"), handle_new):
                await eventually(lambda: len(handled) == 7)
                await eventually(lambda: _nothing_left(client))
        assert [each for each in handled if each in (0, 1, 2, 3, 5)] == [0, 1, 2, 3, 5]


async def _waiting_behind(client: AsyncClient) -> bool:
    blocked = await client.stream("orders").consumer("g").blocked_keys()
    return [each.waiting for each in blocked] == [2]


async def test_a_process_is_not_kept_busy_by_versions_that_it_cannot_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[Polled | None] = []
    polled = Consumption.polled

    def note(self: Consumption, found: Polled | None) -> None:
        polls.append(found)
        polled(self, found)

    monkeypatch.setattr(Consumption, "polled", note)
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 5)
        consumer = client.stream("orders", OrderV1).consumer("g")

        async with consuming(consumer, lambda order: None):
            await eventually(lambda: consumer.stats.unread == 5)
            # what is unread must not come back to a process that put it aside
            await eventually(lambda: [found.unread for found in polls if found][-2:] == [[2], [2]])
            client._presence.poll_soon()
            seen = len(polls)
            await eventually(lambda: len(polls) > seen + 1)
            assert (consumer.stats.unread, consumer.stats.retried) == (5, 0)


@pytest.mark.parametrize(
    ("upcast", "problem"),
    [
        ([], "must map schema versions to functions"),
        ({"1": in_cents}, "schema versions of 1 or more"),
        ({0: in_cents}, "schema versions of 1 or more"),
        ({True: in_cents}, "schema versions of 1 or more"),
        ({2: in_cents}, "must not convert version 2"),
        ({1: "in_cents"}, "must map version 1 to a function"),
    ],
)
async def test_converters_are_checked_at_the_call(database_url: str, upcast: Any, problem: str) -> None:
    async with AsyncClient(database_url) as client:
        with pytest.raises(InvalidInput, match=problem):
            await client.stream("orders", OrderV2).consumer("g").consume(lambda order: None, upcast=upcast)


async def test_a_version_can_be_retired_when_no_group_has_any_of_it_left(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await _both_versions(client, 3)
        stream = client.stream("orders")
        await stream.consumer("other").register(start="head")
        one, two = await stream.versions()
        assert (one.schema_version, two.schema_version) == (1, 2)
        assert [(use.group, use.waiting, use.unread) for use in two.groups] == [("g", 3, 0)]
        assert not one.can_retire

        old = client.stream("orders", OrderV1).consumer("g")
        async with consuming(old, lambda order: None):
            await eventually(lambda: _committed(client, 6))
        one, two = await stream.versions()
        assert one.can_retire
        assert one.registered_at is not None
        assert [(use.group, use.waiting, use.unread, use.dead) for use in two.groups] == [("g", 3, 3, 0)]
        assert not two.can_retire
