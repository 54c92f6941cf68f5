"""What is fired after a time when nobody fired, and what is recorded instead."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlstreams.manager.catch_up import Plan, make_plan
from sqlstreams.slots import Rule
from sqlstreams.statements import DueSchedule

YEAR = timedelta(days=365)
MINUTE = timedelta(minutes=1)
DAY = datetime(2026, 7, 1, tzinfo=UTC)
POLICIES = ["newest", "oldest", "all", "skip"]


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return DAY + timedelta(hours=hour, minutes=minute, seconds=second)


def schedule(next_slot: datetime, *, catch_up: str = "newest", rule: Rule | None = None, **fields: Any) -> DueSchedule:
    known: dict[str, Any] = {
        "id": 1,
        "name": "s",
        "revision": 1,
        "stream_id": 1,
        "schema_version": 1,
        "rule": rule or Rule("0 * * * *", "UTC"),
        "jitter": None,
        "catch_up": catch_up,
        "catch_up_window": YEAR,
        "concurrency": "parallel",
        "timeout": timedelta(seconds=30),
        "compaction": True,
        "next_slot": next_slot,
        "due_at": next_slot,
        "size": 2,
        "failures": 0,
    }
    return DueSchedule(**(known | fields))


def fired(plan: Plan) -> list[datetime]:
    return [fire.slot for fire in plan.fires]


def skipped(plan: Plan) -> list[tuple[datetime, datetime, int, str]]:
    return [(skip.first_slot, skip.last_slot, skip.slots, skip.reason) for skip in plan.skips]


@pytest.mark.parametrize("catch_up", POLICIES)
def test_a_slot_on_time_fires_whatever_the_policy(catch_up: str) -> None:
    plan = make_plan(schedule(at(14), catch_up=catch_up), at(14, 0, 1), limit=100)
    assert [(fire.slot, fire.kind) for fire in plan.fires] == [(at(14), "slot")]
    assert (plan.skips, plan.next_slot, plan.due_at, plan.is_behind) == ((), at(15), at(15), False)


@pytest.mark.parametrize(
    ("catch_up", "fires", "skips"),
    [
        ("newest", [at(16)], [(at(14), at(15), 2, "catch_up")]),
        ("oldest", [at(14)], [(at(15), at(16), 2, "catch_up")]),
        ("all", [at(14), at(15), at(16)], []),
        ("skip", [], [(at(14), at(16), 3, "catch_up")]),
    ],
)
def test_hourly_and_down_from_two_to_half_past_four(catch_up: str, fires: list[Any], skips: list[Any]) -> None:
    plan = make_plan(schedule(at(14), catch_up=catch_up), at(16, 30), limit=100)
    assert fired(plan) == fires
    assert {fire.kind for fire in plan.fires} <= {"catch_up"}
    assert skipped(plan) == skips
    assert plan.next_slot == at(17)


@pytest.mark.parametrize(("catch_up", "fires"), [("newest", 1), ("oldest", 1), ("all", 1), ("skip", 0)])
def test_one_slot_that_is_late_is_caught_up_with(catch_up: str, fires: int) -> None:
    plan = make_plan(schedule(at(14), catch_up=catch_up), at(14, 30), limit=100)
    assert [fire.kind for fire in plan.fires] == ["catch_up"] * fires
    assert (len(plan.skips), plan.next_slot) == (1 - fires, at(15))


def test_all_goes_in_bounded_parts() -> None:
    plan = make_plan(schedule(at(0), catch_up="all"), at(10), limit=4)
    assert fired(plan) == [at(0), at(1), at(2), at(3)]
    assert (plan.next_slot, plan.is_behind) == (at(4), True)
    assert not make_plan(schedule(at(8), catch_up="all"), at(10, 5), limit=4).is_behind


@pytest.mark.parametrize("catch_up", POLICIES)
def test_what_is_older_than_the_window_is_recorded_as_such(catch_up: str) -> None:
    due = schedule(at(2), catch_up=catch_up, catch_up_window=timedelta(hours=3))
    plan = make_plan(due, at(12, 30), limit=100)
    assert skipped(plan)[0] == (at(2), at(9), 8, "window")
    assert sum(skip.slots for skip in plan.skips) + len(plan.fires) == 11
    assert (
        fired(plan) == {"newest": [at(12)], "oldest": [at(10)], "all": [at(10), at(11), at(12)], "skip": []}[catch_up]
    )


def test_a_window_that_holds_nothing_leaves_nothing_to_fire() -> None:
    plan = make_plan(schedule(at(2), catch_up_window=timedelta(0)), at(12, 30), limit=100)
    assert (fired(plan), skipped(plan), plan.next_slot) == ([], [(at(2), at(12), 11, "window")], at(13))


@pytest.mark.parametrize("catch_up", POLICIES)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
def test_26_hours_of_minutes_are_counted_exactly(catch_up: str, zone: str) -> None:
    rule = Rule("* * * * *", zone)
    plan = make_plan(schedule(at(0), rule=rule, catch_up=catch_up), at(26, 0, 30), limit=100)
    assert len(plan.fires) == {"newest": 1, "oldest": 1, "all": 100, "skip": 0}[catch_up]
    if catch_up != "all":
        assert len(plan.fires) + sum(skip.slots for skip in plan.skips) == 26 * 60 + 1


@pytest.mark.parametrize("catch_up", ["newest", "oldest", "skip"])
def test_a_month_of_missed_minutes_takes_no_time(catch_up: str) -> None:
    rule = Rule("* * * * *", "Europe/Berlin")
    began = time.perf_counter()
    plan = make_plan(schedule(DAY, rule=rule, catch_up=catch_up), DAY + timedelta(days=30), limit=100)
    assert time.perf_counter() - began < 2
    assert len(plan.fires) + sum(skip.slots for skip in plan.skips) == 43_201


def test_the_last_slot_ends_a_schedule() -> None:
    rule = Rule("0 * * * *", "UTC", None, at(15))
    plan = make_plan(schedule(at(14), rule=rule), at(18), limit=100)
    assert (fired(plan), plan.next_slot, plan.due_at, plan.is_behind) == ([at(15)], None, None, False)


def test_a_slot_that_its_jitter_still_holds_back_is_left() -> None:
    rule, jitter = Rule("0 * * * *", "UTC"), timedelta(minutes=50)
    due = schedule(at(14), rule=rule, jitter=jitter)
    put_off = rule.delayed(1, at(16), jitter=jitter)
    plan = make_plan(due, put_off - MINUTE / 60, limit=100)
    assert fired(plan) == [at(15)]
    assert (plan.next_slot, plan.due_at) == (at(16), put_off)
    assert fired(make_plan(due, put_off, limit=100)) == [at(16)]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.sampled_from(["*/20 * * * *", "30 2 * * *", "@every 2700s", "0 * * * 1-5"]),
    st.sampled_from(["UTC", "America/New_York"]),
    st.integers(0, 4_000),
    st.integers(0, 3_000),
    st.sampled_from([None, timedelta(minutes=10), timedelta(hours=5)]),
)
def test_every_due_slot_is_fired_or_recorded_once(
    catch_up: str, text: str, zone: str, down_for: int, window: int, jitter: timedelta | None
) -> None:
    rule = Rule(text, zone)
    start = rule.next_after(datetime(2026, 3, 6, tzinfo=UTC))
    assert start is not None
    now = rule.delayed(1, start, jitter=jitter) + down_for * MINUTE
    due = schedule(start, catch_up=catch_up, rule=rule, catch_up_window=window * MINUTE, jitter=jitter)

    plan = make_plan(due, now, limit=100_000)

    slots = [start, *rule.between(start, now)]
    due_slots = [slot for slot in slots if rule.delayed(1, slot, jitter=jitter) <= now]
    told = fired(plan)
    for skip in plan.skips:
        covered = [slot for slot in slots if skip.first_slot <= slot <= skip.last_slot]
        assert len(covered) == skip.slots
        told += covered
    assert sorted(told) == due_slots
    assert plan.next_slot == rule.next_after(due_slots[-1])
