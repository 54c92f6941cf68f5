"""Bindings: a group takes the messages whose routing key matches, and keeps up on a busy stream."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sqlstreams import AsyncClient, AsyncStream, InvalidInput, Message, RoutingKeyUse, meta
from tests.support import Note, consuming, eventually

KEYS = ["orders.new", "orders", "eu.x.paid", "eu.paid", "us.x.paid", None, "orders.%", "ORDERS.new"]


async def _produce(stream: AsyncStream[Note], routing_keys: Sequence[str | None], *, key: str | None = None) -> None:
    await stream.producer().produce_many([Message(Note("x"), key=key, routing_key=each) for each in routing_keys])


async def _handled(stream: AsyncStream[Note], group: str) -> list[str | None]:
    seen: list[str | None] = []

    async def handle(note: Note) -> None:
        seen.append(meta().routing_key)

    consumer = stream.consumer(group)
    async with consuming(consumer, handle, concurrency=1):
        await eventually(lambda: _done(stream, group))
    return seen


async def _done(stream: AsyncStream[Note], group: str) -> bool:
    status = await stream.consumer(group).status()
    return status.committed == status.head and status.deferred == status.ready == status.inflight == 0


async def test_a_group_takes_what_matches_its_bindings_and_one_without_takes_everything(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.consumer("bound").register(bindings=["orders.*", "eu.*.paid"])
        await stream.consumer("all").register()
        await stream.consumer("none").register(bindings=["nothing"])
        await _produce(stream, KEYS)
        assert await _handled(stream, "bound") == ["orders.new", "eu.x.paid", "orders.%"]
        assert await _handled(stream, "all") == KEYS
        assert await _handled(stream, "none") == []


async def test_bindings_are_declared_whole_and_the_newest_declaration_wins(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(bindings=["b", "a", "b"])
        info = await consumer.get()
        assert info is not None
        assert info.bindings == ("a", "b")
        await consumer.register(bindings=["a", "b"])
        assert (await consumer.get()) == info
        await _produce(stream, ["a", "b", "c", None])
        assert await _handled(stream, "g") == ["a", "b"]
        await consumer.register(bindings=["c"])
        await _produce(stream, ["a", "c", None])
        assert await _handled(stream, "g") == ["c"]
        await consumer.register()
        await _produce(stream, ["a", "c", None])
        assert await _handled(stream, "g") == ["a", "c", None]


async def test_a_running_process_goes_by_a_new_declaration(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.consumer("g").register()
        consumer, seen = stream.consumer("g"), list[str | None]()  # one that declares nothing itself

        async def handle(note: Note) -> None:
            seen.append(meta().routing_key)

        async with consuming(consumer, handle):
            for bindings, expected in ((None, ["a", "b"]), (["b"], ["b"]), (["a"], ["a"]), ([], ["a", "b"])):
                seen.clear()
                await stream.consumer("g").register(bindings=bindings)
                await _produce(stream, ["a", "b"])
                await eventually(lambda: _done(stream, "g"))
                assert sorted(map(str, seen)) == expected


async def test_a_group_bound_to_one_percent_keeps_up(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(bindings=["eu.*"])
        async with client._database.connection() as connection:
            await connection.execute(
                """insert into sqlstreams.message_log_1 (payload, routing_key)
                   select '{"text": "x"}', case when n % 100 = 0 then 'eu.paid' else 'us.paid' end
                     from generate_series(1, 60000) as n"""
            )
        seen: list[int] = []

        async def handle(note: Note) -> None:
            seen.append(meta().id)

        async with consuming(consumer, handle):
            await eventually(lambda: len(seen) == 600)
            await eventually(lambda: _done(stream, "g"))
        assert sorted(seen) == list(range(100, 60_001, 100))
        assert consumer.stats.claimed == 600
        assert consumer.stats.claims <= 60


@pytest.mark.parametrize("concurrency", ["exclusive", "ordered"])
async def test_only_messages_that_match_take_a_key_or_wait_for_one(database_url: str, concurrency: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.consumer("g").register(bindings=["a"], concurrency=concurrency)
        await _produce(stream, ["a", "b", None] * 30, key="k")
        await _produce(stream, ["b", None], key="of others")
        consumer, seen, keys = stream.consumer("g"), list[str | None](), set[str]()

        async def handle(note: Note) -> None:
            seen.append(meta().routing_key)
            async with client._database.connection() as connection:
                held = await connection.execute("select message_key from sqlstreams.message_key_lease")
                keys.update([key for (key,) in await held.fetchall()])

        async with consuming(consumer, handle, prefetch=1_000):
            await eventually(lambda: _done(stream, "g"))
        assert seen == ["a"] * 30
        assert keys == {"k"}
        assert consumer.stats.deferred == 0


async def test_bindings_can_be_tried_on_the_last_messages(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await _produce(stream, ["old", "eu.paid", "us.paid", "eu.paid", None])
        preview = await stream.consumer("absent").preview_bindings(["eu.*"], last=4)
        assert (preview.looked_at, preview.matching) == (4, 2)
        assert preview.routing_keys == (
            RoutingKeyUse("eu.paid", 2, 4, matches=True),
            RoutingKeyUse(None, 1, 5, matches=False),
            RoutingKeyUse("us.paid", 1, 3, matches=False),
        )
        assert (await stream.consumer("absent").preview_bindings(None)).matching == 5


async def test_bindings_that_cannot_be_are_refused_at_the_call(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        with pytest.raises(InvalidInput, match="bindings must be a list of patterns, got str"):
            await stream.consumer("g").register(bindings="eu.*")
        assert await stream.consumer("g").get() is None
