"""Where a reader begins, while transactions are open that took ids before that place and may still commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqlstreams.options import Start
from tests.races.conftest import Log
from tests.races.test_tail import tailing
from tests.support import consuming, eventually


async def _claimed(log: Log, start: Start) -> int:
    consumer = await log.stream.consumer("late").register(start=start)
    return (await consumer.status()).claimed


@pytest.mark.parametrize("start", ["head", "soon"])
async def test_a_group_that_begins_at_the_head_gets_what_was_uncommitted_then(log: Log, start: str) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    second = await log.commit_one()
    consumer = log.stream.consumer("late")
    await consumer.register(start="head" if start == "head" else datetime.now(UTC) + timedelta(hours=1))
    await slow.commit()
    async with consuming(consumer, log.handle):
        await log.until_seen([first, second])


async def test_a_group_that_begins_at_a_time_gets_what_was_uncommitted_then(log: Log) -> None:
    await log.commit_one()
    await _back_date(log)
    slow = await log.connect()
    missing = await log.insert(slow)
    early = await log.commit_one()
    at = await _now(log)
    late = await log.commit_one()
    assert (missing, early, late) == (2, 3, 4)
    assert await _claimed(log, at) == missing - 1
    await slow.commit()


async def test_tail_from_the_head_shows_what_was_uncommitted_then(log: Log) -> None:
    slow = await log.connect()
    first = await log.insert(slow)
    second = await log.commit_one()
    async with tailing(log, "head") as ids:
        await _until_it_pauses(log)
        await slow.commit()
        await eventually(lambda: ids == [first, second], within=5)


async def test_the_head_is_exact_when_nothing_is_open(log: Log) -> None:
    slow = await log.connect()
    await log.insert(slow)
    await slow.rollback()
    last = await log.commit_one()
    assert await _claimed(log, "head") == last


async def test_ids_that_were_rolled_back_long_before_an_open_transaction_lower_nothing(log: Log) -> None:
    slow = await log.connect()
    await log.insert(slow)
    await slow.rollback()
    await log.commit_one()
    await _back_date(log)
    newest = await log.commit_one()
    missing = await log.insert(slow)
    await log.commit_one()
    assert await _claimed(log, "head") == newest == missing - 1
    await slow.rollback()


async def test_an_open_transaction_that_took_no_id_lowers_nothing(log: Log) -> None:
    idle = await log.connect()
    await idle.execute(f"lock table {log.table} in row exclusive mode".encode())
    last = await log.commit_one()
    assert await _claimed(log, "head") == last
    await idle.rollback()


async def test_a_prepared_transaction_lowers_the_head_as_well(log: Log, two_phase: None) -> None:
    prepared = await log.connect()
    missing = await log.insert(prepared)
    await prepared.execute("prepare transaction 'waits'")
    await log.commit_one()
    assert await _claimed(log, "head") == missing - 1


async def _back_date(log: Log) -> None:
    connection = await log.connect()
    await connection.execute(f"update {log.table} set created_at = created_at - interval '1 hour'".encode())
    await connection.commit()


async def _now(log: Log) -> datetime:
    connection = await log.connect()
    row = await (await connection.execute("select clock_timestamp()")).fetchone()
    await connection.rollback()
    assert row is not None
    now: datetime = row[0]
    return now


async def _until_it_pauses(log: Log) -> None:
    """Wait until a reader has found its place and nothing to show: then it asks more and more seldom."""
    watcher = await log.connect()
    await watcher.set_autocommit(True)
    pauses: set[datetime] = set()

    async def has_paused_twice() -> bool:
        cursor = await watcher.execute(
            "select state_change from pg_stat_activity where datname = current_database() and state = 'idle'"
            "   and application_name = 'sqlstreams' and clock_timestamp() - state_change > interval '0.2 s'"
        )
        pauses.update(row[0] for row in await cursor.fetchall())
        return len(pauses) >= 2

    await eventually(has_paused_twice)
