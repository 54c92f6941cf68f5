"""What compaction removes from the log, and what it leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, AsyncConsumer, AsyncStream, InvalidInput, Message, Terminal
from tests.support import Note, consuming, eventually


class Letter(Struct, frozen=True):
    """The second version of a note."""

    schema_version: ClassVar[int] = 2
    text: str = ""


_AT_ONCE = timedelta(0)


async def _produce(stream: AsyncStream[Any], *texts: str, key: str = "k") -> None:
    messages = [Message(stream.payload_type(text=text), key=key, compaction_rank=0) for text in texts]
    await stream.producer().produce_many(messages)


async def _handle(_: object) -> None:
    pass


async def _consume(consumer: AsyncConsumer[Any]) -> None:
    async with consuming(consumer, _handle):
        await eventually(lambda: _is_done(consumer))


async def _is_done(consumer: AsyncConsumer[Any]) -> bool:
    status = await consumer.status()
    return (status.lag, status.leases, status.ready, status.inflight, status.deferred) == (0, 0, 0, 0, 0)


async def _kept(stream: AsyncStream[Any]) -> list[int]:
    return [message.id for message in await stream.read()]


async def test_what_was_superseded_is_removed_with_its_rows_and_heads_and_plain_messages_stay(
    database_url: str,
) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register()
        await _produce(stream, "a", "b", "c")
        await stream.producer().produce(Note("plain"), key="k")
        await _produce(stream, "x", "y", key="other")
        await _consume(consumer)
        assert (await consumer.status()).superseded == 3
        assert await stream.compact(older_than=_AT_ONCE) == 3
        assert await _kept(stream) == [3, 4, 6]
        assert (await consumer.status()).superseded == 0
        assert await stream.compact(older_than=_AT_ONCE) == 0
        # A new group reads past what is missing
        late = await stream.consumer("late").register()
        await _consume(late)
        assert late.stats.handled == 3


async def test_nothing_is_removed_that_a_group_has_still_before_it(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        quick = await stream.consumer("quick").register()
        slow = await stream.consumer("slow").register()
        await _produce(stream, "a", "b")
        await _consume(quick)
        assert await stream.compact(older_than=_AT_ONCE) == 0
        await _consume(slow)
        assert await stream.compact(older_than=_AT_ONCE) == 1


async def test_a_dead_letter_keeps_its_message(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register()

        async def handle(note: Note) -> None:
            raise Terminal("no")

        await _produce(stream, "a")
        async with consuming(consumer, handle):
            await eventually(lambda: consumer.stats.dead == 1)
        await _produce(stream, "b")
        await _consume(consumer)
        assert await stream.compact(older_than=_AT_ONCE) == 0
        await consumer.discard(everything=True, reason="known")
        assert await stream.compact(older_than=_AT_ONCE) == 1


async def test_an_unread_version_that_was_superseded_waits_no_more(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        notes = await client.stream("notes", Note).register()
        letters = await client.stream("notes", Letter).register()
        consumer = await letters.consumer("g").register()
        await _produce(notes, "old")
        await _consume(consumer)
        assert (await consumer.status()).unread == 1
        await _produce(letters, "new")
        await _consume(consumer)
        assert await notes.compact(older_than=_AT_ONCE) == 0
        status = await consumer.status()
        assert (status.unread, status.superseded) == (0, 1)
        assert await notes.compact(older_than=_AT_ONCE) == 1


async def test_the_age_is_that_of_the_stream_unless_one_is_given(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await _produce(stream, "a", "b", "c")
        with pytest.raises(InvalidInput, match="older_than must be given"):
            await stream.compact()
        await stream.register(compact_after=timedelta(days=1))
        info = await stream.get()
        assert info is not None
        assert info.compact_after == timedelta(days=1)
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await connection.execute(
                "update sqlstreams.message_log_1 set created_at = now() - interval '25 hours' where id = 1"
            )
        assert await stream.compact(older_than=timedelta(days=2)) == 0
        assert await stream.compact() == 1
        assert await _kept(stream) == [2, 3]
        for wrong in (timedelta(seconds=-1), 5):
            with pytest.raises(InvalidInput, match=r"^older_than"):
                await stream.compact(older_than=wrong)  # type: ignore[arg-type]  # what is refused


async def test_a_long_log_is_compacted_step_by_step_across_partitions(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register(partition_rows=1_000)
        messages = [Message(Note("x"), key=f"k{number % 300}", compaction_rank=0) for number in range(3_000)]
        receipts = await stream.producer().produce_many(messages)
        assert await stream.compact(older_than=_AT_ONCE) == 2_700
        kept = [message.id for message in await stream.read(limit=1_000)]
        assert kept == [receipt.id for receipt in receipts[-300:]]


async def test_two_compactions_at_once_remove_everything_once(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url) as other:
        stream = await client.stream("notes", Note).register()
        await _produce(stream, *(["x"] * 3_000))
        removed = await asyncio.gather(
            stream.compact(older_than=_AT_ONCE), other.stream("notes").compact(older_than=_AT_ONCE)
        )
        assert sum(removed) == 2_999
        assert await _kept(stream) == [3_000]
