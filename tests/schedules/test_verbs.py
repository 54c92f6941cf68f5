"""Stopping, running by hand, filling in the past, and looking at what became of it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

import sqlstreams
from sqlstreams import AsyncClient, Backfilled, Client, InvalidInput, NotFound, Terminal
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


async def test_slots_that_come_due_while_suspended_are_dropped_and_recorded(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression, catch_up="all")
    async with AsyncClient(database_url, manager=False) as client:
        nightly = client.scheduler("nightly")
        await nightly.suspend()
        info = await nightly.get()
        assert info is not None
        assert info.suspended
        assert info.suspended_at is not None
        back_date(database_url, slot - 9 * HOUR)
        assert await fire_all(client) == 0
        await nightly.unsuspend()
        assert await fire_all(client) == 0
        (skip,) = await nightly.skips()
        assert (skip.first_slot, skip.last_slot, skip.slots, skip.reason) == (slot - 9 * HOUR, slot, 10, "suspended")
        info = await nightly.get()
        assert info is not None
        assert not info.suspended
        assert info.next_slot == slot + HOUR
    assert messages(database_url) == []


async def test_an_edit_while_suspended_stays_suspended(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression)
    async with AsyncClient(database_url, manager=False) as client:
        nightly = client.scheduler("nightly")
        await nightly.suspend()
        back_date(database_url, slot - 2 * HOUR)
        await nightly.register("runs", "@every 60s", Run("eu"))
        (skip,) = await nightly.skips()
        status = await nightly.status()
        assert (skip.slots, skip.reason) == (3, "suspended")
        assert (status.suspended, status.due_at) == (True, None)


async def test_a_run_by_hand_is_marked_and_leaves_the_slots_alone(database_url: str) -> None:
    register(database_url, "0 0 1 1 *")
    async with AsyncClient(database_url, manager=False) as client:
        nightly = client.scheduler("nightly")
        before = await nightly.get()
        first = await nightly.run()
        await nightly.suspend()
        second = await nightly.run()
        fires = await nightly.fires()
        status = await nightly.status()
    assert before is not None
    assert (first.id, second.id) == (1, 2)
    assert [(fire.message_id, fire.kind) for fire in fires] == [(2, "manual"), (1, "manual")]
    assert [slot for _, _, slot in messages(database_url)] == [fire.scheduled_for for fire in reversed(fires)]
    assert abs(fires[0].scheduled_for - fires[0].fired_at) < MINUTE
    assert (status.next_slot, status.last_slot, status.last_message_id) == (before.next_slot, None, 2)


def test_a_run_that_cannot_be_produced_is_refused(database_url: str) -> None:
    register(database_url, "0 0 1 1 *")
    query(database_url, "update sqlstreams.schedule_config set fingerprint = 'another'")
    with Client(database_url) as client, pytest.raises(InvalidInput, match="register the schedule again"):
        client.scheduler("nightly").run()


def test_a_backfill_fires_each_past_slot_once(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression)
    with Client(database_url) as client:
        nightly = client.scheduler("nightly")
        assert nightly.backfill(slot - 5 * HOUR, slot - HOUR) == Backfilled(fired=5, already_fired=0)
        assert nightly.backfill(slot - 5 * HOUR, slot - HOUR) == Backfilled(fired=0, already_fired=5)
        assert nightly.backfill(slot - 6 * HOUR, slot) == Backfilled(fired=2, already_fired=5)
        assert nightly.backfill(slot + MINUTE, slot + 2 * MINUTE) == Backfilled()
        assert {fire.kind for fire in nightly.fires()} == {"backfill"}
        info = nightly.get()
    assert info is not None
    assert info.next_slot == slot + HOUR
    assert sorted(slots_fired(database_url)) == [slot - number * HOUR for number in range(6, -1, -1)]


async def test_a_slot_that_was_backfilled_is_not_fired_again(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression, catch_up="all")
    back_date(database_url, slot - 3 * HOUR)
    async with AsyncClient(database_url, manager=False) as client:
        nightly = client.scheduler("nightly")
        assert (await nightly.backfill(slot - 2 * HOUR, slot - HOUR)).fired == 2
        assert await fire_all(client) == 2
        assert (await nightly.status()).fires == 4
    assert slots_fired(database_url) == [slot - 2 * HOUR, slot - HOUR, slot - 3 * HOUR, slot]


async def test_a_history_that_was_deleted_fires_nothing_again(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression, catch_up="all")
    back_date(database_url, slot - 2 * HOUR)
    async with AsyncClient(database_url, manager=False) as client:
        assert await fire_all(client) == 3
        query(database_url, "delete from sqlstreams.schedule_fire")
        assert await fire_all(client) == 0
    assert len(messages(database_url)) == 3


async def test_a_long_backfill_goes_in_parts(database_url: str) -> None:
    register(database_url, "* * * * *")
    now = clock(database_url)
    async with AsyncClient(database_url, manager=False) as client:
        done = await client.scheduler("nightly").backfill(now - 20 * HOUR, now)
    assert 1_200 <= done.fired <= 1_201
    assert len(set(slots_fired(database_url))) == done.fired


def test_times_of_a_backfill_are_checked(database_url: str) -> None:
    register(database_url, "* * * * *")
    now = clock(database_url)
    with Client(database_url) as client:
        nightly = client.scheduler("nightly")
        for start, until, field in (
            (now.replace(tzinfo=None), now, "start"),
            (now, now.replace(tzinfo=None), "until"),
            (now, now - MINUTE, "until"),
            (now, now + HOUR, "until"),
            ("now", now, "start"),
        ):
            with pytest.raises(InvalidInput) as refused:
                nightly.backfill(start, until)  # type: ignore[arg-type]  # what is refused
            assert refused.value.field == field
        for limit in (0, -1, 2**70, True):
            for verb in (nightly.fires, nightly.skips, nightly.messages, nightly.edits):
                with pytest.raises(InvalidInput):
                    verb(limit=limit)
    assert messages(database_url) == []


def test_the_next_slots(database_url: str) -> None:
    register(database_url, "@every 3600s", end_at=clock(database_url) + 3 * HOUR)
    with Client(database_url) as client:
        nightly = client.scheduler("nightly")
        slots = nightly.next()
        info = nightly.get()
        nightly.suspend()
        assert nightly.next(2) == slots[:2]
    assert info is not None
    assert slots == [info.next_slot + number * HOUR for number in range(3)]  # type: ignore[operator]  # it has one


async def test_the_status_says_what_became_of_the_last_message_in_every_group(database_url: str) -> None:
    register(database_url, "* * * * *")
    async with AsyncClient(database_url, manager=False) as client:
        stream = client.stream("runs", Run)
        for name in ("done", "dies", "waits"):
            await stream.consumer(name).register(max_retries=0)
        await stream.consumer("other").register(bindings=["eu.*"])
        nightly = client.scheduler("nightly")
        assert (await nightly.status()).groups == ()
        back_date(database_url, clock(database_url).replace(second=0, microsecond=0))
        await fire_all(client)

        async def outcomes() -> dict[str, str]:
            return {each.group: each.outcome for each in (await nightly.status()).groups}

        assert await outcomes() == dict.fromkeys(("dies", "done", "other", "waits"), "pending")

        async def die(run: Run) -> None:
            raise Terminal("no")

        async with (
            consuming(stream.consumer("done"), lambda run: None),
            consuming(stream.consumer("dies"), die),
            consuming(stream.consumer("other"), lambda run: None),
        ):
            wanted = {"done": "succeeded", "dies": "dead", "other": "not bound", "waits": "pending"}

            async def is_so() -> bool:
                return await outcomes() == wanted

            await eventually(is_so)
        await stream.consumer("late").register(start="head")
        assert (await outcomes())["late"] == "skipped"
        await stream.consumer("waits").skip("head")
        assert (await outcomes())["waits"] == "skipped"
        (message, *_) = await nightly.messages()
        (dead,) = (each for each in message.groups if each.outcome == "dead")
        assert message.kind == "slot"
        assert (dead.group, dead.failures, dead.error) == ("dies", 1, "no") or "no" in str(dead.error)


async def test_a_message_that_is_being_handled_is_inflight(database_url: str) -> None:
    register(database_url, "* * * * *")
    begun, end = asyncio.Event(), asyncio.Event()

    async def work(run: Run) -> None:
        begun.set()
        await end.wait()

    async with AsyncClient(database_url, manager=False) as client:
        runner = await client.stream("runs", Run).consumer("runner").register()
        receipt = await client.scheduler("nightly").run()
        async with consuming(runner, work):
            await begun.wait()
            (message,) = await client.scheduler("nightly").messages()
            assert message.id == receipt.id
            assert [(each.group, each.outcome) for each in message.groups] == [("runner", "inflight")]
            end.set()


async def test_a_message_that_nobody_began_is_superseded_by_the_next(database_url: str) -> None:
    register(database_url, "@every 1s", "keeps", compaction=False)
    register(database_url, "@every 1s", "compacts")
    slot = clock(database_url).replace(microsecond=0) - HOUR
    seen: list[Any] = []
    async with AsyncClient(database_url, manager=False) as client:
        runner = await client.stream("runs", Run).consumer("runner").register(start="beginning")
        for number in range(3):
            query(
                database_url,
                "update sqlstreams.schedule_cursor set next_slot = %(slot)s, due_at = %(slot)s",
                {"slot": slot + number * MINUTE},
            )
            query(database_url, "update sqlstreams.schedule_config set end_at = %s", [slot + number * MINUTE])
            await duty(client).run_once()
        # Filling in the past supersedes nothing, and nothing supersedes that.
        done = await client.scheduler("compacts").backfill(slot - MINUTE, slot - MINUTE)
        assert done.fired == 1
        async with consuming(runner, lambda run: seen.append(sqlstreams.meta())):
            await eventually(lambda: len(seen) >= 5)
        (_, *rest) = await client.scheduler("compacts").messages()
    told = sorted((meta.key, meta.scheduled_at) for meta in seen)
    assert told == [
        ("compacts", slot - MINUTE),
        ("compacts", slot + 2 * MINUTE),
        *(("keeps", slot + number * MINUTE) for number in range(3)),
    ]
    assert [message.groups[0].outcome for message in rest] == ["superseded", "superseded", "succeeded"]


async def test_exclusive_schedules_do_not_overlap(database_url: str) -> None:
    register(database_url, "@every 1s", concurrency="exclusive", catch_up="all", compaction=False)
    slot = clock(database_url).replace(microsecond=0)
    back_date(database_url, slot - timedelta(seconds=4))
    running, most, seen = 0, 0, list[datetime | None]()

    async def work(run: Run) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        seen.append(sqlstreams.meta().scheduled_at)
        running -= 1

    async with AsyncClient(database_url, manager=False) as client:
        runner = await client.stream("runs", Run).consumer("runner").register(start="beginning")
        await duty(client).run_once()
        async with consuming(runner, work):
            await eventually(lambda: len(seen) >= 5)
    assert most == 1


def test_the_view_for_psql_has_a_comment_for_every_column(database_url: str) -> None:
    register(database_url, "0 2 * * *")
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            """
            select a.attname, col_description(a.attrelid, a.attnum)
              from pg_attribute a
             where a.attrelid = 'sqlstreams.schedule_status'::regclass and a.attnum > 0
            """
        ).fetchall()
        shown = connection.execute("select name, stream, suspended from sqlstreams.schedule_status").fetchall()
    assert all(comment for _, comment in rows)
    assert shown == [("nightly", "runs", False)]


async def test_scheduling_runs_until_it_is_cancelled(database_url: str) -> None:
    register(database_url, "@every 1s")
    async with AsyncClient(database_url, lease_ttl=timedelta(seconds=1)) as client:
        running = asyncio.create_task(client.scheduler("nightly").schedule(signals=False))
        await eventually(lambda: len(messages(database_url)) >= 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(NotFound):
            await client.scheduler("absent").schedule()


async def test_a_new_schedule_is_heard_of_at_once(database_url: str) -> None:
    register(database_url, "0 0 1 1 *", "far")
    async with AsyncClient(database_url, lease_ttl=timedelta(seconds=1)) as client:
        running = asyncio.create_task(client.manager.run(signals=False))
        await eventually(lambda: query(database_url, "select 1 from sqlstreams.worker_instance") != [])
        await client.scheduler("soon").register("runs", "@every 1s", Run("eu"))
        await eventually(lambda: messages(database_url) != [])
        ((lateness,),) = query(
            database_url, "select extract(epoch from min(fired_at - scheduled_for)) from sqlstreams.schedule_fire"
        )
        assert lateness < 0.5
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
