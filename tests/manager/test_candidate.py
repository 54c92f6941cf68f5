"""One process at a time does the duties, and whoever loses the lease begins nothing more."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from sqlstreams import AsyncClient, InvalidInput, NotInstalled
from sqlstreams.database import AsyncDatabase
from sqlstreams.manager import duty_loop, lease
from sqlstreams.manager.duty import Ran
from sqlstreams.statements import Statement
from tests.chaos.proxy import network
from tests.manager.support import Notes, execute, holders, standing, status_of
from tests.support import eventually


async def test_two_candidates_of_one_host_share_nothing_but_the_turn(client: AsyncClient, database_url: str) -> None:
    first, second = Notes(), Notes()
    async with standing(database_url, first), standing(database_url, second):
        await eventually(lambda: len(first.began) + len(second.began) > 20)
        assert not first.began or not second.began
        assert await holders(client) == [1]


async def test_a_clean_stop_hands_over_at_once(client: AsyncClient, database_url: str) -> None:
    first, second = Notes(), Notes()
    async with standing(database_url, first, ttl=60) as (task, _):
        await eventually(lambda: bool(first.began))
        async with standing(database_url, second, ttl=60):
            await eventually(lambda: _listens(database_url, 2))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await eventually(lambda: bool(second.began), within=5)
            assert await holders(client) == [2]
            assert first.began[-1] < second.began[0]
    assert await holders(client) == []
    assert (await status_of(client, "notes")).runs == len(first.began) + len(second.began)


async def _listens(url: str, count: int) -> bool:
    rows = await execute(
        url, "select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %'"
    )
    return rows == [(count,)]


async def test_a_holder_whose_network_is_cut_has_stopped_before_another_begins(
    client: AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Notes(), Notes()
    async with network(database_url) as cut, standing(cut.url, first, ttl=0.6) as (_, held):
        await eventually(lambda: bool(first.began))
        async with standing(database_url, second, ttl=0.6):
            cut.fall_silent()
            await eventually(lambda: bool(second.began))
            await eventually(lambda: held.term is None)
            cut.drop()
            cut.heal()
            await eventually(lambda: len(second.began) > 20)
    assert first.began[-1] < second.began[0]
    assert "SQL0111" in caplog.text


async def test_a_renewal_that_is_rolled_back_ends_the_duties_and_another_term_begins_later(
    client: AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled: list[float] = []

    async def hang() -> Ran:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.append(time.monotonic())
        return Ran()

    notes, hanging = Notes(), Notes("hanging", work=hang)
    async with standing(database_url, notes, hanging, ttl=0.6) as (_, held):
        await eventually(lambda: len(hanging.began) == 1)
        await execute(
            database_url,
            "create function refuse() returns trigger language plpgsql as $$begin raise 'no'; end$$",
            "create trigger refuse before update or insert on sqlstreams.worker_instance"
            " for each row execute function refuse()",
        )
        await eventually(lambda: held.term is None and bool(cancelled))
        stopped_at = time.monotonic()
        await eventually(lambda: caplog.text.count("SQL0111") == 1)
        assert max(notes.began) <= stopped_at
        await execute(database_url, "drop trigger refuse on sqlstreams.worker_instance")
        await eventually(lambda: len(hanging.began) == 2)
        assert (await status_of(client, "hanging")).failures == 0


async def test_a_holder_that_wakes_after_its_term_begins_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(period=0.01)
    async with standing(database_url, notes, ttl=60) as (_, held):
        await eventually(lambda: len(notes.began) > 3)
        now = lease.clock()
        monkeypatch.setattr(lease, "clock", lambda: now + 61)
        count = len(notes.began)
        await asyncio.sleep(0.05)  # five periods
        assert (len(notes.began), held.left) == (count, 0)


async def test_a_process_that_was_blocked_beyond_its_lease_steps_down_before_it_goes_on(
    client: AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[float] = []

    async def look() -> Ran:
        left.append(held.left)
        return Ran()

    notes = Notes(period=0.01, work=look)
    async with standing(database_url, notes, ttl=0.3) as (_, held):
        await eventually(lambda: len(left) > 3)
        time.sleep(0.5)  # noqa: ASYNC251  # this is the harm
        await eventually(lambda: "SQL0111" in caplog.text)
        await eventually(lambda: len(left) > 6)
        assert await holders(client) == [1]  # nobody else was there
    assert min(left) > 0


async def test_the_clock_of_a_host_does_not_matter(
    client: AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    async with standing(database_url, notes, ttl=0.3):
        await eventually(lambda: bool(notes.began))
        true_time = time.time
        for hours in (1, -1):
            monkeypatch.setattr(time, "time", lambda hours=hours: true_time() + hours * 3600)
            count = len(notes.began)
            await eventually(lambda count=count: len(notes.began) > count + 20)  # type: ignore[misc]  # mypy infers no default of a lambda
        monkeypatch.undo()
        assert await holders(client) == [1]
        await eventually(lambda: _has_run(client, "notes"))
        status = await status_of(client, "notes")
    assert status.last_run_at is not None
    assert abs(time.time() - status.last_run_at.timestamp()) < 60


async def _has_run(client: AsyncClient, name: str) -> bool:
    return any(each.runs for each in (await client.manager.list()).duties if each.name == name)


async def test_a_failing_duty_backs_off_alone_and_shows(
    client: AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duty_loop, "_FIRST_PAUSE", 0.1)
    is_broken = True

    async def fail() -> Ran:
        if is_broken:
            raise ValueError("no\x00way")
        return Ran(done=3)

    healthy, failing = Notes(), Notes("failing", work=fail)
    async with standing(database_url, healthy, failing, ttl=60):
        await eventually(lambda: len(failing.began) >= 4)
        await eventually(lambda: len(healthy.began) > 20)
        pauses = [later - earlier for earlier, later in zip(failing.began, failing.began[1:], strict=False)]
        assert pauses[0] >= 0.05
        assert pauses[2] >= 0.2
        await eventually(lambda: _failed(client, "failing", 3))
        status = await status_of(client, "failing")
        assert status.last_error is not None
        assert status.last_error.startswith("ValueError: no")
        assert status.running_since is None
        assert caplog.text.count("SQL0110 duty failing of the manager failed") == len(failing.began)
        is_broken = False
        await eventually(lambda: _failed(client, "failing", 0))
        assert (await status_of(client, "failing")).last_failed_at is not None


async def _failed(client: AsyncClient, name: str, failures: int) -> bool:
    found = [each.failures for each in (await client.manager.list()).duties if each.name == name]
    return bool(found) and (found[0] >= failures if failures else found[0] == 0)


async def test_a_duty_that_hangs_delays_no_other_and_shows_since_when(client: AsyncClient, database_url: str) -> None:
    async def hang() -> Ran:
        await asyncio.sleep(600)
        return Ran()

    healthy, hanging = Notes(), Notes("hanging", work=hang)
    async with standing(database_url, healthy, hanging, ttl=0.6):
        await eventually(lambda: len(healthy.began) > 30)
        await eventually(lambda: _runs(client, "hanging"))
    assert len(hanging.began) == 1
    assert (await status_of(client, "hanging")).runs == 0


async def test_a_duty_that_hangs_is_not_hidden_by_another_holder_of_the_lease(
    client: AsyncClient, database_url: str
) -> None:
    async def hang() -> Ran:
        await asyncio.sleep(600)
        return Ran()

    hanging, healthy = Notes("shared", work=hang), Notes("shared", period=600)
    await execute(database_url, "update sqlstreams.worker_config set target_instances = 2")
    async with standing(database_url, hanging, ttl=0.6):
        await eventually(lambda: _runs(client, "shared"))
        async with standing(database_url, healthy, ttl=0.6):
            await eventually(lambda: _has_run(client, "shared"))
            await eventually(lambda: _runs(client, "shared"), within=5)


async def _runs(client: AsyncClient, name: str) -> bool:
    return any(each.running_since for each in (await client.manager.list()).duties if each.name == name)


async def test_a_duty_with_more_to_do_is_called_again_at_once_and_all_of_it_is_counted(
    client: AsyncClient, database_url: str
) -> None:
    left = 5

    async def some() -> Ran:
        nonlocal left
        left -= 1
        return Ran(done=10, again=left > 0)

    notes = Notes(period=600, work=some)
    async with standing(database_url, notes, ttl=60):
        await eventually(lambda: left == 0)
    status = await status_of(client, "notes")
    assert (status.runs, status.done, status.last_done) == (5, 50, 10)


async def test_what_was_reported_just_before_a_stop_is_not_reported_again(
    client: AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(period=600)
    written = asyncio.Event()
    real = AsyncDatabase.query_once

    async def slow(database: AsyncDatabase, statement: Statement[Any]) -> list[Any]:
        rows = await real(database, statement)
        if statement.name == "take_or_renew" and notes.began:
            written.set()
            await asyncio.sleep(0.2)
        return rows

    monkeypatch.setattr(AsyncDatabase, "query_once", slow)
    async with standing(database_url, notes, ttl=0.6):
        await asyncio.wait_for(written.wait(), 10)
    assert (await status_of(client, "notes")).runs == len(notes.began) == 1


async def test_a_duty_that_knows_when_it_is_due_runs_then(database_url: str) -> None:
    async def soon() -> Ran:
        return Ran(due_in=0.05)

    notes = Notes(period=600, work=soon)
    async with standing(database_url, notes, ttl=60):
        await eventually(lambda: len(notes.began) >= 4)
    assert notes.began[3] - notes.began[0] >= 0.15


@pytest.mark.parametrize(("listen", "is_told"), [(True, True), (True, False), (False, True)])
async def test_a_duty_that_news_tell_of_looks_seldom_while_they_are_heard(
    database_url: str, listen: bool, is_told: bool
) -> None:
    async def wait() -> Ran:
        return Ran(is_told=is_told)

    told, other = Notes("schedules", work=wait), Notes("other")
    async with standing(database_url, told, other, ttl=60, listen=listen):
        if listen:
            await eventually(lambda: _listens(database_url, 1))
        count, others = len(told.began), len(other.began)
        await eventually(lambda: len(other.began) > others + 20)
        looks = len(told.began) - count
    # What it listens for wakes it once, when it is connected.
    assert (looks <= 2) == (listen and is_told)


async def test_news_of_a_duty_wake_it_and_no_other(database_url: str) -> None:
    schedules, other = Notes("schedules", period=600), Notes("other", period=600)
    async with standing(database_url, schedules, other, ttl=60):
        await eventually(lambda: _listens(database_url, 1))
        count = len(schedules.began)
        await execute(database_url, "select pg_notify('sqlstreams:sqlstreams', 'schedules')")
        await eventually(lambda: len(schedules.began) > count)
    assert len(other.began) == 1


async def test_a_suspended_duty_rests_until_it_is_unsuspended(client: AsyncClient, database_url: str) -> None:
    notes, other = Notes("leases"), Notes("other")
    async with standing(database_url, notes, other, ttl=60):
        await eventually(lambda: _listens(database_url, 1))
        await client.manager.suspend("leases")
        await eventually(lambda: _rests(notes))
        count = len(other.began)
        await eventually(lambda: len(other.began) > count)
        assert (await status_of(client, "leases")).suspended
        count = len(notes.began)
        await client.manager.unsuspend("leases")
        await eventually(lambda: len(notes.began) > count)


async def _rests(notes: Notes) -> bool:
    count = len(notes.began)
    await asyncio.sleep(0.1)  # five periods
    return len(notes.began) == count


async def test_a_duty_that_was_suspended_before_never_begins(client: AsyncClient, database_url: str) -> None:
    await client.manager.suspend("leases")
    notes, other = Notes("leases"), Notes("other")
    async with standing(database_url, notes, other, ttl=60):
        await eventually(lambda: len(other.began) > 5)
    assert not notes.began


async def test_a_suspended_manager_is_run_by_nobody(client: AsyncClient, database_url: str) -> None:
    notes = Notes()
    async with standing(database_url, notes, ttl=60):
        await eventually(lambda: _listens(database_url, 1))
        await client.manager.suspend()
        await eventually(lambda: _rests(notes))
        status = await client.manager.list()
        assert (status.suspended, status.instances) == (True, ())
        count = len(notes.began)
        await client.manager.unsuspend()
        await eventually(lambda: len(notes.began) > count)
        assert await holders(client) == [2]


async def test_an_unknown_duty_is_refused_with_those_there_are(client: AsyncClient) -> None:
    with pytest.raises(InvalidInput, match=r"duty must be one of .*leases, partitions.*, got 'nothing'"):
        await client.manager.suspend("nothing")
    with pytest.raises(InvalidInput, match="duty"):
        await client.manager.unsuspend("No\x00")


async def test_without_a_listening_connection_a_suspension_is_heard_with_the_next_renewal(
    client: AsyncClient, database_url: str
) -> None:
    notes = Notes()
    async with standing(database_url, notes, ttl=0.6, listen=False):
        await eventually(lambda: bool(notes.began))
        await client.manager.suspend()
        await eventually(lambda: _rests(notes), within=5)


async def test_a_session_that_listens_and_is_ended_is_replaced(client: AsyncClient, database_url: str) -> None:
    notes = Notes()
    async with standing(database_url, notes, ttl=60):
        await eventually(lambda: _listens(database_url, 1))
        await execute(
            database_url,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query like 'listen %'",
        )
        await eventually(lambda: _listens(database_url, 1))
        await client.manager.suspend()
        await eventually(lambda: _rests(notes), within=5)


async def test_sessions_that_are_ended_cost_the_term_at_most(client: AsyncClient, database_url: str) -> None:
    notes = Notes()
    async with standing(database_url, notes, ttl=0.6):
        await eventually(lambda: bool(notes.began))
        await execute(
            database_url,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )
        count = len(notes.began)
        await eventually(lambda: len(notes.began) > count + 20)


async def test_a_destroyed_installation_ends_the_manager(client: AsyncClient, database_url: str) -> None:
    notes = Notes()
    async with standing(database_url, notes, ttl=0.6) as (task, held):
        await eventually(lambda: bool(notes.began))
        await execute(database_url, "drop schema sqlstreams cascade")
        with pytest.raises(NotInstalled):
            await asyncio.wait_for(task, 5)
        assert held.term is None


async def test_an_account_that_comes_late_adds_to_the_counts_alone(client: AsyncClient, database_url: str) -> None:
    text = "select sqlstreams.report_duties('[{}]')"
    now = '{"name":"leases","runs":1,"done":5,"ran_ago":0,"took":1,"last_done":5,"failures":0,"next_in":9}'
    late = '{"name":"leases","runs":2,"done":7,"ran_ago":60,"took":2,"last_done":3,"failures":4,"error":"old"}'
    await execute(database_url, text.replace("{}", now), text.replace("{}", late))
    status = await status_of(client, "leases")
    assert (status.runs, status.done, status.last_done, status.failures) == (3, 12, 5, 0)
    assert status.last_took == timedelta(seconds=1)
