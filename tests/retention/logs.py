"""A stream whose messages have any age, and looks at what is left of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlstreams import AsyncClient, AsyncConsumer, AsyncStream
from tests.produce.log import ask
from tests.support import Note, consuming, eventually

MONTH = timedelta(days=30)


async def stream_of(
    client: AsyncClient,
    url: str,
    old: int,
    new: int = 0,
    *,
    partition_rows: int = 1_000,
    retention: timedelta | None = MONTH,
    **options: Any,
) -> AsyncStream[Note]:
    """Register `notes` with so many messages older than a month and so many of now."""
    stream = await client.stream("notes", Note).register(partition_rows=partition_rows, retention=retention, **options)
    # Or batches would take ids at the edges in vain.
    ask(url, f"select sqlstreams.extend_log(1, {old + new + partition_rows})")
    producer = stream.producer()
    await producer.produce_many([Note("old")] * old)
    age(url)
    if new:
        await producer.produce_many([Note("new")] * new)
    return stream


def age(url: str) -> None:
    """Make all that is in the log older than a month."""
    ask(url, "update sqlstreams.message_log_1 set created_at = created_at - interval '31 days'")


def ids(url: str) -> list[int]:
    """Return the ids that can be seen in the log."""
    return [message_id for (message_id,) in ask(url, "select id from sqlstreams.message_log_1 order by id")]


def tables(url: str) -> list[str]:
    """Return the partitions of the log, also those that are detached or about to be."""
    query = "select relname::text from pg_class where relname ~ '^message_log_1_from_[0-9]+$' order by oid"
    return [name.removeprefix("message_log_1_from_") for (name,) in ask(url, query)]


async def consume_all(consumer: AsyncConsumer[Note]) -> None:
    """Have a group handle everything."""
    async with consuming(consumer, lambda note: None):
        await eventually(lambda: is_done(consumer))


async def is_done(consumer: AsyncConsumer[Note]) -> bool:
    """Say whether a group has nothing to do."""
    status = await consumer.status()
    return status.committed == status.head
