"""Stopping on a signal: running handlers finish, nothing is charged or repeated, the rest is free at once."""

from __future__ import annotations

import signal
import time

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import Process, finished
from tests.support import Note, eventually

SIGNALS = pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])


@SIGNALS
async def test_a_signal_lets_running_handlers_finish_and_frees_the_rest_at_once(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start, signum: signal.Signals
) -> None:
    # A lease of a minute: whoever waits for it to run out does not pass.
    ids = await produce(client, 100)
    leaver = start(seconds=0.2, prefetch=100, lease=60)
    await eventually(lambda: len(leaver.ids()) >= 5)
    leaver.send(signum)
    await _ended(leaver)
    heir = start(concurrency=20, lease=60)
    await eventually(lambda: len(heir.ids()) + len(leaver.ids()) >= 100, within=10)

    assert leaver.exit_code == 0
    assert leaver.lines("stopped")
    assert leaver.ids("start") == leaver.ids("end")
    assert finished([leaver, heir]) == dict.fromkeys(ids, 1)
    assert {each.attempt for each in heir.deliveries("start")} == {1}
    assert await group.reclaims() == []
    await all_is_done(group)


async def test_what_failed_before_the_signal_is_recorded_before_the_end(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    await produce(client, 5)
    leaver = start(handler="failing", seconds=0.5, lease=60)
    await eventually(lambda: len(leaver.deliveries("start")) == 5)
    leaver.send(signal.SIGTERM)
    await _ended(leaver)
    assert leaver.exit_code == 0
    status = await group.status()
    assert (status.ready, status.inflight, status.leases) == (5, 0, 0)


async def test_handlers_that_outlast_the_grace_are_cancelled_and_not_charged(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 10)
    leaver = start(seconds=600, grace=0.3, lease=60)
    await eventually(lambda: len(leaver.deliveries("start")) == 5)
    leaver.send(signal.SIGTERM)
    await _ended(leaver)
    assert leaver.exit_code == 0
    assert len(leaver.ids("CancelledError")) == 5
    heir = start(lease=60)
    await eventually(lambda: sorted(heir.ids()) == ids)
    assert {each.attempt for each in heir.deliveries("start")} == {1}
    await all_is_done(group)


async def test_a_retry_that_is_cancelled_at_the_end_is_not_charged(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    await produce(client, 1)
    leaver = start(handler="hanging_in_its_retry", grace=0.1, lease=60)
    await eventually(lambda: len(leaver.deliveries("start")) == 2)
    leaver.send(signal.SIGTERM)
    await _ended(leaver)
    heir = start(lease=60)
    await eventually(lambda: len(heir.ids()) == 1)
    assert [each.attempt for each in heir.deliveries("start")] == [2]
    await all_is_done(group)


async def test_a_second_signal_cancels_at_once(client: AsyncClient, group: AsyncConsumer[Note], start: Start) -> None:
    ids = await produce(client, 10)
    leaver = start(seconds=600, grace=600, lease=60)
    await eventually(lambda: len(leaver.deliveries("start")) == 5)
    leaver.send(signal.SIGTERM)
    await eventually(lambda: leaver.logged("stopping,"))
    leaver.send(signal.SIGTERM)
    await _ended(leaver)
    assert leaver.exit_code == 0
    heir = start(lease=60)
    await eventually(lambda: sorted(heir.ids()) == ids)
    await all_is_done(group)


async def test_a_hundred_claimed_messages_leave_with_only_those_that_ran(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 100)
    leaver = start(seconds=0.5, concurrency=5, prefetch=100, grace=1.2, lease=60)
    await eventually(lambda: len(leaver.deliveries("start")) >= 6)
    leaver.send(signal.SIGTERM)
    sent = time.monotonic()
    await _ended(leaver)
    assert time.monotonic() - sent < 1.2 + 1.0
    assert len(leaver.ids()) <= 15
    assert leaver.ids("CancelledError") == []
    heir = start(concurrency=20, lease=60)
    await eventually(lambda: finished([leaver, heir]) == dict.fromkeys(ids, 1))
    await all_is_done(group)


@SIGNALS
@pytest.mark.parametrize("table", ["stream_config", "consumer_instance"])
async def test_a_signal_during_start_up_is_obeyed_at_once(
    database_url: str, group: AsyncConsumer[Note], start: Start, table: str, signum: signal.Signals
) -> None:
    with psycopg.connect(database_url) as holder:
        holder.execute(f"lock table sqlstreams.{table} in access exclusive mode")
        early = start()
        await eventually(lambda: bool(early.lines("connecting")))
        await eventually(lambda: _waits_for_a_lock(database_url))
        early.send(signum)
        await _ended(early)
    assert early.exit_code == 0
    assert early.lines("stopped")


async def test_stopping_does_not_wait_for_a_handler_thread_that_hangs_once_it_is_asked_twice(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 3)
    leaver = start(handler="stuck_thread", grace=600, lease=60)
    await eventually(lambda: len(leaver.deliveries("start")) == 3)
    leaver.send(signal.SIGTERM)
    await eventually(lambda: leaver.logged("stopping,"))
    leaver.send(signal.SIGTERM)
    await _ended(leaver)
    assert leaver.exit_code == 0
    heir = start(handler="thread", lease=60)
    await eventually(lambda: sorted(heir.ids()) == ids)
    assert {each.attempt for each in heir.deliveries("start")} == {1}
    await all_is_done(group)


async def test_handler_threads_finish_on_a_signal(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 40)
    leaver = start(handler="thread", seconds=0.1, prefetch=40, lease=60)
    await eventually(lambda: len(leaver.ids()) >= 5)
    leaver.send(signal.SIGTERM)
    await _ended(leaver)
    assert leaver.exit_code == 0
    assert sorted(leaver.ids("start")) == sorted(leaver.ids("end"))
    heir = start(handler="thread", seconds=0, lease=60)
    await eventually(lambda: finished([leaver, heir]) == dict.fromkeys(ids, 1))
    await all_is_done(group)


def _waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        waiting = connection.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        ).fetchall()
    return bool(waiting)


async def _ended(process: Process) -> None:
    await eventually(lambda: not process.runs, within=8)
