"""Everything at once: producers of every kind, roll-backs, strangers, and two groups that must miss nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, AsyncConsumer, Reclaim, meta
from tests.support import Note, consuming, eventually

PARTITION = 2_000
TRANSACTIONS = 150  # of each producer
PLAIN = 5
LOG = "sqlstreams.message_log_1"

Connection = psycopg.Connection[Any]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_committed_message_reaches_every_group_once_and_nobody_waits_for_strangers(
    database_url: str, server_url: str, seed: int
) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(database_url)) for _ in range(3)]
        await clients[0].stream("notes", Note).register(partition_rows=PARTITION)
        # given: transactions that write elsewhere and a reader of the log, open until the end
        strangers = stack.enter_context(_strangers(database_url, server_url))
        # given: a group with three processes, and one that handles one message at a time
        shared = [client.stream("notes", Note).consumer("shared") for client in clients]
        alone = clients[1].stream("notes", Note).consumer("alone")
        shared_ids: list[int] = []
        alone_ids: list[int] = []
        for consumer in (shared[0], alone):
            await consumer.register()
        for consumer in shared:
            await stack.enter_async_context(consuming(consumer, _recorder(shared_ids, seed), concurrency=4))
        await stack.enter_async_context(consuming(alone, _recorder(alone_ids), concurrency=1))
        # when: producers of every kind are done
        await _produce(clients[2], database_url, seed)
        produced_at = time.monotonic()
        committed = await _read_log(database_url)
        assert len(committed) > 5_000
        assert len(committed) < committed[-1], "nothing was rolled back, so nothing was tried"
        await eventually(lambda: len(set(shared_ids)) >= len(committed) and len(alone_ids) >= len(committed))
        # then: nothing is missing, and nobody waited for the strangers, who are all still there
        assert time.monotonic() - produced_at < 5
        for stranger in strangers:
            assert stranger.execute("select 1").fetchone() == (1,)
            assert stranger.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        assert alone_ids == committed
        assert sorted(set(shared_ids)) == committed
        _assert_each_duplicate_is_explained(shared_ids, await shared[0].reclaims())
        assert await alone.reclaims() == []
        await eventually(lambda: _is_finished(shared[0]))


async def _is_finished(consumer: AsyncConsumer[Note]) -> bool:
    status = await consumer.status()
    return (status.committed, status.lag, status.ready, status.dead) == (status.head, 0, 0, 0)


def _recorder(ids: list[int], seed: int = 0) -> Callable[[Note], Any]:
    dice = random.Random(seed)

    async def handle(note: Note) -> None:
        if dice.random() < 0.01:
            await asyncio.sleep(dice.uniform(0, 0.01))
        ids.append(meta().id)

    return handle


def _assert_each_duplicate_is_explained(ids: list[int], reclaims: list[Reclaim]) -> None:
    twice = [message_id for message_id, count in Counter(ids).items() if count > 1]
    assert [each for each in twice if not any(taken.low <= each <= taken.high for taken in reclaims)] == []


async def _read_log(url: str) -> list[int]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return [row[0] async for row in await connection.execute(f"select id from {LOG} order by id".encode())]


def _strangers(url: str, server_url: str) -> _Strangers:
    return _Strangers(
        (url, "create table elsewhere (id int)"),
        (make_conninfo(server_url, application_name="a stranger"), "create temp table elsewhere (id int)"),
        (url, f"set transaction isolation level repeatable read; select count(*) from {LOG}"),
        (url, f"select id from {LOG} for key share"),
    )


class _Strangers(ExitStack):
    """Open transactions that have taken no id of the log."""

    def __init__(self, *statements: tuple[str, str]) -> None:
        super().__init__()
        self._statements = statements

    def __enter__(self) -> list[Connection]:  # type: ignore[override]  # what is entered are its transactions
        connections = []
        for url, statement in self._statements:
            connection = psycopg.connect(url)
            self.callback(connection.close)
            connection.execute(statement.encode())
            connections.append(connection)
        return connections


# Producers


async def _produce(client: AsyncClient, url: str, seed: int) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(PLAIN + 1) as threads:
        plain = [loop.run_in_executor(threads, _produce_plainly, url, seed * 100 + each) for each in range(PLAIN)]
        prepared = loop.run_in_executor(threads, _produce_in_two_phases, url, seed)
        library = [_produce_by_library(client, url, seed * 1_000 + each) for each in range(2)]
        await asyncio.gather(*plain, prepared, *library)


def _produce_plainly(url: str, seed: int) -> None:
    dice = random.Random(seed)
    acts = (_insert, _insert_behind_savepoint, _copy, _insert_into_partition)
    with psycopg.connect(url, application_name="plain") as connection:
        for _ in range(TRANSACTIONS):
            try:
                for _ in range(dice.randint(1, 3)):
                    dice.choice(acts)(connection, dice)
                    time.sleep(dice.choice((0, 0, 0.001, 0.02)))
            except pg.CheckViolation:  # there is no partition yet
                connection.rollback()
                connection.execute(f"select sqlstreams.extend_log(1, (select last_value from {LOG}_id))".encode())
                connection.commit()
                continue
            if dice.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()


def _insert(connection: Connection, dice: random.Random) -> None:
    connection.execute(f'insert into {LOG} (payload) values (\'{{"text": "plain"}}\')'.encode())


def _insert_behind_savepoint(connection: Connection, dice: random.Random) -> None:
    connection.execute("savepoint here")
    _insert(connection, dice)
    if dice.random() < 0.5:
        connection.execute("rollback to savepoint here")
    connection.execute("release savepoint here")


def _copy(connection: Connection, dice: random.Random) -> None:
    with connection.cursor() as cursor, cursor.copy(f"copy {LOG} (payload) from stdin".encode()) as copy:
        for _ in range(dice.randint(1, 20)):
            copy.write_row(['{"text": "copied"}'])
            if dice.random() < 0.1:
                time.sleep(0.001)


def _insert_into_partition(connection: Connection, dice: random.Random) -> None:
    """Write past the log into the partition of the next id; when that is not what the next one turns out to be, not."""
    row = connection.execute(f"select last_value + 1 from {LOG}_id".encode()).fetchone()
    assert row is not None
    part = f"{LOG}_from_{row[0] // PARTITION * PARTITION}"
    connection.execute("savepoint direct")
    try:
        connection.execute(f'insert into {part} (payload) values (\'{{"text": "direct"}}\')'.encode())
    except (pg.CheckViolation, pg.UndefinedTable):
        connection.execute("rollback to savepoint direct")


def _produce_in_two_phases(url: str, seed: int) -> None:
    dice = random.Random(seed)
    with psycopg.connect(url, autocommit=True, application_name="two phases") as connection:
        if connection.execute("show max_prepared_transactions").fetchone() == ("0",):
            return
        for number, ending in enumerate(("commit", "rollback", "commit")):
            connection.execute("begin")
            _insert(connection, dice)
            connection.execute(f"prepare transaction 'storm-{seed}-{number}'".encode())
            time.sleep(0.3)
            connection.execute(f"{ending} prepared 'storm-{seed}-{number}'".encode())


async def _produce_by_library(client: AsyncClient, url: str, seed: int) -> None:
    dice = random.Random(seed)
    producer = await client.stream("notes", Note).producer().register()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for _ in range(TRANSACTIONS):
            match dice.randrange(3):
                case 0:
                    await asyncio.gather(*(producer.produce(Note("one")) for _ in range(dice.randint(1, 30))))
                case 1:
                    await producer.produce_many([Note("many")] * dice.randint(1, 50))
                case _:
                    await producer.produce_many([Note("within")] * dice.randint(1, 10), connection=connection)
                    await asyncio.sleep(dice.uniform(0, 0.02))
                    await (connection.rollback() if dice.random() < 0.3 else connection.commit())
            await asyncio.sleep(dice.choice((0, 0.001, 0.01)))
