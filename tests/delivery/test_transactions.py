"""Handlers within a transaction: what they write takes effect exactly once, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sqlstreams import AsyncClient, AsyncConsumer, Delay, InvalidInput, Terminal, meta
from tests.delivery.effects import INSERT, effects, seen
from tests.produce.proxy import Moment, lossy
from tests.support import Note, consuming, eventually

Connection = psycopg.AsyncConnection[Any]
Handler = Callable[..., Any]


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
    await stream.producer().produce_many([Note(str(number)) for number in range(messages)])
    return group


async def insert(note: Note, connection: Connection) -> None:
    await connection.execute(INSERT, [meta().id])
    fail_sometimes()


def insert_in_thread(note: Note, connection: psycopg.Connection[Any]) -> None:
    connection.execute(INSERT, [meta().id])
    fail_sometimes()


def fail_sometimes() -> None:
    if meta().id % 5 == 0 and meta().failures < 2:
        raise ValueError("after it has written")
    if meta().id % 7 == 0 and not meta().delays:
        raise Delay(timedelta(0))


BOTH = pytest.mark.parametrize("handler", [insert, insert_in_thread], ids=["async", "thread"])


def _has(effect: psycopg.Connection[Any], count: int) -> bool:
    return len(seen(effect)) >= count


async def until_done(group: AsyncConsumer[Note]) -> None:
    async def is_done() -> bool:
        status = await group.status()
        return (status.lag, status.leases, status.ready, status.inflight) == (0, 0, 0, 0)

    await eventually(is_done)


@BOTH
async def test_what_a_handler_writes_takes_effect_once_however_often_it_is_called(
    client: AsyncClient, effect: psycopg.Connection[Any], handler: Handler
) -> None:
    group = await make_group(client, 100)
    async with consuming(group, handler, transactional=True, prefetch=30):
        await until_done(group)
    assert seen(effect) == list(range(1, 101))
    assert (group.stats.failed, group.stats.leases_lost) == (40, 0)


@BOTH
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_commits_whose_answer_is_lost_take_effect_once(
    client: AsyncClient, database_url: str, effect: psycopg.Connection[Any], handler: Handler, moment: Moment
) -> None:
    group = await make_group(client, 1)
    # Once the first handler has ended, nobody but handlers commits through this network.
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url) as far:
            consumer = far.stream("notes", Note).consumer("g")
            async with consuming(consumer, handler, transactional=True, concurrency=5, prefetch=20):
                await eventually(lambda: bool(seen(effect)))
                for _ in range(20):
                    proxy.break_next(moment)
                await client.stream("notes", Note).producer().produce_many([Note("more")] * 60)
                await until_done(group)
        assert proxy.broken == 20
    assert seen(effect) == list(range(1, 62))
    # Of a message that has failed there is a record; of one whose connection broke there is none.
    assert consumer.stats.failed == 24
    assert effect.execute("select count(*) from sqlstreams.delivery_log_1").fetchone() == (24 + 8,)


async def test_connections_that_are_ended_at_any_time_let_everything_take_effect_once(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    group = await make_group(client, 100, max_retries=100)

    async def handle(note: Note, connection: Connection) -> None:
        await connection.execute(INSERT, [meta().id])
        await asyncio.sleep(0.02)

    async with consuming(group, handle, transactional=True, concurrency=5, prefetch=20):
        for count in range(3, 90, 3):
            await eventually(partial(_has, effect, count))
            effect.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and query ilike any (%s) order by random() limit 1",
                [["insert into effects%", "commit", "begin%"]],
            )
        await until_done(group)
    assert seen(effect) == list(range(1, 101))


@BOTH
async def test_a_handler_whose_work_was_given_away_leaves_nothing(
    client: AsyncClient, effect: psycopg.Connection[Any], handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    group = await make_group(client, 1)
    began, go_on = threading.Event(), threading.Event()

    def wait_in_thread(note: Note, connection: psycopg.Connection[Any]) -> None:
        connection.execute(INSERT, [meta().id])
        began.set()
        assert go_on.wait(10)

    async def wait_in_loop(note: Note, connection: Connection) -> None:
        await connection.execute(INSERT, [meta().id])
        began.set()
        await eventually(go_on.is_set)

    waiting = wait_in_loop if handler is insert else wait_in_thread
    async with consuming(group, waiting, transactional=True):
        await eventually(began.is_set)
        # As another process does when it takes the range over.
        effect.execute("update sqlstreams.claim_lease set instance_id = null, token = gen_random_uuid()")
        go_on.set()
        await until_done(group)  # it is free, so this process takes it again
    assert seen(effect) == [1]
    assert group.stats.leases_lost == 1
    assert "SQL0040" in caplog.text


async def test_a_retry_that_was_given_away_leaves_nothing(
    client: AsyncClient, effect: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    group = await make_group(client, 1)

    async def handle(note: Note, connection: Connection) -> None:
        await connection.execute(INSERT, [meta().id])
        if meta().attempt == 1:
            raise ValueError("once")
        if not caplog.records[-1].message.startswith("SQL0040"):
            effect.execute("update sqlstreams.exception_queue_1 set token = gen_random_uuid(), instance_id = null")

    with caplog.at_level(logging.INFO):
        async with consuming(group, handle, transactional=True):
            await eventually(lambda: seen(effect) == [1])
            await until_done(group)
    assert "SQL0040 message 1" in caplog.text


async def test_an_abandoned_thread_cannot_commit_any_more(client: AsyncClient, effect: psycopg.Connection[Any]) -> None:
    group = await make_group(client, 1, timeout=timedelta(milliseconds=100))
    go_on, ended, attempts = threading.Event(), threading.Event(), []

    def handle(note: Note, connection: psycopg.Connection[Any]) -> None:
        connection.execute(INSERT, [meta().id])
        attempts.append(connection)
        if len(attempts) == 1:
            assert go_on.wait(10)
            ended.set()

    async with consuming(group, handle, transactional=True, concurrency=2):
        await eventually(lambda: len(attempts) == 2)
        await until_done(group)
        go_on.set()
        await eventually(lambda: ended.is_set() and attempts[0].closed)
    assert seen(effect) == [1]
    assert group.stats.abandoned == 1
    assert attempts[1] is not attempts[0]


async def test_a_call_that_takes_too_long_is_cancelled_and_rolled_back(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    group = await make_group(client, 1, timeout=timedelta(milliseconds=100))

    async def handle(note: Note, connection: Connection) -> None:
        await connection.execute(INSERT, [meta().id])
        if meta().attempt == 1:
            await connection.execute("select pg_sleep(60)")

    async with consuming(group, handle, transactional=True):
        await eventually(lambda: seen(effect) == [1])
        await until_done(group)
    assert group.stats.failed == 1


async def _commit(connection: Connection) -> None:
    await connection.commit()


async def _commit_by_hand(connection: Connection) -> None:
    await connection.execute("commit")


async def _break(connection: Connection) -> None:
    with pytest.raises(psycopg.Error):
        await connection.execute("select 1 / 0")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_commit, "Explicit commit\\(\\) forbidden"),
        (_commit_by_hand, "the handler ended the transaction"),
        (_break, "current transaction is aborted"),
    ],
)
async def test_a_handler_that_spoils_its_transaction_has_failed(
    client: AsyncClient, effect: psycopg.Connection[Any], spoil: Handler, error: str
) -> None:
    group = await make_group(client, 2, max_retries=0)

    async def handle(note: Note, connection: Connection) -> None:
        if note.text == "0":
            await spoil(connection)
        await connection.execute(INSERT, [meta().id])

    async with consuming(group, handle, transactional=True, concurrency=1):
        await eventually(lambda: group.stats.dead == 1 and group.stats.handled == 1)
    (letter,) = await group.dead_letters()
    assert letter.id == 1
    assert letter.error is not None
    assert re.search(error, letter.error)


async def test_what_the_commit_refuses_is_the_handlers_failure(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    effect.execute("alter table effects add unique (message_id) deferrable initially deferred")
    group = await make_group(client, 1, max_retries=1)

    async def handle(note: Note, connection: Connection) -> None:
        for _ in range(1 if meta().failures else 2):
            await connection.execute(INSERT, [meta().id])

    async with consuming(group, handle, transactional=True):
        await until_done(group)
    assert seen(effect) == [1]
    (kept,) = await group.deliveries(1)
    assert kept.error_type == "UniqueViolation"


async def test_savepoints_of_a_handler_are_its_own(client: AsyncClient, effect: psycopg.Connection[Any]) -> None:
    group = await make_group(client, 1)

    async def handle(note: Note, connection: Connection) -> None:
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute(INSERT, [7])
                raise ZeroDivisionError
        async with connection.transaction():
            await connection.execute(INSERT, [meta().id])

    async with consuming(group, handle, transactional=True):
        await until_done(group)
    assert seen(effect) == [1]


async def test_a_terminal_failure_leaves_nothing(client: AsyncClient, effect: psycopg.Connection[Any]) -> None:
    group = await make_group(client, 1)

    async def handle(note: Note, connection: Connection) -> None:
        await connection.execute(INSERT, [meta().id])
        raise Terminal("never")

    async with consuming(group, handle, transactional=True):
        await eventually(lambda: group.stats.dead == 1)
    assert seen(effect) == []


async def test_the_transaction_is_committed_durably_and_reads_what_is_committed(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    database = sql.Identifier(effect.info.dbname)
    effect.execute(sql.SQL("alter database {} set default_transaction_isolation = 'serializable'").format(database))
    group = await make_group(client, 3)
    told: list[Any] = []

    async def handle(note: Note, connection: Connection) -> None:
        shown = "select current_setting('synchronous_commit'), current_setting('transaction_isolation')"
        told.append(await (await connection.execute(shown)).fetchone())

    async with consuming(group, handle, transactional=True, concurrency=1):
        await until_done(group)
    assert told == [("on", "read committed")] * 3


async def test_a_key_is_free_only_after_the_commit(client: AsyncClient, effect: psycopg.Connection[Any]) -> None:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(concurrency="ordered", retry_base=timedelta(milliseconds=5))
    producer = stream.producer()
    for number in range(40):
        await producer.produce(Note(str(number)), key=f"k{number % 4}")

    async def handle(note: Note, connection: Connection) -> None:
        if meta().id % 6 == 0 and meta().attempt == 1:
            raise ValueError("once")
        # Were the message before not committed, it would not be seen here.
        await connection.execute(
            "insert into effects (message_id) select %s where %s or exists (select from effects where message_id = %s)",
            [meta().id, meta().id <= 4, meta().id - 4],
        )

    async with consuming(group, handle, transactional=True, concurrency=8):
        await eventually(lambda: len(seen(effect)) >= 40)
        await until_done(group)
    assert seen(effect) == list(range(1, 41))


async def test_a_connection_that_died_while_nothing_was_done_with_it_is_replaced(
    client: AsyncClient, effect: psycopg.Connection[Any]
) -> None:
    group = await make_group(client, 1)
    async with consuming(group, insert, transactional=True, concurrency=2):
        await eventually(lambda: seen(effect) == [1])
        await until_done(group)
        effect.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and query ~* '^(commit|set|select pg_backend_pid|)'"
        )
        await client.stream("notes", Note).producer().produce_many([Note("a")] * 3)
        await eventually(lambda: seen(effect) == [1, 2, 3, 4])
    assert group.stats.failed == 0


async def test_a_handler_that_cannot_take_a_connection_is_refused_at_the_call(client: AsyncClient) -> None:
    group = await make_group(client, 0)

    async def handle(note: Note) -> None: ...

    with pytest.raises(InvalidInput, match="handler must take the payload and a connection when transactional"):
        await group.consume(handle, transactional=True)
    with pytest.raises(InvalidInput, match="handler must be a function, got str"):
        await group.consume("handle", transactional=True)  # type: ignore[arg-type]  # the point of it
    with pytest.raises(InvalidInput, match=r"concurrency must not be over .* got 11 with pool_size 10"):
        await group.consume(insert, transactional=True, concurrency=11)
