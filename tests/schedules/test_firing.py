"""Firing what is due: each slot once, with its message and its record, whatever goes wrong beside it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

import sqlstreams
from sqlstreams import AsyncClient, Client
from sqlstreams.manager import schedules
from sqlstreams.statements import Statement
from tests.schedules.ground import (
    HOUR,
    MINUTE,
    Run,
    back_date,
    clock,
    duty,
    fire_all,
    half_past,
    messages,
    query,
    register,
    slots_fired,
)
from tests.support import consuming, eventually

REASONS = ["shape of version 1", "expression", "2000002 bytes", "message_log_2"]


def last_minute(url: str) -> datetime:
    """Return a slot of a schedule of every minute that is due now, and on time."""
    return clock(url).replace(second=0, microsecond=0)


async def test_a_slot_is_a_message_a_fire_and_the_next_slot(database_url: str) -> None:
    register(database_url, "* * * * *")
    slot = last_minute(database_url)
    back_date(database_url, slot)
    async with AsyncClient(database_url, manager=False) as client:
        ran = await duty(client).run_once()
        nightly = client.scheduler("nightly")
        (fire,) = await nightly.fires()
        status = await nightly.status()
    assert (ran.done, ran.again) == (1, False)
    assert ran.due_in is not None
    assert 0 <= ran.due_in <= 60
    assert messages(database_url) == [("nightly", {"region": "eu"}, slot)]
    assert (fire.scheduled_for, fire.kind, fire.message_id) == (slot, "slot", 1)
    assert (status.next_slot, status.last_slot, status.last_message_id) == (slot + MINUTE, slot, 1)
    assert (status.due_at, status.consecutive_failures, status.fires) == (slot + MINUTE, 0, 1)


@pytest.mark.parametrize("payload", ['{"region":"eu"}', '{"region":"us"}'])
async def test_a_message_that_is_there_under_the_key_of_a_slot_is_the_message_of_that_slot(
    database_url: str, payload: str
) -> None:
    register(database_url, "* * * * *")
    slot = last_minute(database_url)
    back_date(database_url, slot)
    key = f"schedule:1:{slot.isoformat()}"
    query(database_url, "select sqlstreams.produce('runs', %s, idempotency_key => %s)", [payload, key])
    async with AsyncClient(database_url, manager=False) as client:
        await duty(client).run_once()
        (fire,) = await client.scheduler("nightly").fires()
    assert (fire.scheduled_for, fire.message_id) == (slot, 1)
    assert len(messages(database_url)) == 1


async def test_a_handler_knows_its_slot_and_what_the_schedule_asks_for(database_url: str) -> None:
    register(database_url, "* * * * *", timeout=timedelta(seconds=7))
    slot = last_minute(database_url)
    back_date(database_url, slot)
    seen = []
    async with AsyncClient(database_url, manager=False) as client:
        runner = await client.stream("runs", Run).consumer("runner").register(start="beginning")
        async with consuming(runner, lambda run: seen.append((run, sqlstreams.meta()))):
            await duty(client).run_once()
            await eventually(lambda: bool(seen))
        await client.stream("runs", Run).producer().produce(Run("us"))
        async with consuming(runner, lambda run: seen.append((run, sqlstreams.meta()))):
            await eventually(lambda: len(seen) == 2)
    (run, meta), (_, plain) = seen
    assert run == Run("eu")
    assert (meta.scheduled_at, meta.key, meta.timeout) == (slot, "nightly", timedelta(seconds=7))
    assert plain.scheduled_at is None


async def test_what_comes_soon_is_looked_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register(database_url, "* * * * *")
    back_date(database_url, clock(database_url) + timedelta(seconds=40))
    asked: list[str] = []
    async with AsyncClient(database_url, manager=False) as client:
        real = client._database.query

        async def query_(statement: Statement[Any]) -> list[Any]:
            asked.append(statement.name)
            return await real(statement)

        monkeypatch.setattr(client._database, "query", query_)
        producer = duty(client)
        for _ in range(3):
            await producer.run_once()
    look = "list_due_schedules"
    assert asked == ["list_zone_data", look, "list_coming_schedules", look, look]


async def test_nothing_due_says_when_to_come_again(database_url: str) -> None:
    register(database_url, "* * * * *")
    slot = last_minute(database_url) + HOUR
    back_date(database_url, slot)
    async with AsyncClient(database_url, manager=False) as client:
        ran = await duty(client).run_once()
    assert (ran.done, ran.again) == (0, False)
    assert ran.due_in is not None
    assert abs(ran.due_in - (slot - clock(database_url)).total_seconds()) < 5
    query(database_url, "update sqlstreams.schedule_cursor set due_at = null")
    async with AsyncClient(database_url, manager=False) as client:
        assert (await duty(client).run_once()).due_in is None


@pytest.mark.parametrize(
    ("catch_up", "fires", "skipped"), [("newest", [2], 2), ("oldest", [0], 2), ("all", [0, 1, 2], 0), ("skip", [], 3)]
)
async def test_hourly_and_down_over_three_slots(
    database_url: str, catch_up: str, fires: list[int], skipped: int
) -> None:
    expression, slot = half_past(database_url)
    first = slot - 2 * HOUR
    register(database_url, expression, catch_up=catch_up)
    back_date(database_url, first)
    async with AsyncClient(database_url, manager=False) as client:
        assert await fire_all(client) == len(fires)
        status = await client.scheduler("nightly").status()
        kinds = {fire.kind for fire in await client.scheduler("nightly").fires()}
    assert slots_fired(database_url) == [first + number * HOUR for number in fires]
    assert kinds <= {"catch_up"}
    assert (status.next_slot, status.skipped_slots) == (slot + HOUR, skipped)


async def test_all_of_26_hours_comes_in_order_and_in_bounded_parts(database_url: str) -> None:
    register(database_url, "* * * * *", catch_up="all")
    slot = last_minute(database_url)
    back_date(database_url, slot - 26 * HOUR)
    async with AsyncClient(database_url, manager=False) as client:
        first = await duty(client).run_once()
        assert (first.done, first.again) == (100, True)
        await fire_all(client)
    fired = slots_fired(database_url)
    assert fired[: 26 * 60 + 1] == [slot - 26 * HOUR + number * MINUTE for number in range(26 * 60 + 1)]


async def test_suspended_schedules_stay_silent(database_url: str) -> None:
    register(database_url, "* * * * *", "a", "b")
    async with AsyncClient(database_url, manager=False) as client:
        await client.scheduler("a").suspend()
        back_date(database_url, last_minute(database_url))
        await fire_all(client)
    assert [key for key, _, _ in messages(database_url)] == ["b"]


async def test_streams_and_versions_are_fired_together(database_url: str) -> None:
    register(database_url, "* * * * *", "a", "b")
    with Client(database_url) as client:
        client.stream("others", Run).register()
        client.scheduler("c").register("others", "* * * * *", Run("us"))
    back_date(database_url, last_minute(database_url))
    async with AsyncClient(database_url, manager=False) as client:
        assert (await duty(client).run_once()).done == 3
    assert [key for key, _, _ in messages(database_url)] == ["a", "b"]
    assert [key for key, _, _ in messages(database_url, "others")] == ["c"]


async def test_a_poisoned_schedule_stops_no_other(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"s{number}" for number in range(9)]
    register(database_url, "* * * * *", *names)
    for name, poison in (
        ("s1", "fingerprint = 'another'"),  # its shape has changed
        ("s3", "expression = 'x * * * *'"),  # nobody can read it
        ("s5", "payload = ('\"' || repeat('x', 2000000) || '\"')::json"),  # too large
        ("s7", "stream_id = 2, fingerprint = null"),  # its log is gone, which the database alone notices
    ):
        if name == "s7":
            with Client(database_url) as client_:
                client_.stream("x", Run).register()
            query(database_url, "drop table sqlstreams.message_log_2 cascade")
        query(database_url, f"update sqlstreams.schedule_config set {poison} where name = %s", [name])
    back_date(database_url, last_minute(database_url))
    async with AsyncClient(database_url, manager=False) as client:
        await fire_all(client)
    assert sorted(key for key, _, _ in messages(database_url)) == ["s0", "s2", "s4", "s6", "s8"]
    failed = query(
        database_url,
        """
        select consecutive_failures, last_error, next_slot is not null, due_at - failed_at
          from sqlstreams.schedule_status where failed_at is not null order by name
        """,
    )
    for (failures, error, is_left, pause), reason in zip(failed, REASONS, strict=True):
        assert (failures, is_left) == (1, True)
        assert reason in error
        assert timedelta(0) < pause <= timedelta(seconds=1)
    assert sum("SQL0130" in record.getMessage() for record in caplog.records) == 4


async def test_a_failing_schedule_waits_longer_each_time_and_recovers(database_url: str) -> None:
    register(database_url, "@every 1s", "s")
    query(database_url, "update sqlstreams.schedule_config set fingerprint = 'another'")
    pauses = []
    async with AsyncClient(database_url, manager=False) as client:
        for _ in range(11):
            query(database_url, "update sqlstreams.schedule_cursor set due_at = now() - interval '1 s'")
            back_date(database_url, last_minute(database_url))
            await duty(client).run_once()
            status = await client.scheduler("s").status()
            assert status.due_at is not None
            assert status.failed_at is not None
            pauses.append((status.due_at - status.failed_at).total_seconds())
        assert (await client.scheduler("s").status()).consecutive_failures == 11
        assert pauses[0] <= 1
        assert all(later > earlier for earlier, later in pairwise(pauses[:9]))
        assert 200 < pauses[-1] <= 300
        # Somebody registers it again.
        await client.scheduler("s").register("runs", "@every 1s", Run("us"))
        back_date(database_url, last_minute(database_url))
        assert await fire_all(client) >= 1
        assert (await client.scheduler("s").status()).consecutive_failures == 0


async def test_a_key_that_somebody_holds_makes_one_schedule_wait(database_url: str) -> None:
    register(database_url, "* * * * *", "a", "b", "c")
    back_date(database_url, last_minute(database_url))
    with psycopg.connect(database_url) as changing:
        changing.execute("update sqlstreams.schedule_config set timezone = timezone where name = 'b'")
        async with AsyncClient(database_url, manager=False) as client:
            producer = duty(client)
            ran = await producer.run_once()
            assert (ran.done, ran.again) == (2, False)
            assert ran.due_in is not None
            assert ran.due_in <= 1
            pauses = [(await producer.run_once()).due_in for _ in range(6)]
            assert pauses[-1] == pytest.approx(1, abs=0.2)
            changing.rollback()
            assert (await producer.run_once()).done == 1


async def test_five_thousand_at_once(database_url: str) -> None:
    register(database_url, "0 0 1 1 *", "s")  # so that no minute passes meanwhile
    query(
        database_url,
        """
        insert into sqlstreams.schedule_config
               (name, stream_id, expression, timezone, payload, schema_version, fingerprint, concurrency, timeout_ns,
                catch_up, catch_up_window, compaction)
        select 's' || n, stream_id, expression, timezone, payload, schema_version, fingerprint, concurrency, timeout_ns,
               catch_up, catch_up_window, compaction
          from sqlstreams.schedule_config, generate_series(1, 4999) as n
        """,
    )
    query(
        database_url,
        """
        insert into sqlstreams.schedule_cursor (schedule_id, zone_data)
        select id, c.zone_data from sqlstreams.schedule_config, sqlstreams.schedule_cursor c where name <> 's'
        """,
    )
    back_date(database_url, last_minute(database_url))
    async with AsyncClient(database_url, manager=False) as client:
        began = time.perf_counter()
        assert (await duty(client).run_once()).done == 1_000
        assert await fire_all(client) == 4_000
        assert time.perf_counter() - began < 20
    assert len({key for key, _, _ in messages(database_url)}) == 5_000


async def test_the_edge_of_the_log_is_no_hindrance(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("runs", Run).register(partition_rows=1_000)
    register(database_url, "* * * * *", "s", catch_up="all")
    query(database_url, "select setval('sqlstreams.message_log_1_id', 999)")
    back_date(database_url, last_minute(database_url) - HOUR)
    async with AsyncClient(database_url, manager=False) as client:
        assert await fire_all(client) >= 61


async def test_an_hour_off_on_this_host_changes_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3_600)
    register(database_url, "* * * * *", "a", "b")
    slot = last_minute(database_url)
    back_date(database_url, slot, "a")
    async with AsyncClient(database_url, manager=False) as client:
        assert (await duty(client).run_once()).done == 1
    assert messages(database_url) == [("a", {"region": "eu"}, slot)]


async def test_jitter_puts_off_the_fire_and_not_the_slot(database_url: str) -> None:
    register(database_url, "* * * * *", "s", jitter=timedelta(seconds=50))
    with Client(database_url) as client:
        info = client.scheduler("s").get()
        status = client.scheduler("s").status()
    assert info is not None
    assert info.next_slot is not None
    assert status.due_at is not None
    assert info.next_slot.second == 0
    assert info.next_slot < status.due_at < info.next_slot + timedelta(seconds=50)
    slot = last_minute(database_url) - 2 * MINUTE
    query(database_url, "update sqlstreams.schedule_cursor set next_slot = %s, due_at = now()", [slot])
    async with AsyncClient(database_url, manager=False) as client_:
        await fire_all(client_)
    assert all(each.second == 0 for each in slots_fired(database_url))


async def test_newer_zone_data_moves_the_slots_that_are_to_come(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(5)]
    register(database_url, "0 2 * * *", *names, timezone="Europe/Berlin")
    right = query(database_url, "select distinct next_slot from sqlstreams.schedule_cursor")
    query(database_url, "update sqlstreams.schedule_cursor set zone_data = '2020.1'")
    query(
        database_url,
        "update sqlstreams.schedule_cursor"
        " set next_slot = next_slot + interval '1 h', due_at = due_at + interval '1 h'",
    )
    due = last_minute(database_url)
    back_date(database_url, due, "s4")
    monkeypatch.setattr(schedules, "_AT_ONCE", 2)
    async with AsyncClient(database_url, manager=False) as client:
        await client.scheduler("s3").suspend()
        query(database_url, "update sqlstreams.schedule_cursor set zone_data = '2020.1'")
        producer = duty(client)
        retimed = [await producer.run_once() for _ in range(3)]
        assert [(ran.done, ran.again) for ran in retimed] == [(2, True), (2, True), (1, True)]
        await producer.run_once()
    rows = query(database_url, "select distinct next_slot from sqlstreams.schedule_cursor where zone_data <> '2020.1'")
    assert rows == right
    assert slots_fired(database_url) == [due]
    assert query(database_url, "select count(*) from sqlstreams.schedule_cursor where due_at is null") == [(1,)]


async def test_older_zone_data_changes_nothing(database_url: str) -> None:
    register(database_url, "0 2 * * *")
    query(database_url, "update sqlstreams.schedule_cursor set zone_data = '2999.1'")
    async with AsyncClient(database_url, manager=False) as client:
        await duty(client).run_once()
    assert query(database_url, "select zone_data from sqlstreams.schedule_cursor") == [("2999.1",)]


@pytest.mark.parametrize(
    ("expression", "zone", "day", "expected"),
    [
        ("30 2 * * *", "Europe/Paris", datetime(2026, 3, 29, tzinfo=UTC), ["01:00"]),  # the gap: first instant after it
        ("30 2 * * *", "Europe/Paris", datetime(2026, 10, 25, tzinfo=UTC), ["00:30"]),  # twice: the first
        ("30 1 * * *", "America/New_York", datetime(2026, 11, 1, tzinfo=UTC), ["05:30"]),
        ("*/30 2 * * *", "Europe/Paris", datetime(2026, 10, 25, tzinfo=UTC), ["00:00", "00:30", "01:00", "01:30"]),
    ],
)
async def test_on_the_hard_days_the_message_carries_the_true_slot(
    database_url: str, expression: str, zone: str, day: datetime, expected: list[str]
) -> None:
    register(database_url, expression, timezone=zone)
    now = clock(database_url)
    with Client(database_url) as client:
        if day + timedelta(days=1) > now:
            pytest.skip("this day is still to come")
        done = client.scheduler("nightly").backfill(day, day + timedelta(hours=23))
    assert done.fired == len(expected)
    assert [f"{slot:%H:%M}" for slot in slots_fired(database_url)] == expected


async def test_a_change_of_the_rows_is_found_by_everyone(database_url: str) -> None:
    register(database_url, "* * * * *")
    back_date(database_url, last_minute(database_url))
    async with AsyncClient(database_url, manager=False) as one, AsyncClient(database_url, manager=False) as other:
        rans = await asyncio.gather(*(duty(client).run_once() for client in (one, other, one, other)))
    assert sum(ran.done for ran in rans) == 1
    assert len(messages(database_url)) == 1
