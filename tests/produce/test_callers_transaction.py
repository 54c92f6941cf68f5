"""produce(connection=…): the message is part of the caller's transaction, whatever the connection is like."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row

from sqlstreams import AsyncClient, Client, InvalidInput, NotFound, Producer
from tests.produce.log import ask, stored
from tests.support import Note


def _producer(client: Client) -> Producer[Note]:
    return client.stream("notes", Note).register().producer().register()


def test_an_autocommit_connection_commits_at_once(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=True) as connection:
        _producer(client).produce(Note("a"), connection=connection)
        assert stored(database_url) == ["a"]


def test_a_message_is_there_when_the_callers_transaction_commits_and_not_before(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url) as connection:
        producer = _producer(client)
        connection.execute("select 1")
        producer.produce(Note("a"), connection=connection)
        producer.produce_many([Note("b"), Note("c")], connection=connection)
        assert stored(database_url) == []
        connection.commit()
        assert stored(database_url) == ["a", "b", "c"]


def test_a_produce_that_begins_the_callers_transaction_does_not_end_it(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url) as connection:
        producer = _producer(client)
        producer.produce(Note("first statement"), connection=connection)
        assert stored(database_url) == []
        connection.rollback()
        producer.produce(Note("kept"), connection=connection)
        connection.commit()
        assert stored(database_url) == ["kept"]


async def test_a_produce_that_begins_an_async_callers_transaction_does_not_end_it(database_url: str) -> None:
    async with AsyncClient(database_url) as client, await psycopg.AsyncConnection.connect(database_url) as connection:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("first statement"), connection=connection)
        assert stored(database_url) == []
        await connection.rollback()
        await producer.produce(Note("kept"), connection=connection)
        await connection.commit()
        assert stored(database_url) == ["kept"]


def test_a_rolled_back_transaction_takes_its_messages_along(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=True) as connection:
        producer = _producer(client)
        with connection.transaction(force_rollback=True):
            producer.produce(Note("gone"), connection=connection)
        with connection.transaction():
            producer.produce(Note("kept"), connection=connection)
    assert stored(database_url) == ["kept"]


def test_a_rolled_back_savepoint_takes_only_its_own_messages_along(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=True) as connection:
        producer = _producer(client)
        with connection.transaction():
            producer.produce(Note("before"), connection=connection)
            with connection.transaction(force_rollback=True):
                producer.produce(Note("inside"), connection=connection)
            producer.produce(Note("after"), connection=connection)
    assert stored(database_url) == ["before", "after"]


@pytest.mark.parametrize("autocommit", [True, False])
def test_the_callers_row_factory_is_left_alone(database_url: str, autocommit: bool) -> None:
    with (
        Client(database_url) as client,
        psycopg.connect(database_url, row_factory=dict_row, autocommit=autocommit) as connection,
    ):
        receipts = _producer(client).produce_many([Note("a"), Note("b")], connection=connection)
        assert [receipt.id for receipt in receipts] == [1, 2]
        assert connection.execute("select 1 as one").fetchone() == {"one": 1}


def test_json_is_still_parsed_on_the_callers_connection(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url) as connection:
        _producer(client).produce(Note("a"), connection=connection)
        assert connection.execute("""select '{"a": 1}'::json""").fetchone() == ({"a": 1},)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_connection_in_pipeline_mode_will_do(database_url: str, autocommit: bool) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=autocommit) as connection:
        producer = _producer(client)
        with connection.pipeline():
            with connection.transaction():
                connection.execute("select 1")
                receipts = producer.produce_many([Note("a"), Note("b")], connection=connection)
            producer.produce(Note("c"), connection=connection)
        connection.commit()
        assert [receipt.id for receipt in receipts] == [1, 2]
    assert stored(database_url) == ["a", "b", "c"]


async def test_an_async_connection_in_pipeline_mode_will_do(database_url: str) -> None:
    async with AsyncClient(database_url) as client, await psycopg.AsyncConnection.connect(database_url) as connection:
        producer = (await client.stream("notes", Note).register()).producer()
        async with connection.pipeline():
            await producer.produce_many([Note("a"), Note("b")], connection=connection)
        await connection.commit()
    assert stored(database_url) == ["a", "b"]


def test_a_refused_message_leaves_the_callers_transaction_alive(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=True) as connection:
        producer = _producer(client)
        with connection.transaction():
            producer.produce(Note("kept"), connection=connection)
            with pytest.raises(InvalidInput):
                producer.produce(Note("\x00"), connection=connection)
            with pytest.raises(InvalidInput):
                producer.produce_many([Note("fine"), Note("\ud800")], connection=connection)
    assert stored(database_url) == ["kept"]


def test_a_destroyed_stream_is_not_found_in_the_callers_transaction(database_url: str) -> None:
    with (
        Client(database_url, allow_destroy=True) as client,
        Client(database_url) as other,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        _producer(client)
        producer = other.stream("notes", Note).producer().register()
        client.stream("notes", Note).destroy()
        with pytest.raises(NotFound, match="no stream named 'notes'"), connection.transaction():
            producer.produce(Note("a"), connection=connection)


async def test_a_destroyed_stream_is_not_found_in_an_async_callers_transaction(database_url: str) -> None:
    async with (
        AsyncClient(database_url, allow_destroy=True) as client,
        AsyncClient(database_url) as other,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
    ):
        stream = await client.stream("notes", Note).register()
        producer = await other.stream("notes", Note).producer().register()
        await stream.destroy()
        with pytest.raises(NotFound, match="no stream named 'notes'"):
            await producer.produce(Note("a"), connection=connection)


def test_a_callers_rolled_back_partition_is_not_counted_on(database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, autocommit=True) as connection:
        producer = client.stream("notes", Note).register(partition_rows=1_000_000).producer()
        ask(database_url, "select setval('sqlstreams.message_log_1_id', 999998)")
        with connection.transaction(force_rollback=True):
            producer.produce_many([Note("gone"), Note("over the edge")], connection=connection)
        with connection.transaction():
            producer.produce(Note("kept"), connection=connection)
    assert stored(database_url) == ["kept"]
