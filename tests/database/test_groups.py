"""Consumer groups: declared, changed, where they begin, and what their status says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any, LiteralString

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncStream, Client, InvalidInput, NotFound, meta
from tests.support import Note, consuming, eventually


def _ask(url: str, query: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def _logged(url: str) -> list[str]:
    return [action for (action,) in _ask(url, "select action from sqlstreams.consumer_group_config_log order by id")]


async def test_registering_the_same_again_writes_nothing(database_url: str) -> None:
    rows: LiteralString = """
        select xmin::text, updated_at::text from sqlstreams.consumer_group_config
         union all select xmin::text, claimed::text from sqlstreams.consumer_group_cursor
         union all select xmin::text, id::text from sqlstreams.consumer_group_config_log
    """
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.consumer("g").register(max_retries=3)
        await stream.producer().produce(Note("a"))
        before = _ask(database_url, rows)
        await stream.consumer("g").register(max_retries=3, start="head")
        assert _ask(database_url, rows) == before


async def test_the_newest_declaration_wins_and_is_logged(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(start=5)
        before = await consumer.get()
        await consumer.register(max_retries=1, retry_base=timedelta(seconds=2), retry_cap=timedelta(hours=1))
        after = await consumer.get()
    assert before is not None
    assert after is not None
    assert (before.max_retries, before.retry_base, before.start_at) == (10, timedelta(seconds=1), "5")
    assert (after.max_retries, after.retry_base, after.start_at) == (1, timedelta(seconds=2), "5")
    assert after.updated_at > before.updated_at
    assert _logged(database_url) == ["registered", "changed"]


def test_a_group_needs_its_stream(database_url: str) -> None:
    with Client(database_url) as client:
        with pytest.raises(NotFound, match="no stream named 'nobody'"):
            client.stream("nobody", Note).consumer("g").register()
        assert client.list_consumers() == []


def test_groups_are_listed_by_stream_and_name(database_url: str) -> None:
    with Client(database_url) as client:
        for stream in ("b", "a"):
            for group in ("y", "x"):
                client.stream(stream, Note).register().consumer(group).register()
        assert [(each.stream, each.name) for each in client.list_consumers()] == [
            ("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"),
        ]  # fmt: skip
        assert [each.name for each in client.list_consumers("b")] == ["x", "y"]


async def test_a_renamed_group_keeps_its_place(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("old").register(start=7)
        await stream.consumer("taken").register()
        with pytest.raises(InvalidInput, match="new_name is taken"):
            await consumer.rename("taken")
        renamed = await consumer.rename("new")
        assert (await renamed.status()).claimed == 7
        assert await consumer.get() is None
    assert _logged(database_url) == ["registered", "registered", "renamed"]


def test_of_many_groups_that_want_one_name_at_once_one_gets_it(database_url: str) -> None:
    def rename(number: int) -> bool:
        with Client(database_url, pool_size=1) as client:
            consumer = client.stream("notes", Note).consumer(f"g{number}").register()
            barrier.wait()
            try:
                consumer.rename("wanted")
            except InvalidInput:
                return False
            return True

    barrier = Barrier(5)
    with Client(database_url) as client, ThreadPoolExecutor(5) as threads:
        client.stream("notes", Note).register()
        assert sorted(threads.map(rename, range(5))) == [False] * 4 + [True]


async def test_a_destroyed_group_leaves_nothing_and_can_begin_anew(database_url: str) -> None:
    async with AsyncClient(database_url, allow_destroy=True) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(start=7)
        _ask(
            database_url,
            "insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)"
            " values (1, 1, 'dead', now())",
        )
        await consumer.destroy()
        assert await consumer.get() is None
        with pytest.raises(NotFound):
            await consumer.destroy()
        assert (await (await consumer.register()).status()).claimed == 0
    assert _ask(database_url, "select count(*) from sqlstreams.exception_queue_1") == [(0,)]
    assert _logged(database_url) == ["registered", "destroyed", "registered"]


@pytest.fixture
async def five(database_url: str) -> Any:
    """A stream with five messages, the third of which was produced an hour after the second."""
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce_many([Note(str(number)) for number in range(1, 6)])
        _ask(
            database_url,
            "update sqlstreams.message_log_1 set created_at = timestamptz '2026-01-01 00:00+00'"
            " + case when id < 3 then interval '0' else interval '1 hour' end",
        )
        yield stream


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", 1),
        ("head", 6),
        (0, 1),
        (2, 3),
        (99, 100),
        (datetime(2026, 1, 1, tzinfo=UTC), 1),
        (datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), 3),
        (datetime(2026, 1, 1, 1, tzinfo=UTC), 3),
        (datetime(2027, 1, 1, tzinfo=UTC), 6),
        (datetime(1999, 1, 1, tzinfo=UTC), 1),
    ],
    ids=str,
)
async def test_a_group_begins_where_it_says(five: AsyncStream[Note], start: Any, first: int) -> None:
    consumer = await five.consumer("g").register(start=start)
    assert (await consumer.status()).claimed == first - 1
    assert [message.id for message in await five.read(start)] == list(range(first, 6))


async def test_a_group_that_begins_at_an_id_gets_what_is_behind_it(five: AsyncStream[Note]) -> None:
    consumer = await five.consumer("g").register(start=3)
    seen: list[int] = []
    async with consuming(consumer, lambda note: seen.append(meta().id), concurrency=1):
        await eventually(lambda: seen == [4, 5])


async def test_a_naive_time_is_refused(five: AsyncStream[Note]) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001  # that is what is wrong
    with pytest.raises(InvalidInput, match="start must be an aware datetime"):
        await five.consumer("g").register(start=naive)
    with pytest.raises(InvalidInput, match="start must be an aware datetime"):
        await five.read(naive)
    assert await five.consumer("g").get() is None


async def test_the_status_of_a_group_says_how_far_behind_it_is(database_url: str, five: AsyncStream[Note]) -> None:
    consumer = await five.consumer("g").register()
    status = await consumer.status()
    assert (status.stream, status.name, status.head, status.claimed, status.committed) == ("notes", "g", 5, 0, 0)
    assert status.lag == 5
    assert status.lag_time > datetime.now(UTC) - datetime(2026, 1, 1, 0, 1, tzinfo=UTC) - timedelta(minutes=2)
    async with consuming(consumer, lambda note: None):
        await eventually(lambda: consumer.stats.handled == 5)
    status = await consumer.status()
    assert (status.claimed, status.committed, status.lag, status.lag_time) == (5, 5, 0, timedelta(0))
    assert (status.leases, status.processes, status.reclaims, status.holders) == (0, 0, 0, ())


async def test_the_status_of_a_group_counts_exceptions_and_names_who_holds_it_back(
    database_url: str, five: AsyncStream[Note]
) -> None:
    consumer = await five.consumer("g").register(start=5)
    _ask(
        database_url,
        "insert into sqlstreams.exception_queue_1 (group_id, message_id, state, token, can_run_after)"
        " values (1, 1, 'dead', null, now()), (1, 2, 'ready', null, now())"
        "      , (1, 3, 'inflight', gen_random_uuid(), now()), (2, 4, 'dead', null, now())",
    )
    async with await psycopg.AsyncConnection.connect(database_url, application_name="slow one") as slow:
        await five.producer().produce(Note("6"), connection=slow)
        await five.producer().produce(Note("7"))
        status = await consumer.status()
        assert [(holder.application, holder.pid) for holder in status.holders] == [("slow one", slow.info.backend_pid)]
        assert "slow one" in str(status.holders[0])
        await slow.rollback()
    assert (status.ready, status.inflight, status.dead) == (1, 1, 1)
    assert (await consumer.status()).holders == ()


def test_a_status_counts_a_hundred_thousand_dead_messages_and_no_further(database_url: str) -> None:
    with Client(database_url) as client:
        group = client.stream("notes", Note).register().consumer("g").register()
        _ask(database_url, _DEAD)
        assert group.status().dead == 100_000
        _ask(database_url, "delete from sqlstreams.exception_queue_1 where message_id <= 2")
        assert group.status().dead == 99_999


_DEAD: LiteralString = """
    insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)
    select 1, n, 'dead', now() from generate_series(1, 100001) as n
"""
