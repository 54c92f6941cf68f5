"""Consumers hear of new messages at once, and find them by polling when they cannot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer
from sqlstreams.consume import presence
from tests.support import Note, consuming, eventually

POLL = 2.0  # seconds between two polls of an idle process


class Arrivals:
    """How long each message was under way, in seconds."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def handle(self, note: Note) -> None:
        self.delays.append(time.time() - float(note.text))


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database_url) as client:
        await client.stream("notes", Note).register()
        yield client


async def _produce(client: AsyncClient) -> None:
    await client.stream("notes", Note).producer().produce(Note(str(time.time())))


async def _produce_until_push_works(client: AsyncClient, consumer: AsyncConsumer[Note], arrivals: Arrivals) -> None:
    """Produce one message after the other until a notification was what woke the consumer."""
    woken = consumer.stats.woken_by_notification
    for _ in range(10):
        count = len(arrivals.delays) + 1
        await _produce(client)
        await eventually(lambda count=count: len(arrivals.delays) == count, within=5)  # type: ignore[misc]  # mypy infers no default of a lambda
        if consumer.stats.woken_by_notification > woken:
            return
    pytest.fail("ten messages arrived, and none by push")


async def test_a_produce_wakes_an_idle_consumer_well_before_it_would_poll(client: AsyncClient) -> None:
    arrivals = Arrivals()
    consumer = await client.stream("notes", Note).consumer("group").register()
    async with consuming(consumer, arrivals.handle):
        await eventually(lambda: _connected(client))
        for _ in range(11):
            await _produce_until_push_works(client, consumer, arrivals)
    assert sorted(arrivals.delays)[len(arrivals.delays) // 2] < POLL / 20


async def test_a_produce_of_another_process_wakes_a_consumer_too(client: AsyncClient, database_url: str) -> None:
    arrivals = Arrivals()
    consumer = await client.stream("notes", Note).consumer("group").register()
    async with consuming(consumer, arrivals.handle), AsyncClient(database_url) as other:
        await eventually(lambda: _connected(client))
        await _produce_until_push_works(other, consumer, arrivals)


async def test_a_listening_session_that_is_ended_is_replaced_and_nothing_is_lost(
    client: AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    arrivals = Arrivals()
    consumer = await client.stream("notes", Note).consumer("group").register()
    caplog.set_level(logging.INFO, logger="sqlstreams.wake")
    async with consuming(consumer, arrivals.handle):
        for losses in range(1, 3):
            # given
            await eventually(lambda: _connected(client))
            delivered = len(arrivals.delays)
            caplog.clear()
            # when: the session is ended, and messages come before it can be back
            await _end_listening_session(database_url)
            await asyncio.gather(*(_produce(client) for _ in range(20)))
            await eventually(lambda losses=losses: _losses(client) == losses and _connected(client))  # type: ignore[misc]  # mypy infers no default of a lambda
            # then: all are delivered, the loss was told, and push works again
            await eventually(lambda delivered=delivered: len(arrivals.delays) == delivered + 20)  # type: ignore[misc]  # mypy infers no default of a lambda
            assert [record.getMessage()[:7] for record in caplog.records] == ["SQL0103", "SQL0103"]
            await _produce_until_push_works(client, consumer, arrivals)


async def test_without_push_polling_delivers_within_its_period(database_url: str) -> None:
    nowhere = "host=/nowhere connect_timeout=1"
    arrivals = Arrivals()
    async with AsyncClient(database_url, listen_url=nowhere) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("group").register()
        async with consuming(consumer, arrivals.handle):
            for count in range(1, 4):
                await _produce(client)
                await eventually(lambda count=count: len(arrivals.delays) == count)  # type: ignore[misc]  # mypy infers no default of a lambda
        assert not _connected(client)
    assert max(arrivals.delays) < POLL + 0.75  # the rest is for a busy machine
    assert consumer.stats.woken_by_notification == 0


def _connected(client: AsyncClient) -> bool:
    return client._presence.listener is not None and client._presence.listener.connected


def _losses(client: AsyncClient) -> int:
    return client._presence.listener.reconnects if client._presence.listener is not None else 0


async def test_a_plain_insert_without_a_wake_up_is_found_by_polling(client: AsyncClient, database_url: str) -> None:
    arrivals = Arrivals()
    consumer = await client.stream("notes", Note).consumer("group").register()
    async with (
        consuming(consumer, arrivals.handle),
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
    ):
        while not consumer.stats.woken_by_poll:
            count = len(arrivals.delays) + 1
            text = f'{{"text": "{time.time()}"}}'
            await connection.execute("insert into sqlstreams.message_log_1 (payload) values (%s::json)", (text,))
            await eventually(lambda count=count: len(arrivals.delays) == count)  # type: ignore[misc]  # mypy infers no default of a lambda
    assert max(arrivals.delays) < POLL + 0.75  # the rest is for a busy machine


async def _end_listening_session(url: str) -> None:
    async with await psycopg.AsyncConnection[Any].connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query like 'listen %'"
        )
        assert len(await cursor.fetchall()) == 1


@pytest.mark.parametrize("again", ["redrive", "rewind"])
async def test_messages_to_be_delivered_again_wake_an_idle_consumer(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    # given: a process that polls when it starts and then waits too long to do it again, and a message dead or done
    monkeypatch.setattr(presence, "_POLL_FASTEST", 600)
    monkeypatch.setattr(presence, "_POLL_SLOWEST", 600)
    consumer, seen = await client.stream("notes", Note).consumer("group").register(max_retries=0), list[str]()

    async def handle(note: Note) -> None:
        seen.append(note.text)
        if again == "redrive" and len(seen) == 1:
            raise ValueError("no")

    async with consuming(consumer, handle):
        await eventually(lambda: _connected(client))
        await client.stream("notes", Note).producer().produce(Note("a"))
        await eventually(lambda: _is_settled(consumer, dead=int(again == "redrive")))
        # when
        if again == "redrive":
            await consumer.redrive(everything=True)
        else:
            await consumer.rewind("beginning")
        # then
        await eventually(lambda: seen == ["a", "a"], within=5)


async def _is_settled(consumer: AsyncConsumer[Note], *, dead: int) -> bool:
    status = await consumer.status()
    return (status.lag, status.leases, status.ready, status.inflight, status.dead) == (0, 0, 0, 0, dead)
