"""Ids are handed out in order and become visible out of order: none is skipped, and nobody waits for strangers."""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sqlstreams import AsyncClient, Client, embedded
from sqlstreams.consume.holes import lower_barrier, raise_barrier
from sqlstreams.database import execute
from sqlstreams.statements import Family, SettledHead, read_settled_head, settled_head
from tests.races.conftest import Log
from tests.support import Note, consuming, eventually

LONGEST_LOOK = 1.0  # seconds between two looks at an old hole


async def test_an_uncommitted_id_holds_back_those_behind_it_and_the_order_is_kept(log: Log) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == []
        await slow.commit()
        await log.until_seen([first, second])


async def test_ids_in_front_of_a_hole_are_delivered_while_it_is_open(log: Log) -> None:
    slow = await log.connect()
    before = [await log.commit_one() for _ in range(3)]
    await log.insert(slow)
    await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == before


async def test_a_rolled_back_id_that_nobody_holds_any_more_delays_nothing(log: Log) -> None:
    gone = await log.connect()
    await log.insert(gone)
    await gone.rollback()
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle):
        await log.until_seen([second])
        assert log.consumer.stats.wait_seconds < 0.5


async def test_a_roll_back_that_is_waited_for_lets_the_others_go_on(log: Log) -> None:
    slow = await log.connect()
    await log.insert(slow)
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle):
        await log.until_waiting()
        await slow.rollback()
        await log.until_seen([second], within=LONGEST_LOOK + 0.5)
        assert log.consumer.stats.waiting_for == ()


async def test_who_takes_an_id_behind_the_head_later_is_not_waited_for(log: Log) -> None:
    slow, later = await log.connect(), await log.connect()
    await log.insert(slow)
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        third = await log.insert(later)
        fourth = await log.commit_one()
        await slow.rollback()
        await log.until_seen([second])
        await log.until_waiting()
        assert log.seen == [second]
        await later.commit()
        await log.until_seen([second, third, fourth])


async def test_producers_that_always_overlap_never_hold_back_more_than_one_hole(log: Log) -> None:
    current = await log.connect()
    await log.insert(current)
    committed = []
    async with consuming(log.consumer, log.handle, concurrency=1):
        for _ in range(5):
            following = await log.connect()
            committed.append(await log.commit_one())
            await log.until_waiting(looks=1)
            await log.insert(following)
            await current.rollback()
            await log.until_seen(committed)
            current = following


async def test_a_hole_of_a_savepoint_that_took_the_lock_itself_is_passed_while_its_transaction_is_open(
    log: Log,
) -> None:
    """PostgreSQL gives the savepoint's locks back with it, and its rows can never appear."""
    slow = await log.connect()
    await slow.execute("savepoint before")
    await log.insert(slow)
    await slow.execute("rollback to savepoint before")
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle):
        await log.until_seen([second])


async def test_a_hole_of_a_savepoint_waits_for_the_end_of_a_transaction_that_wrote_before_it(log: Log) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    await slow.execute("savepoint between")
    await log.insert(slow)
    await slow.execute("rollback to savepoint between")
    third = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == []
        await slow.commit()
        await log.until_seen([first, third])


async def test_a_row_that_survives_in_a_released_savepoint_is_waited_for(log: Log) -> None:
    slow = await log.connect()
    await slow.execute("savepoint within")
    first = await log.insert(slow)
    await slow.execute("release savepoint within")
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == []
        await slow.commit()
        await log.until_seen([first, second])


async def test_who_writes_into_a_partition_directly_is_waited_for(log: Log) -> None:
    slow = await log.connect()
    first = await log.insert(slow, into=f"{log.table}_from_0")
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == []
        await slow.commit()
        await log.until_seen([first, second])


async def test_a_copy_that_is_under_way_is_waited_for(log: Log) -> None:
    slow = await log.connect()
    async with slow.cursor() as cursor, cursor.copy(f"copy {log.table} (payload) from stdin".encode()) as copy:
        # More than the client and the server keep in their buffers, so that the first rows have their ids.
        for _ in range(3_000):
            await copy.write_row(['{"text": "one of many, sent bit by bit"}'])
        await eventually(lambda: _last_id(log, 100))
        behind = await log.commit_one()
        async with consuming(log.consumer, log.handle, concurrency=1):
            await log.until_waiting()
            assert log.seen == []
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == []
        await slow.commit()
        await eventually(lambda: len(log.seen) >= 3_001)
    assert log.seen == sorted(log.seen)
    assert behind in log.seen


async def _last_id(log: Log, least: int) -> bool:
    watcher = await log.connect()
    cursor = await watcher.execute(f"select last_value from {log.table}_id".encode())
    (last,) = await cursor.fetchone() or (0,)
    await watcher.close()
    return bool(last >= least)


# Strangers


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["select count(*) from {log}"], id="reads the log"),
        pytest.param(
            ["set transaction isolation level repeatable read", "select count(*) from {log}"],
            id="keeps a snapshot of the log",
        ),
        pytest.param(["select 1 from {log} where false for update"], id="could lock rows of the log"),
        pytest.param(["insert into elsewhere values (1)"], id="wrote elsewhere"),
        pytest.param(["select 1 from elsewhere for update"], id="locks rows elsewhere"),
        pytest.param(["lock table elsewhere in access exclusive mode"], id="locks a table elsewhere"),
        pytest.param(["lock table {log} in row share mode"], id="holds a reader's lock on the log"),
        pytest.param(["create table made_here (id int)"], id="makes a table"),
    ],
)
async def test_a_transaction_that_takes_no_id_of_the_log_is_not_waited_for(log: Log, statements: list[str]) -> None:
    stranger, gone = await log.connect(), await log.connect()
    await gone.execute("create table elsewhere (id int)")
    await gone.execute("insert into elsewhere values (0)")
    await gone.commit()
    for statement in statements:
        await stranger.execute(statement.format(log=log.table).encode())
    await log.insert(gone)
    await gone.rollback()
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle):
        await log.until_seen([second])
    assert stranger.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


async def test_who_writes_to_another_stream_is_not_waited_for(log: Log) -> None:
    other = await log.client.stream("others", Note).register()
    info = await other.get()
    assert info is not None
    stranger, gone = await log.connect(), await log.connect()
    await log.insert(stranger, into=f"sqlstreams.message_log_{info.id}")
    await log.insert(gone)
    await gone.rollback()
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle):
        await log.until_seen([second])


async def test_who_writes_to_a_table_with_the_same_oid_in_another_database_is_not_waited_for(database_url: str) -> None:
    # given: a copy of the database, in which every table has the oid that it has here
    with Client(database_url) as blocking:
        blocking.stream("notes", Note).register()
    name = conninfo_to_dict(database_url)["dbname"]
    twin = f"{name}_twin"
    with psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as admin:
        admin.execute(f"create database {twin} template {name}".encode())
        try:
            with psycopg.connect(make_conninfo(database_url, dbname=twin)) as stranger:
                stranger.execute("insert into sqlstreams.message_log_1 (payload) values ('1')")
                async with AsyncClient(database_url) as client:
                    # when: an id is rolled back here while a transaction there holds the log's twin
                    stream = client.stream("notes", Note)
                    with psycopg.connect(database_url) as gone:
                        gone.execute("insert into sqlstreams.message_log_1 (payload) values ('1')")
                        gone.rollback()
                    await stream.producer().produce(Note("committed"))
                    # then: nobody waits
                    consumer = await stream.consumer("group").register()
                    async with consuming(consumer, lambda note: None):
                        await eventually(lambda: consumer.stats.handled == 1, within=5)
        finally:
            admin.execute(f"drop database {twin} with (force)".encode())


# Prepared transactions


@pytest.fixture
def server_directory() -> Iterator[Path]:
    """A place that the user of an embedded server can enter, which pytest's own directories are not."""
    with tempfile.TemporaryDirectory(prefix="sqlstreams-races-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory) / "pg"


@pytest.mark.usefixtures("two_phase")
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_prepared_transaction_is_waited_for_and_named(log: Log, ending: str) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    await slow.execute("prepare transaction 'transfer'")
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        assert log.seen == []
        (holder,) = log.consumer.stats.waiting_for
        assert (holder.prepared, holder.gid, holder.pid) == (True, "transfer", None)
        assert re.fullmatch(r"prepared transaction 'transfer', open for \d+\.\d s", str(holder))
        await slow.set_autocommit(True)
        await slow.execute(f"{ending} prepared 'transfer'".encode())
        await log.until_seen([first, second] if ending == "commit" else [second])


@pytest.mark.usefixtures("two_phase")
async def test_a_session_that_prepares_its_transaction_while_it_is_waited_for_is_still_waited_for(log: Log) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        await log.until_waiting()
        await slow.execute("prepare transaction 'midway'")
        await eventually(lambda: [holder.gid for holder in log.consumer.stats.waiting_for] == ["midway"])
        await log.until_waiting()
        assert log.seen == []
        await slow.set_autocommit(True)
        await slow.execute("commit prepared 'midway'")
        await log.until_seen([first, second])


@pytest.mark.usefixtures("two_phase")
async def test_prepared_transactions_that_come_later_and_later_are_not_waited_for(log: Log) -> None:
    slow, later, latest = await log.connect(), await log.connect(), await log.connect()
    await log.insert(slow)
    second = await log.commit_one()
    async with consuming(log.consumer, log.handle, concurrency=1):
        # when: the one that is waited for ends, and another prepared one had begun meanwhile
        await log.until_waiting()
        await log.insert(later)
        await later.execute("prepare transaction 'later'")
        await log.until_waiting()
        await slow.rollback()
        await eventually(lambda: [holder.gid for holder in log.consumer.stats.waiting_for] == ["later"])
        # then: it may be the first one under another name, but a third cannot be
        await log.insert(latest)
        await latest.execute("prepare transaction 'latest'")
        await log.until_waiting()
        await later.set_autocommit(True)
        await later.execute("rollback prepared 'later'")
        await log.until_seen([second])
        await latest.set_autocommit(True)
        await latest.execute("rollback prepared 'latest'")


def test_a_prepared_transaction_is_still_waited_for_when_the_server_was_started_anew(
    server_directory: Path,
) -> None:
    """Virtual transaction ids are dealt anew by then, so it must be known by its real one."""
    family = Family("sqlstreams", 1)
    with embedded.serve(server_directory, settings={"fsync": "off"}) as server:
        with Client(server.url) as client:
            client.stream("notes", Note).register()
        with psycopg.connect(server.url) as slow:
            slow.execute("insert into sqlstreams.message_log_1 (payload) values ('1')")
            slow.execute("prepare transaction 'survivor'")
        barrier = raise_barrier(_settled_head(server.url, family))
        assert [holder.gid for holder in barrier.holders] == ["survivor"]
    with embedded.serve(server_directory, settings={"fsync": "off"}) as server:
        barrier = lower_barrier(barrier, _settled_head(server.url, family))
        assert [holder.gid for holder in barrier.holders] == ["survivor"]
        with psycopg.connect(server.url, autocommit=True) as slow:
            slow.execute("commit prepared 'survivor'")
        assert lower_barrier(barrier, _settled_head(server.url, family)).is_settled


def _settled_head(url: str, family: Family) -> SettledHead:
    with psycopg.connect(url, autocommit=True) as connection:
        return settled_head(execute(connection, read_settled_head(family)))


# Saying whom a claim waits for


async def test_status_names_each_open_transaction_that_holds_back_the_next_claim_once(log: Log) -> None:
    one, other = await log.connect(application="billing"), await log.connect(application="shipping")
    for connection in (one, other, one):
        await log.insert(connection)
    await log.commit_one()
    status = await log.consumer.status()
    named = {(holder.application, holder.pid, holder.state) for holder in status.holders}
    assert named == {
        ("billing", one.info.backend_pid, "idle in transaction"),
        ("shipping", other.info.backend_pid, "idle in transaction"),
    }
    assert len(status.holders) == 2
    assert all(holder.age is not None and holder.age.total_seconds() > 0 for holder in status.holders)


async def test_status_names_nobody_when_the_next_id_is_there(log: Log) -> None:
    await log.commit_one()
    await log.insert(await log.connect())
    assert (await log.consumer.status()).holders == ()


async def test_a_wait_of_more_than_a_second_is_logged_with_whom_it_waits_for(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    slow = await log.connect(application="billing")
    await log.insert(slow)
    await log.commit_one()
    pid = slow.info.backend_pid
    with caplog.at_level(logging.WARNING, logger="sqlstreams"):
        began = time.monotonic()
        async with consuming(log.consumer, log.handle):
            await eventually(lambda: "SQL0101" in caplog.text, within=5)
            assert time.monotonic() - began > 1
            await log.until_waiting()
            (holder,) = log.consumer.stats.waiting_for
            assert (holder.pid, holder.application) == (pid, "billing")
            await slow.rollback()
            await eventually(lambda: len(log.seen) == 1, within=LONGEST_LOOK + 0.5)
    (line,) = (record.getMessage() for record in caplog.records if "SQL0101" in record.getMessage())
    assert re.search(rf"has waited \d\.\d s for pid {pid} \(billing\), open for \d\.\d s$", line)
    assert log.consumer.stats.waits == 1
    assert log.consumer.stats.wait_seconds > 1
