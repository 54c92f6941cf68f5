"""Retries come when they are due, not when the next slow poll finds them."""

from __future__ import annotations

import time
from datetime import timedelta

from sqlstreams import AsyncClient, meta
from tests.support import Note, consuming, eventually


async def test_many_retries_that_come_due_one_after_another_are_each_delivered_on_time(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce_many([Note(str(number)) for number in range(64)])
        consumer = await stream.consumer("g").register(retry_base=timedelta(seconds=0.4))
        first: dict[int, float] = {}
        again: dict[int, float] = {}

        async def fail_once(note: Note) -> None:
            (first if meta().attempt == 1 else again)[meta().id] = time.monotonic()
            if meta().attempt == 1:
                raise ValueError("not yet")

        async with consuming(consumer, fail_once, concurrency=4):
            await eventually(lambda: len(again) == 64)

        waited = sorted(again[each] - first[each] for each in again)
        assert waited[0] > 0.2
        assert waited[-1] < 1.0, waited
