"""Cancelling consume(): whenever it happens, nothing is spent, nothing is lost, and every connection comes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, meta
from tests.chaos.conftest import all_is_done, produce
from tests.support import Note, consuming, eventually, waits_for_a_lock

POOL = 4


class Seen:
    """Counts what handlers began and finished; messages keep their attempt."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.attempts: set[int] = set()

    def handler(self, *, seconds: float = 0.0) -> Callable[[Note], Awaitable[None]]:
        async def handle(note: Note) -> None:
            self.begun[meta().id] += 1
            self.attempts.add(meta().attempt)
            await asyncio.sleep(seconds)
            self.ended[meta().id] += 1

        return handle


async def test_cancelling_at_any_moment_spends_nothing_and_loses_nothing(database_url: str) -> None:
    rng = random.Random(3)
    seen = Seen()
    async with _client(database_url) as client:
        group = await _group(client)
        ids = await produce(client, 400)
        for _ in range(30):
            task = asyncio.create_task(
                group.consume(seen.handler(seconds=0.005), concurrency=3, prefetch=7, signals=False)
            )
            await asyncio.sleep(rng.choice([0, 0.001, 0.003, 0.01, 0.03]) * rng.random())
            for _ in range(rng.choice([1, 1, 2, 3])):
                task.cancel()
                await asyncio.sleep(rng.choice([0, 0.001]))
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with consuming(group, seen.handler(), concurrency=20):
            await eventually(lambda: set(ids) == set(seen.ended))
            await all_is_done(group)
        assert set(seen.ended.values()) == {1}
        assert seen.attempts == {1}
        assert await group.reclaims() == []
        await _every_connection_is_back(client)


async def test_cancelling_while_a_claim_is_under_way_gives_back_what_it_took(database_url: str) -> None:
    seen = Seen()
    async with _client(database_url) as client:
        group = await _group(client)
        ids = await produce(client, 20)
        async with await psycopg.AsyncConnection.connect(database_url) as holder:
            await holder.execute("select from sqlstreams.consumer_group_cursor for update")
            task = asyncio.create_task(group.consume(seen.handler(), signals=False))
            await eventually(lambda: waits_for_a_lock(database_url))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert seen.begun == {}
        async with consuming(group, seen.handler()):
            await eventually(lambda: sorted(seen.ended) == ids)
            await all_is_done(group)
        assert set(seen.ended.values()) == {1}
        await _every_connection_is_back(client)


async def test_retries_are_given_back_uncharged(database_url: str) -> None:
    hanging = asyncio.Event()
    attempts: list[int] = []

    async def handle(note: Note) -> None:
        attempts.append(meta().attempt)
        if meta().attempt == 1:
            raise ValueError("once")
        hanging.set()
        await asyncio.sleep(600)

    seen = Seen()
    async with _client(database_url) as client:
        group = await _group(client)
        await produce(client, 1)
        async with consuming(group, handle):
            await asyncio.wait_for(hanging.wait(), 10)
        async with consuming(group, seen.handler()):
            await all_is_done(group)
        assert (attempts, seen.attempts) == ([1, 2], {2})


async def test_a_second_cancel_while_a_handler_is_slow_to_obey_leaves_nothing_behind(database_url: str) -> None:
    running = asyncio.Event()

    async def deaf_in_its_retry(note: Note) -> None:
        if meta().attempt == 1:
            raise ValueError("once")
        running.set()
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.3)

    seen = Seen()
    async with _client(database_url) as other:
        group = await _group(other)
        ids = await produce(other, 3)
        async with _client(database_url) as client:
            leaver = client.stream("notes", Note).consumer("g")
            task = asyncio.create_task(leaver.consume(deaf_in_its_retry, signals=False))
            await asyncio.wait_for(running.wait(), 10)
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # Closing the client has waited for the end, so everything is free and nothing was charged.
        status = await group.status()
        assert (status.ready, status.inflight, status.leases) == (3, 0, 0)
        async with consuming(group, seen.handler()):
            await eventually(lambda: sorted(seen.ended) == ids)
            await all_is_done(group)
        assert (set(seen.ended.values()), seen.attempts) == ({1}, {2})


async def test_consuming_after_a_cancelled_start_works_as_ever(database_url: str) -> None:
    seen = Seen()
    async with _client(database_url) as client:
        group = await _group(client)
        async with await psycopg.AsyncConnection.connect(database_url) as holder:
            await holder.execute("lock table sqlstreams.claim_lease in access exclusive mode")
            # Entering the process removes forgotten ones, which reads the leases.
            task = asyncio.create_task(group.consume(seen.handler(), signals=False))
            await eventually(lambda: waits_for_a_lock(database_url))
            task.cancel()
            asked = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - asked < 10
        async with consuming(group, seen.handler()):
            # Neither a claim nor a notification: only a poll tells of a message that comes in by SQL.
            await eventually(lambda: group.stats.claims > 0)
            await _insert_unannounced(database_url)
            await eventually(lambda: sum(seen.ended.values()) == 1, within=5)


def _client(url: str) -> AsyncClient:
    # A lease of a minute: nothing is free by waiting.
    return AsyncClient(url, lease_ttl=timedelta(seconds=60), pool_size=POOL)


async def _group(client: AsyncClient) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    return await stream.consumer("g").register(retry_base=timedelta(milliseconds=10))


async def _every_connection_is_back(client: AsyncClient) -> None:
    pool = client._database._pool
    async with asyncio.timeout(10), contextlib.AsyncExitStack() as stack:
        for _ in range(POOL):
            connection = await stack.enter_async_context(pool.connection())
            await connection.execute("select 1")
    assert pool.get_stats()["pool_available"] == POOL


async def _insert_unannounced(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("""insert into sqlstreams.message_log_1 (payload) values ('{"text": "quiet"}')""")
