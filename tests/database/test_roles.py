"""Roles under least rights: what each kind can do, what it cannot, and that streams to come are covered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, Client, InvalidInput, Message, NotFound, Terminal
from sqlstreams.database import AsyncDatabase, address
from sqlstreams.manager.upkeep import IdempotencyKeys, Leases, Partitions, Statistics
from tests.cli.command import run_here
from tests.produce.log import ask, stored
from tests.support import Note, consuming, eventually

_numbers = count(1)


@pytest.fixture
def role(database_url: str) -> Iterator[str]:
    """A role of this test alone that may do nothing."""
    name = f"sqlstreams Röle {os.getpid()} {next(_numbers)}"
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {}").format(sql.Identifier(name)))
        try:
            yield name
        finally:
            admin.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def _as(url: str, role: str) -> str:
    escaped = role.replace(" ", r"\ ")
    return make_conninfo(url, options=f"-c role={escaped}")


def _grant(url: str, role: str, kind: str, *, schema: str = "sqlstreams") -> None:
    with Client(url, schema=schema) as client:
        client.stream("notes", Note).register(partition_rows=1_000)
        assert client.system.grant(role, as_=kind) == client.system.grants(role, as_=kind)


def test_a_producer_can_produce_for_ever_and_nothing_else(database_url: str, role: str) -> None:
    _grant(database_url, role, "producer")
    with Client(_as(database_url, role)) as client:
        stream = client.stream("notes", Note)
        producer = stream.producer().register()
        producer.produce_many([Note(str(number)) for number in range(3_500)])  # past three edges, with no manager
        producer.produce(Note("keyed"), key="k", concurrency="ordered", compaction_rank=1, idempotency_key="i")
        assert producer.produce_many([Message(Note("keyed"), idempotency_key="i")])[0].duplicate
        with psycopg.connect(_as(database_url, role)) as connection:
            producer.produce(Note("within"), connection=connection)
            connection.execute("""select sqlstreams.produce('notes', '{"text": "one"}')""")
            connection.execute("""select sqlstreams.produce_many('notes', '[{"payload": {"text": "many"}}]')""")
        for refused in (stream.read, stream.status, stream.consumer("g").register, client.stream("new").register):
            with pytest.raises(pg.InsufficientPrivilege):
                refused()
    for query in ("select payload from sqlstreams.message_log_1", "delete from sqlstreams.message_log_1"):
        with psycopg.connect(_as(database_url, role)) as connection, pytest.raises(pg.InsufficientPrivilege):
            connection.execute(query)
    assert stored(database_url)[-4:] == ["keyed", "within", "one", "many"]


async def test_a_consumer_can_consume_and_see_to_its_dead_letters_and_nothing_else(
    database_url: str, role: str
) -> None:
    _grant(database_url, role, "consumer")
    handled: list[str] = []

    def handle(note: Note) -> None:
        if note.text == "bad":
            raise Terminal("bad")
        handled.append(note.text)

    async with AsyncClient(_as(database_url, role), manager=False) as client, AsyncClient(database_url) as owner:
        stream = client.stream("notes", Note)
        consumer = await stream.consumer("g").register(retry_base=timedelta(milliseconds=10))
        producer = owner.stream("notes", Note).producer()
        await producer.produce_many(
            [Note("good"), Note("bad"), Message(Note("keyed"), key="k", concurrency="ordered", compaction_rank=1)]
        )
        await producer.produce(Note("later"), key="z", compaction_rank=1, delay=timedelta(milliseconds=200))
        cancelled = await producer.produce(Note("never"), delay=timedelta(hours=1))
        async with consuming(consumer, handle):
            await eventually(lambda: len(handled) == 3)
            await eventually(lambda: _dead(consumer))
            assert [each.outcome for each in await stream.cancel(cancelled.id)] == ["cancelled"]
        assert [message.id for message in await stream.read()] == [1, 2, 3, 4, 5]
        with pytest.raises(pg.InsufficientPrivilege):
            await stream.producer().produce(Note("no"))
    with psycopg.connect(_as(database_url, role)) as connection, pytest.raises(pg.InsufficientPrivilege):
        connection.execute("select sqlstreams.extend_log(1, 1000000)")
    assert sorted(handled) == ["good", "keyed", "later"]


async def _dead(consumer: Any) -> bool:
    return bool((await consumer.status()).dead == 1)


def test_an_operator_can_do_all_but_register_and_destroy_streams(database_url: str, role: str) -> None:
    _grant(database_url, role, "operator")
    with Client(_as(database_url, role), allow_destroy=True) as client:
        stream = client.stream("notes", Note)
        stream.producer().produce(Note("a"))
        consumer = stream.consumer("g").register()
        consumer.rewind("beginning")
        assert stream.status().head == 1
        client.manager.suspend("statistics")
        client.scheduler("nightly").register("notes", "0 2 * * *", Note("now")).suspend()
        _declare_deadline(database_url, client)
        for refused in (stream.destroy, client.stream("new").register):
            with pytest.raises(pg.InsufficientPrivilege):
                refused()
    assert stored(database_url) == ["a"]


def _declare_deadline(database_url: str, client: Client) -> None:
    ask(database_url, "create table bills (id bigint primary key, due_at timestamptz, state text)")
    ask(database_url, "grant select on bills to public")
    for batch in (10, 20):
        client.deadline("overdue").register(
            "notes",
            table="bills",
            key="id",
            deadline="due_at",
            state="state",
            from_state="open",
            to_state="overdue",
            batch=batch,
        )
    client.deadline("overdue").observe()
    assert client.deadline("overdue").status().due == 0


async def test_a_manager_does_the_duties(database_url: str, role: str) -> None:
    _grant(database_url, role, "manager")
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register(partition_rows=1_000, retention=timedelta(seconds=1))
        stream.producer().produce_many([Note("a")] * 2_500)
    ask(database_url, "update sqlstreams.message_log_1 set created_at = now() - interval '1 hour' where id <= 2400")
    database = AsyncDatabase(address(_as(database_url, role), schema="sqlstreams", pool_size=2, timeout=20))
    await database.open()
    try:
        for duty in (Partitions(database), Leases(database), IdempotencyKeys(database), Statistics(database)):
            await duty.run_once()
    finally:
        await database.close()
    with Client(_as(database_url, role)) as client:
        done = client.stream("notes", Note).expire()
    assert done.partitions == 2, done
    assert ask(database_url, "select count(*) from sqlstreams.message_log_1 where id < 2000") == [(0,)]


def test_the_command_prints_the_grants_and_makes_them_only_when_told(
    database_url: str, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(database_url) as owner, Client(_as(database_url, role)) as client:
        owner.stream("notes", Note).register()
        command = ["system", "grant", role, "--as", "producer", "--database-url", database_url]
        printed = run_here(capsys, *command)
        assert [f"{line};" for line in owner.system.grants(role, as_="producer")] == printed.out.splitlines()
        with pytest.raises(pg.InsufficientPrivilege):
            client.stream("notes", Note).producer().produce(Note("a"))
        assert run_here(capsys, *command, "--apply").out == printed.out
        assert client.stream("notes", Note).producer().produce(Note("a")).id == 1


@pytest.mark.parametrize("kind", ["producer", "operator"])
def test_streams_to_come_are_covered(database_url: str, role: str, kind: str) -> None:
    _grant(database_url, role, kind)
    with Client(database_url) as owner, Client(_as(database_url, role)) as client:
        owner.stream("later", Note).register()
        assert client.stream("later", Note).producer().register().produce(Note("a")).id == 1


def test_a_role_of_one_installation_has_no_rights_in_another(database_url: str, role: str) -> None:
    _grant(database_url, role, "producer")
    with Client(database_url, schema="other") as owner:
        owner.stream("notes", Note).register()
    with Client(_as(database_url, role), schema="other") as client, pytest.raises(pg.InsufficientPrivilege):
        client.stream("notes", Note).producer().produce(Note("a"))


def test_a_log_is_not_extended_far_beyond_its_last_id(database_url: str, role: str) -> None:
    with Client(database_url) as client:
        client.stream("notes", Note).register(partition_rows=10_000_000)
        client.system.grant(role, as_="producer")
    with psycopg.connect(_as(database_url, role)) as connection:
        row = connection.execute("select sqlstreams.extend_log(1, 1000000000000)").fetchone()
    assert row == (110_000_000,)


@pytest.mark.parametrize(
    ("role_name", "kind"), [("", "producer"), ("x" * 64, "producer"), ("a\x00", "producer"), ("a", "king")]
)
def test_an_odd_role_or_kind_is_refused(database_url: str, role_name: str, kind: str) -> None:
    with Client(database_url) as client, pytest.raises(InvalidInput):
        client.system.grants(role_name, as_=kind)


def test_an_absent_role_can_be_asked_about_and_not_granted_to(database_url: str) -> None:
    with Client(database_url) as client:
        assert 'grant usage on schema sqlstreams to "no one"' in client.system.grants("no one", as_="producer")
        with pytest.raises(NotFound, match="there is no role named 'no one'"):
            client.system.grant("no one", as_="producer")
