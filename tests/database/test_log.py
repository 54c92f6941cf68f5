"""The path of a message from a producer to two groups."""

from __future__ import annotations

from datetime import timedelta

from sqlstreams import AsyncClient, meta
from tests.support import Note, consuming, eventually


async def test_every_group_gets_every_message_in_order(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        producer = await stream.producer().register()
        receipts = await producer.produce_many([Note(str(number)) for number in range(2_500)])
        for group in ("first", "second"):
            consumer = await stream.consumer(group).register()
            seen: list[int] = []

            async def handle(note: Note, seen: list[int] = seen) -> None:
                seen.append(meta().id)

            async with consuming(consumer, handle, concurrency=1):
                await eventually(lambda seen=seen: len(seen) >= 2_500)  # type: ignore[misc]
            assert seen == [receipt.id for receipt in receipts]
            status = await consumer.status()
            assert (status.committed, status.lag, status.leases) == (2_500, 0, 0)


async def test_a_failed_message_is_delivered_again_until_it_succeeds(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce(Note("stubborn"))
        consumer = await stream.consumer("g").register(retry_base=timedelta(milliseconds=10))
        attempts: list[int] = []

        async def handle(note: Note) -> None:
            attempts.append(meta().attempt)
            if len(attempts) < 3:
                raise ValueError("not yet")

        async with consuming(consumer, handle):
            await eventually(lambda: len(attempts) == 3 and consumer.stats.handled == 1)
        assert attempts == [1, 2, 3]
        status = await consumer.status()
        assert (status.ready, status.inflight, status.dead) == (0, 0, 0)
