"""Handlers that take several messages at a time: each message has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, Delay, InvalidInput, Message, Terminal, meta, metas
from sqlstreams.consume.batches import read_outcomes
from tests.delivery.effects import INSERT, effects, seen
from tests.support import Note, consuming, eventually


@pytest.fixture
def effect(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with effects(database_url) as connection:
        yield connection


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database_url) as client:
        yield client


async def make_group(client: AsyncClient, messages: int, **options: Any) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(retry_base=timedelta(milliseconds=10), retry_exponent=1, **options)
    await stream.producer().produce_many([Note(str(number)) for number in range(1, messages + 1)])
    return group


async def until_done(group: AsyncConsumer[Note]) -> None:
    async def is_done() -> bool:
        status = await group.status()
        return (status.lag, status.leases, status.ready, status.inflight) == (0, 0, 0, 0)

    await eventually(is_done)


async def test_a_batch_holds_what_is_there_and_never_waits_to_be_full(client: AsyncClient) -> None:
    group = await make_group(client, 25)
    batches: list[list[int]] = []

    async def handle(notes: list[Note]) -> None:
        assert [each.id for each in metas()] == [int(note.text) for note in notes]
        batches.append([each.id for each in metas()])

    async with consuming(group, handle, batch=10, concurrency=1, prefetch=100):
        await until_done(group)
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert [each for batch in batches for each in batch] == list(range(1, 26))


async def test_a_plain_function_takes_batches_too(client: AsyncClient) -> None:
    group = await make_group(client, 25)
    handled: list[str] = []

    def handle(notes: list[Note]) -> None:
        handled.extend(note.text for note in notes)

    async with consuming(group, handle, batch=10):
        await until_done(group)
    assert sorted(map(int, handled)) == list(range(1, 26))


async def test_each_message_has_the_outcome_that_the_handler_gives_it(client: AsyncClient) -> None:
    group = await make_group(client, 6)

    async def handle(notes: list[Note]) -> list[Exception | None]:
        said: dict[str, Exception] = {"2": ValueError("no"), "3": Terminal("never"), "4": Delay(timedelta(0))}
        return [None if each.attempt > 1 else said.get(note.text) for note, each in zip(notes, metas(), strict=True)]

    async with consuming(group, handle, batch=6):
        await until_done(group)
    kept = [[(each.outcome, each.error_type) for each in await group.deliveries(number)] for number in range(1, 7)]
    assert kept == [[], [("failed", "ValueError")], [("dead", "Terminal")], [("delayed", "Delay")], [], []]


async def test_raising_is_for_all_of_a_batch(client: AsyncClient) -> None:
    group = await make_group(client, 5)

    async def handle(notes: list[Note]) -> None:
        if all(each.attempt == 1 for each in metas()):
            raise ValueError("all of it")

    async with consuming(group, handle, batch=5):
        await until_done(group)
    assert (group.stats.failed, group.stats.dead) == (5, 0)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([None], "for each of its 2 messages, but it returned 1"),
        ("no", "but it returned str"),
        ([None, True], "but one of it is bool"),
        ([None, ValueError], "but one of it is type"),
        ([None, KeyboardInterrupt()], "but one of it is KeyboardInterrupt"),
    ],
)
def test_an_answer_that_cannot_be_told_is_refused(returned: object, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        read_outcomes(returned, 2)


async def test_an_answer_that_cannot_be_told_is_a_failure_of_all(client: AsyncClient) -> None:
    group = await make_group(client, 3, max_retries=0)

    async def handle(notes: list[Note]) -> list[None]:
        return [None]

    async with consuming(group, handle, batch=3):
        await eventually(lambda: group.stats.dead == 3)
    letters = await group.dead_letters()
    assert {letter.error_type for letter in letters} == {"TypeError"}


async def test_what_cannot_be_read_never_reaches_the_handler_and_spoils_nothing(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    group = await make_group(client, 5)
    effect.execute("update sqlstreams.message_log_1 set payload = '{\"text\": 7}' where id = 2")
    effect.execute("update sqlstreams.message_log_1 set schema_version = 9 where id = 4")
    handled: list[str] = []

    async def handle(notes: list[Note]) -> None:
        handled.extend(note.text for note in notes)

    async with consuming(group, handle, batch=5):
        await eventually(lambda: (group.stats.handled, group.stats.dead, group.stats.unread) == (3, 1, 1))
    assert handled == ["1", "3", "5"]


async def test_the_shortest_timeout_holds_for_the_batch(client: AsyncClient) -> None:
    group = await make_group(client, 2, timeout=timedelta(minutes=1))
    short = {"timeout": timedelta(milliseconds=50), "max_retries": 0}
    await client.stream("notes", Note).producer().produce(Note("3"), **short)  # type: ignore[arg-type]  # as they are
    attempts: list[int] = []

    async def handle(notes: list[Note]) -> None:
        attempts.append(len(notes))
        if len(attempts) == 1:
            await asyncio.sleep(60)

    async with consuming(group, handle, batch=3):
        await eventually(lambda: (group.stats.failed, group.stats.dead, group.stats.handled) == (3, 1, 2))


@pytest.mark.parametrize("concurrency", ["ordered", "exclusive"])
async def test_a_key_has_one_message_in_a_batch_and_keeps_its_order(client: AsyncClient, concurrency: str) -> None:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(concurrency=concurrency, retry_base=timedelta(milliseconds=5))
    await stream.producer().produce_many([Message(Note(str(number)), key=f"k{number % 5}") for number in range(60)])
    running: Counter[str | None] = Counter()
    done: dict[str | None, list[int]] = {}

    async def handle(notes: list[Note]) -> list[Exception | None]:
        keys = [each.key for each in metas()]
        running.update(keys)
        assert max(running.values()) == 1
        await asyncio.sleep(0)
        running.subtract(keys)
        failed = [each.id % 9 == 0 and each.attempt == 1 for each in metas()]
        for each, is_failed in zip(metas(), failed, strict=True):
            if not is_failed:
                done.setdefault(each.key, []).append(each.id)
        return [ValueError("once") if each else None for each in failed]

    async with consuming(group, handle, batch=10, concurrency=3):
        await eventually(lambda: sum(map(len, done.values())) == 60)
        await until_done(group)
    assert sum(map(len, done.values())) == 60
    assert concurrency == "exclusive" or all(ids == sorted(ids) for ids in done.values())


async def test_a_transactional_batch_shares_one_transaction(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    group = await make_group(client, 40)
    spoiled: list[int] = []

    async def handle(notes: list[Note], connection: psycopg.AsyncConnection[Any]) -> list[Exception | None]:
        told: list[Exception | None] = []
        for each in metas():
            if each.id % 6 == 0 and each.attempt == 1:
                told.append(ValueError("once"))
            else:
                await connection.execute(INSERT, [each.id])
                told.append(None)
        if len(spoiled) < 3:
            spoiled.append(len(notes))
            raise ValueError("all of it")
        return told

    async with consuming(group, handle, transactional=True, batch=10, concurrency=2):
        await until_done(group)
    assert seen(effect) == list(range(1, 41))
    assert effect.execute("select count(distinct xmin::text) < 40 from effects").fetchone() == (True,)


async def test_meta_is_of_one_message_and_metas_of_however_many(client: AsyncClient) -> None:
    group = await make_group(client, 1)
    told: list[str] = []

    async def handle(notes: list[Note]) -> None:
        with pytest.raises(RuntimeError, match="in a batch, ask"):
            meta()
        told.append("batch")

    async def handle_one(note: Note) -> None:
        assert metas() == [meta()]
        told.append("one")

    async with consuming(group, handle, batch=1):
        await eventually(lambda: told == ["batch"])
        await until_done(group)
    await client.stream("notes", Note).producer().produce(Note("2"))
    async with consuming(group, handle_one):
        await eventually(lambda: told == ["batch", "one"])
    with pytest.raises(RuntimeError, match="only inside a handler"):
        metas()


async def test_a_batch_of_none_is_refused(client: AsyncClient) -> None:
    group = await make_group(client, 0)
    with pytest.raises(InvalidInput, match="batch must be between 1 and 10000, got 0"):
        await group.consume(print, batch=0)
