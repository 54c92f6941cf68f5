"""Compaction: of a key the greatest message is delivered, and older ones that nobody has begun are not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, AsyncConsumer, AsyncStream, InvalidInput, Message
from tests.support import Note, consuming, eventually


class Letter(Struct, frozen=True):
    """The second version of a note."""

    schema_version: ClassVar[int] = 2
    text: str = ""


async def _stream(client: AsyncClient, **options: Any) -> tuple[AsyncStream[Note], AsyncConsumer[Note]]:
    stream = await client.stream("notes", Note).register()
    return stream, await stream.consumer("g").register(retry_base=timedelta(milliseconds=20), **options)


async def _produce(stream: AsyncStream[Any], *notes: tuple[str, int], key: str = "k") -> list[int]:
    messages = [Message(stream.payload_type(text=text), key=key, compaction_rank=rank) for text, rank in notes]
    return [receipt.id for receipt in await stream.producer().produce_many(messages)]


async def _is_done(consumer: AsyncConsumer[Any]) -> bool:
    status = await consumer.status()
    return (status.lag, status.leases, status.ready, status.inflight, status.deferred) == (0, 0, 0, 0, 0)


async def _texts(consumer: AsyncConsumer[Note], **options: Any) -> list[str]:
    """Consume until nothing is left; return what was handled."""
    handled: list[str] = []

    async def handle(note: Note) -> None:
        handled.append(note.text)

    async with consuming(consumer, handle, **options):
        await eventually(lambda: _is_done(consumer))
    return handled


async def test_of_a_key_only_the_newest_is_delivered_when_nobody_was_there_before(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, ("a", 0), ("b", 0), ("c", 0))
        await stream.producer().produce(Note("plain"), key="k")
        assert sorted(await _texts(consumer)) == ["c", "plain"]
        assert (consumer.stats.superseded, consumer.stats.handled) == (2, 2)
        assert (await consumer.status()).superseded == 2


async def test_a_batch_of_a_handler_holds_nothing_that_was_superseded(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, ("first", 0), key="other")
        await _produce(stream, ("a", 0), ("b", 0), ("c", 0))
        handled: list[str] = []

        async def handle(notes: list[Note]) -> None:
            handled.extend(note.text for note in notes)

        async with consuming(consumer, handle, batch=10):
            await eventually(lambda: _is_done(consumer))
        assert handled == ["first", "c"]
        assert consumer.stats.superseded == 2


@pytest.mark.parametrize("concurrency", ["parallel", "exclusive", "ordered"])
async def test_a_greater_rank_counts_more_than_a_newer_id(database_url: str, concurrency: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, concurrency=concurrency)
        await _produce(stream, ("late", 2), ("early", 1))
        await _produce(stream, ("least", -(2**63)))
        await _produce(stream, ("most", 2**63 - 1), key="other")
        assert sorted(await _texts(consumer)) == ["late", "most"]
        assert consumer.stats.superseded == 2
        await eventually(lambda: _no_keys_held(client))


async def _no_keys_held(client: AsyncClient) -> bool:
    async with client._database.connection() as connection:
        found = await (await connection.execute("select count(*) from sqlstreams.message_key_lease")).fetchone()
    return found == (0,)


async def test_a_group_with_bindings_is_not_given_what_was_superseded(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, _ = await _stream(client)
        bound = await stream.consumer("bound").register(bindings=["eu.*"])
        for text, routing_key in [("old", "eu.a"), ("new", "eu.b")]:
            await stream.producer().produce(Note(text), key="k", routing_key=routing_key, compaction_rank=0)
        assert await _texts(bound) == ["new"]


async def test_a_message_that_is_being_handled_is_not_interrupted(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        began, may_end, handled = asyncio.Event(), asyncio.Event(), list[str]()

        async def handle(note: Note) -> None:
            began.set()
            await may_end.wait()
            handled.append(note.text)

        await _produce(stream, ("a", 0))
        async with consuming(consumer, handle):
            await asyncio.wait_for(began.wait(), 10)
            await _produce(stream, ("b", 0))
            may_end.set()
            await eventually(lambda: sorted(handled) == ["a", "b"])
        assert consumer.stats.superseded == 0


async def test_what_was_claimed_and_not_begun_yields_to_what_is_claimed_later(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        may_end, handled = asyncio.Event(), list[str]()

        async def handle(note: Note) -> None:
            handled.append(note.text)
            await may_end.wait()

        # Given a process that runs one message and holds another
        await _produce(stream, ("first", 0), key="other")
        await _produce(stream, ("a", 0))
        async with consuming(consumer, handle, concurrency=1, prefetch=2):
            await eventually(lambda: consumer.stats.claimed == 2 and len(handled) == 1)
            # When it claims a newer one as well
            await _produce(stream, ("b", 0))
            await eventually(lambda: consumer.stats.claimed == 3)
            # Then it runs that one alone
            may_end.set()
            await eventually(lambda: _is_done(consumer))
        assert handled == ["first", "b"]


async def test_a_failed_message_is_superseded_instead_of_run_again(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, concurrency="ordered")
        handled: list[str] = []

        async def handle(note: Note) -> None:
            handled.append(note.text)
            if note.text == "a":
                await _produce(stream, ("b", 0))
                raise ValueError("not today")

        await _produce(stream, ("a", 0))
        async with consuming(consumer, handle):
            await eventually(lambda: handled == ["a", "b"])
            await eventually(lambda: _is_done(consumer))
        assert (consumer.stats.failed, consumer.stats.superseded, consumer.stats.dead) == (1, 1, 0)
        assert (await consumer.status()).superseded == 1


async def test_messages_that_wait_for_their_key_are_superseded_in_their_turn(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url) as other:
        stream, consumer = await _stream(client, concurrency="exclusive")
        waiting = other.stream("notes", Note).consumer("g")
        began, may_end, handled = asyncio.Event(), asyncio.Event(), list[str]()

        async def handle(note: Note) -> None:
            began.set()
            handled.append(note.text)
            await may_end.wait()

        # Given a message that runs in one process, and another that waits for its key
        await _produce(stream, ("a", 0))
        async with consuming(consumer, handle, concurrency=1, prefetch=1):
            await asyncio.wait_for(began.wait(), 10)
            await _produce(stream, ("filler", 0), key="other")
            await eventually(lambda: consumer.stats.claimed == 2)
            async with consuming(waiting, handle):
                await _produce(stream, ("b", 0))
                await eventually(lambda: waiting.stats.deferred == 1)
                # When a newer one comes before the first is done
                await _produce(stream, ("c", 0))
                may_end.set()
                await eventually(lambda: _is_done(consumer))
        assert sorted(handled) == ["a", "c", "filler"]
        assert consumer.stats.superseded + waiting.stats.superseded == 1


async def test_an_older_version_is_superseded_by_one_that_the_group_cannot_read(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        letters = await client.stream("notes", Letter).register()
        await _produce(letters, ("new", 0))
        await _produce(stream, ("of an old producer", 5))
        assert await _texts(consumer) == []
        status = await consumer.status()
        assert (status.superseded, status.unread) == (1, 1)
        handled: list[str] = []
        async with consuming(letters.consumer("g"), lambda letter: handled.append(letter.text)):
            await eventually(lambda: handled == ["new"])


async def test_a_dead_letter_that_is_redriven_is_superseded_if_a_newer_one_came(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, max_retries=0)

        async def handle(note: Note) -> None:
            raise ValueError("never")

        await _produce(stream, ("a", 0))
        async with consuming(consumer, handle):
            await eventually(lambda: consumer.stats.dead == 1)
        await _produce(stream, ("b", 0))
        await consumer.redrive(everything=True)
        assert await _texts(consumer) == ["b"]


async def test_a_rewound_group_is_given_the_heads_again(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, ("a", 0), ("b", 0))
        assert await _texts(consumer) == ["b"]
        done = await consumer.rewind("beginning")
        assert (done.superseded, done.exceptions) == (1, 1)
        assert await _texts(consumer) == ["b"]


async def test_a_range_of_a_dead_process_yields_to_what_came_since(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        ids = await _produce(stream, ("a", 0))
        await _produce(stream, ("plain", 0), key="other")
        # Given a range of a process that is gone, and in it a message that was the head when it was claimed
        async with client._database.connection() as connection:
            await connection.execute("update sqlstreams.consumer_group_cursor set claimed = 2")
            await connection.execute(
                """insert into sqlstreams.claim_lease (token, group_id, low, high, resolved, reclaims, running)
                   select gen_random_uuid(), group_id, 1, 2, 0, 1, %s from sqlstreams.consumer_group_cursor""",
                ids,
            )
        # When a newer one comes
        await _produce(stream, ("b", 0))
        # Then it is not run, nor charged
        assert sorted(await _texts(consumer)) == ["b", "plain"]
        assert (consumer.stats.superseded, consumer.stats.failed) == (1, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compaction_rank": 0}, "compaction_rank needs a key"),
        ({"compaction_rank": 2**63, "key": "k"}, "compaction_rank must be between"),
        ({"compaction_rank": True, "key": "k"}, "compaction_rank must be an int"),
        ({"compaction_rank": "1", "key": "k"}, "compaction_rank must be an int"),
    ],
)
async def test_what_cannot_take_part_is_refused_and_nothing_is_written(
    database_url: str, options: dict[str, Any], said: str
) -> None:
    async with AsyncClient(database_url) as client:
        stream, _ = await _stream(client)
        with pytest.raises(InvalidInput, match=said):
            await stream.producer().produce(Note("x"), **options)
        with pytest.raises(InvalidInput, match=r"messages\[1\]." + said):
            await stream.producer().produce_many([Note("fine"), Message(Note("x"), **options)])
        assert await stream.read() == []


def _sql_produce(connection: psycopg.Connection, *arguments: object) -> None:
    connection.execute(
        "select sqlstreams.produce('notes', '{\"text\": \"sql\"}', %s, compaction_rank => %s)", arguments
    )


async def test_a_message_produced_from_sql_takes_part(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, ("python", 1))
        with psycopg.connect(database_url) as connection:
            _sql_produce(connection, "k", 1)
            _sql_produce(connection, "k", 0)
            with pytest.raises(psycopg.Error, match="compaction_rank needs a message_key"), connection.transaction():
                _sql_produce(connection, None, 0)
        assert await _texts(consumer) == ["sql"]
        head = await stream.head("k")
        assert head is not None
        assert (head.id, [each.id for each in await stream.history("k")]) == (2, [3, 2, 1])


async def test_the_history_of_a_key_is_read_newest_first_and_its_head_is_the_greatest(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, _ = await _stream(client)
        ids = await _produce(stream, ("a", 1), ("b", 9), ("c", 3))
        await _produce(stream, ("elsewhere", 10), key="other")
        await stream.producer().produce(Note("plain"), key="k")
        head = await stream.head("k")
        assert head is not None
        assert (head.id, head.payload, head.key) == (ids[1], b'{"text":"b"}', "k")
        assert [each.id for each in await stream.history("k", limit=2)] == [ids[2], ids[1]]
        assert await stream.head("unknown") is None
        assert await stream.history("unknown") == []
        for wrong in ("", "\x00", None):
            with pytest.raises(InvalidInput, match=r"^key"):
                await stream.head(wrong)  # type: ignore[arg-type]  # what is refused


def _greatest(places: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    """The heads of keys, of their keys, ranks and ids."""
    return {key: id for key, _, id in sorted(places, key=lambda each: each[1:])}


async def test_a_large_batch_with_keys_that_come_again_moves_each_head_once(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, _ = await _stream(client)
        messages = [
            Message(Note("x"), key=f"k{number % 70}", compaction_rank=number * 7 % 11 if number % 3 else None)
            for number in range(2_500)
        ]
        receipts = await stream.producer().produce_many(messages)
        places = [
            (message.key or "", message.compaction_rank, receipt.id)
            for message, receipt in zip(messages, receipts, strict=True)
            if message.compaction_rank is not None
        ]
        async with client._database.connection() as connection:
            found = await connection.execute("select message_key, id from sqlstreams.compaction_head_1")
            assert dict(await found.fetchall()) == _greatest(places)
