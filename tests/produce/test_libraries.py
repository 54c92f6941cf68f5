"""produce(connection=…) with SQLAlchemy and Django: the business row and the message commit together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.db import connection as django_connection
from django.db import transaction
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sqlstreams import AsyncClient, Client, InvalidInput, Producer
from tests.produce.log import ask, stored
from tests.support import Note


def _producer(client: Client, *, partition_rows: int = 1_000_000) -> Producer[Note]:
    return client.stream("notes", Note).register(partition_rows=partition_rows).producer().register()


@pytest.fixture
def orders_url(database_url: str) -> str:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table orders (id text primary key)")
    return database_url


def _engine(url: str) -> Engine:
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)


def _async_engine(url: str) -> AsyncEngine:
    return create_async_engine(
        "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(url), poolclass=NullPool
    )


def _rows(url: str) -> tuple[list[str], list[str]]:
    """Return the orders and the messages that others can see."""
    return sorted(order for (order,) in ask(url, "select id from orders")), stored(url)


def _skip_to(url: str, message_id: int) -> None:
    """Have other producers use up the ids of all partitions."""
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("select setval('sqlstreams.message_log_1_id', %s)", [message_id])


class _Failure(Exception):
    """What goes wrong in the caller's block."""


INSERT = text("insert into orders values (:id)")


# SQLAlchemy


def test_a_session_commits_row_and_message_together(orders_url: str) -> None:
    engine = _engine(orders_url)
    with Client(orders_url) as client, Session(engine) as session:
        producer = _producer(client)
        session.execute(INSERT, {"id": "a"})
        producer.produce(Note("a"), connection=session)
        assert _rows(orders_url) == ([], [])
        session.commit()
        assert _rows(orders_url) == (["a"], ["a"])


def test_a_message_that_begins_a_sessions_transaction_is_rolled_back_with_it(orders_url: str) -> None:
    engine = _engine(orders_url)
    with Client(orders_url) as client, Session(engine) as session:
        producer = _producer(client)
        producer.produce(Note("a"), connection=session)
        session.execute(INSERT, {"id": "a"})
        session.rollback()
        producer.produce_many([Note("b")], connection=session)
        session.execute(INSERT, {"id": "b"})
        session.commit()
    assert _rows(orders_url) == (["b"], ["b"])


def test_a_nested_transaction_of_a_session_takes_only_its_own_along(orders_url: str) -> None:
    engine = _engine(orders_url)
    with Client(orders_url) as client, Session(engine) as session:
        producer = _producer(client)
        session.execute(INSERT, {"id": "a"})
        producer.produce(Note("a"), connection=session)
        with suppress(_Failure), session.begin_nested():
            session.execute(INSERT, {"id": "b"})
            producer.produce(Note("b"), connection=session)
            raise _Failure
        session.commit()
    assert _rows(orders_url) == (["a"], ["a"])


def test_a_connection_of_an_engine_commits_row_and_message_together(orders_url: str) -> None:
    engine = _engine(orders_url)
    with Client(orders_url) as client:
        producer = _producer(client)
        with engine.begin() as connection:
            connection.execute(INSERT, {"id": "a"})
            producer.produce(Note("a"), connection=connection)
        with suppress(_Failure), engine.begin() as connection:
            producer.produce(Note("b"), connection=connection)
            connection.execute(INSERT, {"id": "b"})
            raise _Failure
    assert _rows(orders_url) == (["a"], ["a"])


def test_a_missing_partition_heals_inside_a_sessions_transaction(orders_url: str) -> None:
    engine = _engine(orders_url)
    with Client(orders_url) as client, Session(engine) as session:
        producer = _producer(client, partition_rows=1_000)
        session.execute(INSERT, {"id": "a"})
        _skip_to(orders_url, 10_000)
        producer.produce(Note("a"), connection=session)
        session.commit()
    assert _rows(orders_url) == (["a"], ["a"])


def test_a_nested_transaction_of_a_connection_heals_and_takes_only_its_own_along(orders_url: str) -> None:
    engine = _engine(orders_url)
    with Client(orders_url) as client, engine.begin() as connection:
        producer = _producer(client, partition_rows=1_000)
        with suppress(_Failure), connection.begin_nested():
            connection.execute(INSERT, {"id": "a"})
            producer.produce(Note("a"), connection=connection)
            raise _Failure
        _skip_to(orders_url, 10_000)
        with connection.begin_nested():
            connection.execute(INSERT, {"id": "b"})
            producer.produce(Note("b"), connection=connection)
    assert _rows(orders_url) == (["b"], ["b"])


async def test_an_async_session_commits_row_and_message_together(orders_url: str) -> None:
    engine = _async_engine(orders_url)
    async with AsyncClient(orders_url) as client, AsyncSession(engine) as session:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("a"), connection=session)
        await session.execute(INSERT, {"id": "a"})
        assert _rows(orders_url) == ([], [])
        await session.commit()
        await producer.produce(Note("b"), connection=session)
        await session.rollback()
    assert _rows(orders_url) == (["a"], ["a"])


async def test_a_nested_transaction_of_an_async_session_heals_and_takes_only_its_own_along(orders_url: str) -> None:
    engine = _async_engine(orders_url)
    async with AsyncClient(orders_url) as client, AsyncSession(engine) as session:
        producer = (await client.stream("notes", Note).register(partition_rows=1_000)).producer()
        with suppress(_Failure):
            async with session.begin_nested():
                await session.execute(INSERT, {"id": "a"})
                await producer.produce(Note("a"), connection=session)
                raise _Failure
        _skip_to(orders_url, 10_000)
        async with session.begin_nested():
            await session.execute(INSERT, {"id": "b"})
            await producer.produce(Note("b"), connection=session)
        await session.commit()
    assert _rows(orders_url) == (["b"], ["b"])


async def test_an_async_connection_of_an_engine_commits_row_and_message_together(orders_url: str) -> None:
    engine = _async_engine(orders_url)
    async with AsyncClient(orders_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        async with engine.begin() as connection:
            await connection.execute(INSERT, {"id": "a"})
            await producer.produce(Note("a"), connection=connection)
            async with connection.begin_nested() as savepoint:
                await producer.produce(Note("b"), connection=connection)
                await savepoint.rollback()
    assert _rows(orders_url) == (["a"], ["a"])


# Django


@pytest.fixture
def django_url(orders_url: str) -> Iterator[str]:
    info = psycopg.conninfo.conninfo_to_dict(orders_url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": info["dbname"],
        "USER": info.get("user", ""),
        "PASSWORD": info.get("password", ""),
        "HOST": info.get("host", ""),
        "PORT": str(info.get("port", "")),
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database})
        django.setup()
    django_connection.close()
    django_connection.settings_dict.update(database)
    yield orders_url
    django_connection.close()


def _order(name: str) -> None:
    with django_connection.cursor() as cursor:
        cursor.execute("insert into orders values (%s)", [name])


def test_an_atomic_block_commits_row_and_message_together(django_url: str) -> None:
    with Client(django_url) as client:
        producer = _producer(client)
        with transaction.atomic():
            producer.produce(Note("a"), connection=django_connection)
            _order("a")
            assert _rows(django_url) == ([], [])
        assert _rows(django_url) == (["a"], ["a"])


def test_an_atomic_block_that_fails_leaves_nothing(django_url: str) -> None:
    with Client(django_url) as client:
        producer = _producer(client)
        with suppress(_Failure), transaction.atomic():
            _order("a")
            producer.produce(Note("a"), connection=django_connection)
            raise _Failure
    assert _rows(django_url) == ([], [])


def test_a_nested_atomic_block_takes_only_its_own_along(django_url: str) -> None:
    with Client(django_url) as client:
        producer = _producer(client)
        with transaction.atomic():
            _order("a")
            producer.produce(Note("a"), connection=django_connection)
            with suppress(_Failure), transaction.atomic():
                _order("b")
                producer.produce(Note("b"), connection=django_connection)
                raise _Failure
            producer.produce(Note("c"), connection=django_connection)
    assert _rows(django_url) == (["a"], ["a", "c"])


def test_a_missing_partition_heals_inside_an_atomic_block(django_url: str) -> None:
    with Client(django_url) as client:
        producer = _producer(client, partition_rows=1_000)
        with transaction.atomic():
            _order("a")
            _skip_to(django_url, 10_000)
            producer.produce(Note("a"), connection=django_connection)
    assert _rows(django_url) == (["a"], ["a"])


def test_outside_of_an_atomic_block_django_commits_at_once(django_url: str) -> None:
    with Client(django_url) as client:
        _producer(client).produce(Note("a"), connection=django_connection)
    assert _rows(django_url) == ([], ["a"])


# What is no connection of ours


@pytest.mark.parametrize("connection", ["postgresql://here", 5, object()])
def test_what_stands_for_no_connection_is_refused(database_url: str, connection: Any) -> None:
    with Client(database_url) as client:
        producer = _producer(client)
        with pytest.raises(InvalidInput, match=r"connection must be a psycopg\.Connection"):
            producer.produce(Note("a"), connection=connection)
    assert stored(database_url) == []


def test_a_session_with_another_driver_is_refused(database_url: str) -> None:
    with Client(database_url) as client, Session(create_engine("sqlite://")) as session:
        producer = _producer(client)
        with pytest.raises(InvalidInput, match=r"got sqlite3\.Connection"):
            producer.produce(Note("a"), connection=session)


async def test_a_connection_of_the_other_kind_is_refused_with_the_client_to_use(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        with psycopg.connect(database_url) as blocking, pytest.raises(InvalidInput, match="use Client for this one"):
            await producer.produce(Note("a"), connection=blocking)
    async with await psycopg.AsyncConnection.connect(database_url) as waiting:
        with Client(database_url) as client, pytest.raises(InvalidInput, match="use AsyncClient for this one"):
            _producer(client).produce(Note("a"), connection=waiting)
