"""client.transaction(): a transaction for callers who have none, committed exactly once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg
import pytest
from psycopg.rows import dict_row

from sqlstreams import AsyncClient, Client, DatabaseUnavailable, Producer, ProduceUncertain, RawPayload
from tests.produce.log import ask, stored
from tests.produce.proxy import Moment, lossy
from tests.support import Note

pytestmark = pytest.mark.usefixtures("orders")


@pytest.fixture
def orders(database_url: str) -> None:
    ask(database_url, "create table orders (id text primary key deferrable initially deferred)")


class _Failure(Exception):
    """What goes wrong in the caller's block."""


def _rows(url: str) -> tuple[list[str], list[str]]:
    """Return the orders and the messages that others can see."""
    return [order for (order,) in ask(url, "select id from orders order by id")], stored(url)


INSERT = "insert into orders values (%s)"


async def test_row_and_message_commit_together(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        async with client.transaction() as connection:
            await connection.execute(INSERT, ["a"])
            await producer.produce(Note("a"), connection=connection)
            assert _rows(database_url) == ([], [])
        with suppress(_Failure):
            async with client.transaction() as connection:
                await producer.produce(Note("b"), connection=connection)
                await connection.execute(INSERT, ["b"])
                raise _Failure
    assert _rows(database_url) == (["a"], ["a"])


def test_row_and_message_of_a_blocking_client_commit_together(database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream("notes", Note).register().producer()
        with client.transaction() as connection:
            connection.execute(INSERT, ["a"])
            producer.produce_many([Note("a"), Note("b")], connection=connection)
            with connection.transaction(force_rollback=True):
                producer.produce(Note("c"), connection=connection)
        with suppress(_Failure), client.transaction() as connection:
            producer.produce(Note("d"), connection=connection)
            raise _Failure
    assert _rows(database_url) == (["a"], ["a", "b"])


async def test_the_consumers_are_woken_after_the_commit(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        async with client.transaction() as connection:
            await stream.producer().produce(Note("a"), connection=connection)
            await stream.producer().produce(Note("b"), connection=connection)
            await asyncio.to_thread(_assert_silent, database_url)
            listener = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
            await listener.execute('listen "sqlstreams:sqlstreams"')
        async with listener:
            woken = [each.payload async for each in listener.notifies(timeout=10, stop_after=1)]
    assert woken == ["1"]


def _assert_silent(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('listen "sqlstreams:sqlstreams"')
        assert list(connection.notifies(timeout=0.2)) == []


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_lost_commit_is_asked_about(database_url: str, moment: Moment) -> None:
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url) as client:
            producer = await (await client.stream("notes", Note).register()).producer().register()
            for number in range(10):
                proxy.break_next(moment)
                with suppress(DatabaseUnavailable):
                    async with client.transaction() as connection:
                        await connection.execute(INSERT, [f"{number}"])
                        await producer.produce(Note(f"{number}"), connection=connection)
                    assert moment != "before"
        assert proxy.broken == 10
    expected = [] if moment == "before" else [f"{number}" for number in range(10)]
    assert _rows(database_url) == (expected, expected)


def test_a_lost_commit_that_cannot_be_asked_about_is_uncertain(database_url: str) -> None:
    with lossy(database_url) as proxy, Client(proxy.url, timeout=1) as client:
        producer = client.stream("notes", Note).register().producer().register()
        proxy.break_next("after", close_too=True)
        with pytest.raises(ProduceUncertain, match="may be there or not"), client.transaction() as connection:
            producer.produce(Note("perhaps"), connection=connection)


def test_a_commit_that_the_database_refuses_is_the_callers_to_hear(database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream("notes", Note).register().producer()
        with pytest.raises(psycopg.errors.UniqueViolation):
            _order_twice(client, producer)
    assert _rows(database_url) == ([], [])


def _order_twice(client: Client, producer: Producer[Note]) -> None:
    with client.transaction() as connection:
        connection.execute(INSERT, ["a"])
        connection.execute(INSERT, ["a"])  # found when the transaction commits
        producer.produce(Note("a"), connection=connection)


def test_the_connection_loads_json_as_the_driver_does_and_comes_back_as_it_was(database_url: str) -> None:
    with Client(database_url, pool_size=1) as client:
        stream = client.stream("notes").register()
        producer = stream.producer().register()
        with client.transaction() as connection:
            connection.row_factory = dict_row
            row = connection.execute("""select '{"a": 1}'::json as j""").fetchone()
            assert row == {"j": {"a": 1}}
            producer.produce(RawPayload(b'{"a":1}'), connection=connection)
        assert [message.payload for message in stream.read()] == [RawPayload(b'{"a":1}')]
