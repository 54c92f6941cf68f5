"""The slots of a schedule within its bounds, how many there are in a long span, and what jitter does."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqlstreams import cron
from sqlstreams.cron_count import count_slots
from sqlstreams.slots import Rule

START = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)

expressions = st.sampled_from(
    [
        "*/7 * * * *",
        "30 2 * * *",
        "0,30 0,1,2,3 * * *",
        "15 * * * 1-5",
        "0 0 1 * *",
        "0 9 13 * 5",
        "@every 5400s",
        "0 1-3 L * *",
    ]
)
zones = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Asia/Beirut", "Pacific/Apia", "America/Nuuk"]
)
starts = st.sampled_from(
    [
        datetime(2026, 3, 27, tzinfo=UTC),
        datetime(2026, 10, 23, tzinfo=UTC),
        datetime(2026, 9, 4, tzinfo=UTC),
        datetime(2011, 12, 28, tzinfo=UTC),
        datetime(2025, 3, 28, tzinfo=UTC),
    ]
)
minutes = st.integers(0, 6 * 1_440)


@settings(max_examples=40, deadline=None)
@given(expressions, zones, starts, minutes, minutes)
# A whole day that is skipped, and the last hour of one: what they had is due at the midnight behind.
@example("30 2 * * *", "Pacific/Apia", datetime(2011, 12, 28, tzinfo=UTC), 0, 3_480)
@example("30 23 * * *", "America/Nuuk", datetime(2025, 3, 28, tzinfo=UTC), 0, 3_000)
def test_counting_agrees_with_going_through_them(text: str, zone: str, start: datetime, skip: int, span: int) -> None:
    expression = cron.parse(text, zone)
    after = start + timedelta(minutes=skip, seconds=17)
    until = after + timedelta(minutes=span)
    assert count_slots(expression, after, until) == sum(1 for _ in expression.between(after, until))


def test_a_year_of_minutes_is_counted_at_once() -> None:
    began = time.perf_counter()
    assert Rule("* * * * *", "Europe/Berlin").count(START, START + 365 * DAY) == 365 * 1_440
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("text", ["* * * * *", "0 * * * *", "30 2 * * *", "0 0 1 * *", "0 0 1 1 *"])
def test_the_newest_slot_is_the_last_one(text: str, zone: str) -> None:
    rule = Rule(text, zone)
    for span in (timedelta(seconds=30), 2 * DAY, 70 * DAY if text != "* * * * *" else 3 * DAY):
        slots = list(rule.between(START, START + span))
        assert rule.newest(START, START + span) == (slots[-1] if slots else None)


def test_the_bounds_belong_to_the_schedule() -> None:
    rule = Rule("0 * * * *", "UTC", START, START + timedelta(hours=2))
    hours = [START + timedelta(hours=number) for number in range(3)]
    assert list(rule.between(START - 5 * DAY, START + 5 * DAY)) == hours
    assert rule.next_after(hours[-1]) is None
    assert rule.count(START - 5 * DAY, START + 5 * DAY) == 3
    assert rule.newest(START - 5 * DAY, START + 5 * DAY) == hours[-1]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**40), st.integers(0, 10_000), st.integers(1, 7_200))
def test_jitter_is_the_same_each_time_and_keeps_the_order(schedule_id: int, hour: int, seconds: int) -> None:
    rule, jitter = Rule("0 * * * *", "UTC"), timedelta(seconds=seconds)
    slot = START + timedelta(hours=hour)
    due = rule.delayed(schedule_id, slot, jitter=jitter)
    assert due == rule.delayed(schedule_id, slot, jitter=jitter)
    assert slot <= due <= slot + jitter
    assert due < slot + timedelta(hours=1)


def test_jitter_spreads_schedules_and_slots() -> None:
    rule, jitter = Rule("0 * * * *", "UTC"), timedelta(seconds=60)
    by_schedule = {rule.delayed(number, START, jitter=jitter) for number in range(100)}
    by_slot = {
        rule.delayed(1, START + timedelta(hours=number), jitter=jitter) - timedelta(hours=number)
        for number in range(100)
    }
    assert len(by_schedule) == len(by_slot) == 100
    assert max(by_schedule) - min(by_schedule) > timedelta(seconds=45)
