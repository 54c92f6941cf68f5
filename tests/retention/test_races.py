"""Retention beside transactions that are still open: none of their messages, and no group's place, is lost unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from sqlstreams import AsyncClient, Expiry, InvalidInput, acts, meta
from sqlstreams.statements import Partition
from tests.produce.log import ask
from tests.retention.logs import MONTH, age, ids, stream_of, tables
from tests.support import Note, consuming, eventually

_AGE: LiteralString = """
    update sqlstreams.message_log_1
       set created_at = now() - interval '31 days'
     where created_at > now() - interval '1 day'
"""


@pytest.fixture
def other(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection beside the library's."""
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.mark.parametrize(("keep_unread", "groups"), [(True, 1), (False, 1), (False, 0)])
async def test_a_partition_with_an_open_insert_stays(
    client: AsyncClient, database_url: str, other: psycopg.Connection, keep_unread: bool, groups: int
) -> None:
    stream = await stream_of(client, database_url, old=1_100, keep_unread=keep_unread)
    slow = _insert(other)
    await stream.producer().produce_many([Note("old")] * 1_000)
    other_age = "update sqlstreams.message_log_1 set created_at = created_at - interval '31 days' where id > 1101"
    ask(database_url, other_age)
    group = stream.consumer("g")
    if groups:
        await group.register()
        async with consuming(group, lambda note: None):
            await eventually(lambda: _has_committed(group, slow - 1))
    expiry = await stream.expire()
    assert expiry.kept_from == 1_000
    assert expiry.held_back_by[0] == "an open transaction wrote into the partition from id 1000 on"
    assert expiry.held_back_by[-1].startswith("the partition from id 0 on waits for those who use the log: pid")
    other.commit()
    assert ids(database_url) == list(range(1_000, 2_102))
    if groups:
        seen: list[int] = []
        async with consuming(group, lambda note: seen.append(meta().id)):
            await eventually(lambda: slow in seen)


async def test_a_message_that_commits_late_is_read_before_it_goes(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=1_100)
    group = await stream.consumer("g").register(start=1_100)
    slow = _insert(other)
    await stream.producer().produce_many([Note("old")] * 1_000)
    other.commit()
    age(database_url)  # it too is too old, at the moment at which it can be seen
    assert (await stream.expire()).kept_from == 1_000
    seen: list[int] = []
    async with consuming(group, lambda note: seen.append(meta().id)):
        await eventually(lambda: len(seen) == 1_001)
        await eventually(lambda: _has_committed(group, 2_101))
    assert slow in seen
    assert (await stream.expire()).kept_from == 2_102


async def test_a_message_below_the_cut_of_the_partition_that_is_written_is_waited_for(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=100)
    slow = _insert(other)
    await stream.producer().produce_many([Note("old")] * 100)
    ask(
        database_url,
        "update sqlstreams.message_log_1 set created_at = created_at - interval '9 seconds' where id > 101",
    )
    # given the messages behind it are old at once
    await stream.register(partition_rows=1_000, retention=timedelta(seconds=1))
    assert (await stream.expire()).kept_from == slow
    other.commit()
    assert ids(database_url)[0] == slow


async def test_a_prepared_transaction_is_waited_for(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    if other.execute("show max_prepared_transactions").fetchone() == ("0",):
        pytest.skip("this server was started with max_prepared_transactions = 0")
    other.rollback()
    stream = await stream_of(client, database_url, old=1_100)
    _insert(other)
    other.execute("prepare transaction 'retention'")
    await stream.producer().produce_many([Note("old")] * 1_000)
    ask(
        database_url, "update sqlstreams.message_log_1 set created_at = created_at - interval '31 days' where id > 1101"
    )
    try:
        assert (await stream.expire()).kept_from == 1_000
    finally:
        ask(database_url, "rollback prepared 'retention'")
    assert (await stream.expire()).kept_from == 2_102


async def test_a_group_that_is_being_registered_is_seen_or_begins_with_what_is_kept(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    # given a registration that is not committed
    other.execute(
        "insert into sqlstreams.consumer_group_config (stream_id, name, max_retries, retry_base, retry_exponent,"
        " retry_cap, concurrency, limits, delivery_log, start_at)"
        " values (1, 'late', 1, '1 s', 1, '1 s', 'parallel', '{}', 'off', 'beginning')"
    )
    expiring = asyncio.create_task(stream.expire())
    await eventually(lambda: _waits_for_a_lock(database_url))
    other.execute("insert into sqlstreams.consumer_group_cursor (group_id, claimed) values (1, 1100)")
    other.commit()
    assert (await expiring).kept_from == 1_000
    assert [claimed for (claimed,) in ask(database_url, "select claimed from sqlstreams.consumer_group_cursor")] == [
        1_100
    ]


async def test_a_registration_that_waited_begins_with_what_is_kept(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    # given the first id that is kept was moved, by a transaction that is not committed
    other.execute("select from sqlstreams.stream_config for update")
    other.execute("update sqlstreams.stream_config set kept_from = 2501, expired_before = now()")
    group = stream.consumer("late")
    registering = asyncio.create_task(group.register())
    await eventually(lambda: _waits_for_a_lock(database_url))
    other.commit()
    await registering
    assert (await group.status()).claimed == 2_500


async def test_a_rewind_comes_before_or_finds_what_is_kept(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    group = await stream.consumer("g").register(start=2_500)
    # given a rewind that is not committed: retention waits for it and sees it
    other.execute("update sqlstreams.consumer_group_cursor set claimed = 1100")
    expiring = asyncio.create_task(stream.expire())
    await eventually(lambda: _waits_for_a_lock(database_url))
    other.commit()
    assert (await expiring).kept_from == 1_000
    # given retention is not committed: a rewind waits for it and is refused
    other.execute("select from sqlstreams.stream_config for update")
    other.execute("select from sqlstreams.consumer_group_cursor for update")
    other.execute("update sqlstreams.stream_config set kept_from = 2001, expired_before = now()")
    rewinding = asyncio.create_task(group.rewind(1_050))
    await eventually(lambda: _waits_for_a_lock(database_url))
    other.commit()
    with pytest.raises(InvalidInput, match="lies before the first message that is kept, which is 2001"):
        await rewinding


async def test_a_group_that_stays_locked_is_left_for_a_later_time(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=1_100)
    await stream.consumer("g").register(start=1_100)
    other.execute("select from sqlstreams.consumer_group_cursor for update")
    expiry = await stream.expire()
    assert expiry == Expiry(kept_from=1, held_back_by=expiry.held_back_by)
    assert "locked" in expiry.held_back_by[0]
    other.rollback()
    assert (await stream.expire()).kept_from == 1_101


async def test_dead_letters_are_redriven_before_they_go_or_not_at_all(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    group = await stream.consumer("g").register(start=2_500)
    ask(
        database_url,
        "insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)"
        " select 1, n * 400, 'dead', now() from generate_series(1, 6) as n",
    )
    # given a redrive that is not committed
    for statement in (
        "select from sqlstreams.stream_config for key share",
        "update sqlstreams.exception_queue_1 set state = 'ready' where message_id = 1200",
    ):
        other.execute(statement)
    expiring = asyncio.create_task(stream.expire())
    await eventually(lambda: _waits_for_a_lock(database_url))
    other.commit()
    expiry = await expiring
    assert (expiry.kept_from, expiry.exceptions) == (1_000, 2)
    # given the first id that is kept was moved and nothing is removed yet
    ask(database_url, "update sqlstreams.stream_config set kept_from = 2000")
    assert (await group.redrive(everything=True)).messages == 2
    assert (await group.redrive([1_600])).messages == 0


async def test_an_exception_row_that_is_locked_keeps_its_message(
    client: AsyncClient, database_url: str, other: psycopg.Connection
) -> None:
    stream = await stream_of(client, database_url, old=1_100)
    await stream.consumer("g").register(start=1_100)
    ask(
        database_url,
        "insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)"
        " values (1, 5, 'dead', now())",
    )
    other.execute("select from sqlstreams.exception_queue_1 for update")
    expiry = await stream.expire()
    assert (expiry.partitions, expiry.exceptions) == (0, 0)
    assert "locked" in expiry.held_back_by[0]
    assert tables(database_url)[0] == "0"
    other.rollback()
    expiry = await stream.expire()
    assert (expiry.partitions, expiry.exceptions) == (1, 1)


async def test_nothing_is_lost_while_messages_are_produced_consumed_and_expire(
    client: AsyncClient, database_url: str
) -> None:
    stream = await client.stream("notes", Note).register(partition_rows=1_000, retention=MONTH)
    group = await stream.consumer("g").register()
    seen: set[int] = set()
    made: list[int] = []

    async def produce() -> None:
        for _ in range(30):
            receipts = await stream.producer().produce_many([Note("")] * 100)
            made.extend(receipt.id for receipt in receipts)
            ask(database_url, _AGE)

    async def expire() -> None:
        while len(made) < 3_000:
            await stream.expire()

    async with consuming(group, lambda note: seen.add(meta().id), concurrency=50):
        await asyncio.gather(produce(), expire())
        await eventually(lambda: len(seen) == 3_000)
        await eventually(lambda: _has_committed(group, made[-1]))
    await stream.expire()
    assert sorted(seen) == sorted(made)
    assert (await stream.status()).kept_from == made[-1] + 1
    assert (await group.status()).lost == 0


def test_where_a_log_is_cut() -> None:
    def reach(taken: int, written: int | None = None) -> acts.Reach:
        return acts.Reach(
            old_through=0,
            partitions=tuple(
                Partition(low, low + 1_000, detaching=False, written=low == written, taken=taken)
                for low in (0, 1_000, 2_000)
            ),
        )

    assert [reach(1_500).below(end) for end in (1, 500, 999, 1_000, 1_001, 1_400)] == [0, 0, 0, 1_000, 1_001, 1_400]
    assert reach(999).below(500) == 500  # nothing is above it yet
    assert reach(1_000).below(500) == 0
    assert reach(9_999).below(3_000) == 3_000  # the last one is cut, not dropped
    assert reach(2_500, written=1_000).below(2_200) == 1_000
    assert [part.first_id for part in reach(9_999).droppable(3_000)] == [0, 1_000]
    assert [part.first_id for part in reach(1_000).droppable(1_001)] == [0]


def _insert(connection: psycopg.Connection) -> int:
    query = """insert into sqlstreams.message_log_1 (payload, created_at)
               values ('{"text": "slow"}', now() - interval '31 days') returning id"""
    return int((connection.execute(query).fetchone() or (0,))[0])


async def _has_committed(group: Any, through: int) -> bool:
    return bool((await group.status()).committed == through)


def _waits_for_a_lock(url: str) -> bool:
    return bool(
        ask(url, "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
    )
