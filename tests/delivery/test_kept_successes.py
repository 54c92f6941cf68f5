"""A history that keeps successes: one entry for each delivery, written for many of them at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, meta
from tests.support import Note, consuming, eventually


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database_url) as client:
        yield client


async def make_group(client: AsyncClient, messages: int, **options: Any) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(retry_base=timedelta(milliseconds=10), retry_exponent=1, **options)
    await stream.producer().produce_many([Note(str(number)) for number in range(messages)])
    return group


async def until_done(group: AsyncConsumer[Note]) -> None:
    async def is_done() -> bool:
        status = await group.status()
        return (status.lag, status.leases, status.ready, status.inflight) == (0, 0, 0, 0)

    await eventually(is_done)


def kept(url: str) -> list[tuple[int, int, str]]:
    with psycopg.connect(url) as connection:
        query = "select message_id, attempt, outcome from sqlstreams.delivery_log_1 order by message_id, id"
        return connection.execute(query).fetchall()


EXPECTED = [
    entry
    for number in range(1, 201)
    for entry in ([(number, 1, "succeeded")] if number % 40 else [(number, 1, "failed"), (number, 2, "succeeded")])
]


def fail_sometimes() -> None:
    if meta().id % 40 == 0 and meta().attempt == 1:
        raise ValueError("once")


async def plain(note: Note) -> None:
    fail_sometimes()


async def transactional(note: Note, connection: psycopg.AsyncConnection[Any]) -> None:
    fail_sometimes()


@pytest.mark.parametrize("handler", [plain, transactional])
async def test_every_delivery_has_one_entry(
    client: AsyncClient, database_url: str, handler: Callable[..., Any]
) -> None:
    group = await make_group(client, 200, delivery_log="all")
    async with consuming(group, handler, transactional=handler is transactional, prefetch=100):
        await until_done(group)
    assert kept(database_url) == EXPECTED
    assert [(each.outcome, each.attempt) for each in await group.deliveries(40)] == [("failed", 1), ("succeeded", 2)]


async def test_successes_are_written_many_at_a_time(client: AsyncClient, database_url: str) -> None:
    group = await make_group(client, 1_000, delivery_log="all")

    async def handle(note: Note) -> None: ...

    async with consuming(group, handle, prefetch=200):
        await until_done(group)
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "select count(*), count(distinct xmin::text) from sqlstreams.delivery_log_1 where outcome = 'succeeded'"
        ).fetchone()
    assert row is not None
    assert row[0] == 1_000
    assert row[1] <= 20


async def test_successes_that_wait_to_be_written_are_written_when_consuming_ends(
    client: AsyncClient, database_url: str
) -> None:
    group = await make_group(client, 10, delivery_log="all")

    async def handle(note: Note) -> None: ...

    async with consuming(group, handle, prefetch=100):
        await eventually(lambda: group.stats.handled == 10)
    assert kept(database_url) == [(number, 1, "succeeded") for number in range(1, 11)]


@pytest.mark.parametrize(("mode", "outcomes"), [("failures", {"failed"}), ("off", set())])
async def test_other_modes_keep_no_success(
    client: AsyncClient, database_url: str, mode: str, outcomes: set[str]
) -> None:
    group = await make_group(client, 50, delivery_log=mode)
    async with consuming(group, plain):
        await until_done(group)
    assert {outcome for _, _, outcome in kept(database_url)} == outcomes


async def test_a_mode_that_changes_meanwhile_holds_from_then_on(client: AsyncClient, database_url: str) -> None:
    group = await make_group(client, 5)
    async with consuming(group, plain):
        await until_done(group)
        await group.register(delivery_log="all")
        producer = client.stream("notes", Note).producer()

        async def is_kept() -> bool:
            await producer.produce(Note("later"))
            return bool(kept(database_url))

        await eventually(is_kept)
        await until_done(group)
    entries = kept(database_url)
    assert min(number for number, _, _ in entries) > 5
    assert [number for number, _, _ in entries] == list(range(entries[0][0], entries[-1][0] + 1))
