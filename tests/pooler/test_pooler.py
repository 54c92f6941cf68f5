"""What is other behind PgBouncer: no push unless it goes around, and nothing is left on the shared sessions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import psycopg
import pytest

from sqlstreams import AsyncClient, Client
from tests.pooler.conftest import POOL_SIZE
from tests.support import Note, consuming, eventually


def test_the_client_notices_the_pooler(pooled_url: str, database_url: str) -> None:
    with Client(pooled_url) as pooled, Client(database_url) as direct:
        assert pooled.system.status().through_pooler
        assert not direct.system.status().through_pooler


async def test_a_consumer_behind_the_pooler_says_that_it_polls(
    pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(pooled_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("group").register()
        async with consuming(consumer, lambda note: None):
            await stream.producer().produce(Note("x"))
            await eventually(lambda: consumer.stats.handled == 1, within=5)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text[:7] for text in warnings] == ["SQL0102"]
    assert consumer.stats.woken_by_notification == 0


async def test_a_listen_url_around_the_pooler_brings_push_back(
    pooled_url: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(pooled_url, listen_url=database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("group").register()
        async with consuming(consumer, lambda note: None):
            await eventually(lambda: client._presence.listener is not None and client._presence.listener.connected)
            count = 0
            while not consumer.stats.woken_by_notification:
                await stream.producer().produce(Note("x"))
                count += 1
                await eventually(lambda count=count: consumer.stats.handled == count, within=5)  # type: ignore[misc]  # mypy infers no default of a lambda
    assert "SQL0102" not in caplog.text


async def test_more_consumers_than_the_pool_has_sessions_all_work(pooled_url: str) -> None:
    """Nothing is held while a handler runs, so a session is free for the next one."""
    count = 3 * POOL_SIZE
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(pooled_url, pool_size=2)) for _ in range(count)]
        stream = await clients[0].stream("notes", Note).register()
        await stream.consumer("group").register()
        # One message for each handler, and one that waits behind it.
        await stream.producer().produce_many([Note("x")] * 2 * count)
        running = 0
        together = asyncio.Event()

        async def handle(note: Note) -> None:
            nonlocal running
            running += 1
            if running == count:
                together.set()
            await together.wait()

        for client in clients:
            consumer = client.stream("notes", Note).consumer("group")
            await stack.enter_async_context(consuming(consumer, handle, concurrency=1, prefetch=1))
        await asyncio.wait_for(together.wait(), 20)


async def test_nothing_of_ours_stays_on_a_shared_session(pooled_url: str) -> None:
    async with AsyncExitStack() as stack:
        # given: a client that has produced, consumed and waited through every session of the pool
        client = await stack.enter_async_context(AsyncClient(pooled_url))
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("group").register()
        async with consuming(consumer, lambda note: None):
            for _ in range(10):
                await asyncio.gather(*(stream.producer().produce_many([Note("x")] * 3) for _ in range(20)))
            await eventually(lambda: consumer.stats.handled == 600)
        # when: all sessions of the pool are looked at, at the same time
        sessions = set()
        for _ in range(POOL_SIZE):
            connection = await psycopg.AsyncConnection.connect(pooled_url, prepare_threshold=None)
            stack.push_async_callback(connection.close)
            cursor = await connection.execute("""
                select pg_backend_pid(),
                       (select setting || source from pg_settings where name = 'synchronous_commit'),
                       (select setting || source from pg_settings where name = 'lock_timeout'),
                       (select count(*) from pg_prepared_statements),
                       (select count(*) from pg_listening_channels()),
                       (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
            """)
            pid, *state = await cursor.fetchone() or ()
            sessions.add(pid)
            # then: they are as a new session is
            assert state == ["ondefault", "0default", 0, 0, 0]
        assert len(sessions) == POOL_SIZE
