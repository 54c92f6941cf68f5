"""Dropping a partition while others read, write, crash or do the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, Client
from sqlstreams.manager.retention import Retention
from tests.produce.log import ask
from tests.retention.logs import age, consume_all, ids, stream_of, tables
from tests.support import Note


@asynccontextmanager
async def reader_of(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Have a transaction open that sees the log as it is now."""
    async with await psycopg.AsyncConnection.connect(url, application_name="report") as reader:
        await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await reader.execute("select count(*) from sqlstreams.message_log_1")
        yield reader


def detaching(url: str) -> int:
    return int(ask(url, "select count(*) from pg_inherits where inhdetachpending")[0][0])


async def test_a_reader_delays_the_drop_and_nobody_else(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    group = await stream.consumer("g").register(start=2_500)
    producer = stream.producer()
    async with reader_of(database_url) as reader:
        expiry = await stream.expire()
        assert (expiry.kept_from, expiry.partitions, expiry.messages) == (2_501, 0, 501)
        (reason,) = expiry.held_back_by
        assert reason.startswith(
            f"the partition from id 0 on waits for those who use the log: pid {_pid(reader)} (report)"
        )
        assert detaching(database_url) == 1
        # Everybody else goes on: at the end of the log, and at its edge.
        await producer.produce_many([Note("new")] * 900)
        await asyncio.wait_for(producer.produce_many([Note("new")] * 900), 5)
        await asyncio.wait_for(consume_all(group), 10)
        assert ids(database_url)[0] == 1_000
        assert (await stream.expire()).held_back_by[0].startswith("the partition from id 0 on waits")
        count = await (await reader.execute("select count(*) from sqlstreams.message_log_1")).fetchone()
        assert count == (2_500,)  # it sees what it saw before
    done = await stream.expire()
    assert (done.partitions, done.held_back_by, detaching(database_url)) == (2, (), 0)
    assert tables(database_url)[0] == "2000"


def test_with_a_blocking_client_it_gives_up_as_well(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url) as reader:
        stream = client.stream("notes", Note).register(partition_rows=1_000, retention=timedelta(days=1))
        ask(database_url, "select sqlstreams.extend_log(1, 3000)")
        stream.producer().produce_many([Note("")] * 1_200)
        age(database_url)
        reader.execute("select from sqlstreams.message_log_1")
        assert stream.expire().partitions == 0
        assert stream.producer().produce(Note("next")).id == 1_201
        reader.rollback()
        assert stream.expire().partitions == 1


async def test_what_was_detached_before_a_crash_is_dropped_later(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    # given the first id that is kept was moved, and the process died behind DETACH
    ask(database_url, "update sqlstreams.stream_config set kept_from = 2501, expired_before = now()")
    ask(database_url, "alter table sqlstreams.message_log_1 detach partition sqlstreams.message_log_1_from_0")
    # and another table of ours was taken out of the middle by hand
    expiry = await stream.expire()
    assert expiry.partitions == 2
    assert tables(database_url)[0] == "2000"


async def test_a_partition_that_somebody_else_detached_above_the_first_kept_id_is_left_alone(
    client: AsyncClient, database_url: str
) -> None:
    stream = await stream_of(client, database_url, old=100, new=2_000)
    ask(database_url, "alter table sqlstreams.message_log_1 detach partition sqlstreams.message_log_1_from_0")
    await stream.expire()
    assert tables(database_url)[0] == "0"


async def test_several_at_once_drop_everything_once(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=4_500)
    async with AsyncClient(database_url) as other:
        done = await asyncio.gather(stream.expire(), other.stream("notes", Note).expire())
    await stream.expire()
    assert ids(database_url) == []
    assert tables(database_url)[0] == "4000"
    assert {each.kept_from for each in done} == {4_501}


async def test_the_duty_goes_through_all_streams_a_batch_at_a_time(client: AsyncClient, database_url: str) -> None:
    await stream_of(client, database_url, old=2_500)
    await client.stream("others", Note).register(retention=timedelta(days=1))
    await client.stream("for-ever", Note).register()
    duty = Retention(client._database)
    ran = [await duty.run_once()]
    while ran[-1].again:
        ran.append(await duty.run_once())
    assert [each.done for each in ran] == [501 + 1, 1, 0]
    assert tables(database_url)[0] == "2000"


async def test_a_stream_that_fails_keeps_no_other_from_its_turn(client: AsyncClient, database_url: str) -> None:
    await client.stream("broken", Note).register(retention=timedelta(days=1))
    other = await client.stream("others", Note).register(retention=timedelta(days=1))
    await other.producer().produce(Note("old"))
    ask(database_url, "update sqlstreams.message_log_2 set created_at = created_at - interval '2 days'")
    ask(database_url, "alter table sqlstreams.delivery_log_1 rename to away")
    with pytest.raises(Exception, match="delivery_log_1"):
        await Retention(client._database).run_once()
    assert (await other.status()).kept_from == 2


def _pid(connection: psycopg.AsyncConnection[Any]) -> int:
    return connection.info.backend_pid
