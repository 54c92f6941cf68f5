"""Slots: the vectors, and comparison with walks through time that know nothing of croniter."""

from __future__ import annotations

import calendar
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sqlstreams
from sqlstreams import InvalidInput, cron
from sqlstreams.zones import zone

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def vectors(name: str) -> list[Any]:
    content: list[Any] = msgspec.json.decode(Path(__file__).with_name(f"cron_{name}.json").read_bytes())
    return content


def instants(texts: list[str]) -> list[datetime]:
    return [datetime.fromisoformat(text) for text in texts]


def following(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    slot = cron.next_after(expression, timezone, after)
    while slot is not None:
        yield slot
        slot = cron.next_after(expression, timezone, slot)


# The vectors


@pytest.mark.parametrize("vector", vectors("next"), ids=lambda vector: f"{vector['id']}")
def test_the_next_slots_are_those_of_the_vector(vector: dict[str, Any]) -> None:
    expression, timezone, after = vector["expression"], vector["timezone"], datetime.fromisoformat(vector["after"])
    if vector["why"] == "never":
        with pytest.raises(InvalidInput, match="no month of the expression has such a day"):
            cron.next_after(expression, timezone, after)
        return

    slots = list(islice(following(expression, timezone, after), len(vector["expect"])))

    assert slots == instants(vector["expect"]), vector["why"]
    assert all(slot.tzinfo is UTC for slot in slots)


@pytest.mark.parametrize("vector", vectors("between"), ids=lambda vector: f"{vector['id']}")
def test_the_slots_of_a_span_are_those_of_the_vector(vector: dict[str, Any]) -> None:
    after, until = instants([vector["from"], vector["to"]])

    slots = list(cron.between(vector["expression"], vector["timezone"], after, until))

    assert slots == instants(vector["expect"]), vector["why"]


# Expressions, and independently what they match


class Field(NamedTuple):
    text: str
    values: frozenset[int]


def items(low: int, high: int, *, wrapping_steps: bool = True) -> st.SearchStrategy[Field]:
    value = st.integers(low, high)

    def ranged(ends: tuple[int, int], step: int) -> Field:
        first, last = ends
        cycle = [*range(first, last + 1)] if first < last else [*range(first, high + 1), *range(low, last + 1)]
        if step == 1 or step > len(cycle) or (first > last and not wrapping_steps):
            return Field(f"{first}-{last}", frozenset(cycle))
        return Field(f"{first}-{last}/{step}", frozenset(cycle[::step]))

    two = st.tuples(value, value).filter(lambda ends: ends[0] != ends[1])
    single = value.map(lambda one: Field(str(one), frozenset({one})))
    star = st.integers(1, high - low + 1).map(lambda step: Field(f"*/{step}", frozenset(range(low, high + 1, step))))
    begun = value.flatmap(
        lambda one: st.integers(1, high - one + 1).map(
            lambda step: Field(f"{one}/{step}", frozenset(range(one, high + 1, step)))
        )
    )
    return st.one_of(single, single, st.builds(ranged, two, st.integers(1, 9)), star, begun)


def joined(parts: list[Field]) -> Field:
    return Field(",".join(part.text for part in parts), frozenset[int]().union(*(part.values for part in parts)))


def lists(low: int, high: int, *, wrapping_steps: bool = True) -> st.SearchStrategy[Field]:
    return st.lists(items(low, high, wrapping_steps=wrapping_steps), min_size=1, max_size=3).map(joined)


def fields(low: int, high: int) -> st.SearchStrategy[Field]:
    return st.one_of(st.just(Field("*", frozenset(range(low, high + 1)))), lists(low, high))


OnDay = Callable[[date], bool]


class Days(NamedTuple):
    """A field of days that matches not every day."""

    text: str
    matches: OnDay


def _days_of_month() -> st.SearchStrategy[Days]:
    plain = lists(1, 31, wrapping_steps=False).filter(lambda field: len(field.values) < 31)
    numbers = plain.map(lambda field: Days(field.text, lambda day: day.day in field.values))
    last = Days("L", _is_last)
    either = plain.map(lambda field: Days(f"{field.text},L", lambda day: day.day in field.values or _is_last(day)))
    return st.one_of(numbers, st.just(last), either)


def _is_last(day: date) -> bool:
    return (day + timedelta(days=1)).month != day.month


def _nearest_workdays() -> st.SearchStrategy[Days]:
    def nearest(wanted: int) -> Days:
        def matches(day: date) -> bool:
            length = calendar.monthrange(day.year, day.month)[1]
            workdays = [one for one in range(1, length + 1) if day.replace(day=one).isoweekday() <= 5]
            return day.day == min(workdays, key=lambda one: abs(one - wanted))

        return Days(f"{wanted}W", matches)

    return st.integers(1, 28).map(nearest)


def _weekdays() -> st.SearchStrategy[Days]:
    plain = lists(0, 6).filter(lambda field: len(field.values) < 7)
    return plain.map(lambda field: Days(field.text, lambda day: day.isoweekday() % 7 in field.values))


def _nth_weekdays() -> st.SearchStrategy[Days]:
    def nth(pairs: list[tuple[int, int]]) -> Days:
        def matches(day: date) -> bool:
            lasts = (day + timedelta(days=7)).month != day.month
            return any(
                day.isoweekday() % 7 == weekday and (lasts if number == 6 else (day.day + 6) // 7 == number)
                for weekday, number in pairs
            )

        return Days(",".join(f"L{day}" if number == 6 else f"{day}#{number}" for day, number in pairs), matches)

    return st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=3).map(nth)


def either(days: Days, weekdays: Days) -> tuple[Days, Days, OnDay]:
    return days, weekdays, lambda day: days.matches(day) or weekdays.matches(day)


EVERY_DAY = Days("*", lambda day: True)
days_strategy: st.SearchStrategy[tuple[Days, Days, OnDay]] = st.one_of(
    st.just((EVERY_DAY, EVERY_DAY, EVERY_DAY.matches)),
    st.one_of(_days_of_month(), _nearest_workdays()).map(lambda days: (days, EVERY_DAY, days.matches)),
    st.one_of(_weekdays(), _nth_weekdays()).map(lambda days: (EVERY_DAY, days, days.matches)),
    st.builds(either, _days_of_month(), _weekdays()),
)


# Days, in years of UTC


@settings(max_examples=80, deadline=None)
@given(days_strategy, fields(1, 12), st.dates(date(1970, 1, 1), date(2095, 1, 1)))
def test_days_are_those_that_a_walk_finds(days: tuple[Days, Days, OnDay], month: Field, begin: date) -> None:
    day_of_month, day_of_week, matches = days
    walk = (begin + timedelta(days=number) for number in range(1, 1_500))
    found = list(islice((day for day in walk if day.month in month.values and matches(day)), 25))
    after = datetime(begin.year, begin.month, begin.day, 13, tzinfo=UTC)
    expression = f"30 12 {day_of_month.text} {month.text} {day_of_week.text}"
    try:
        slots = list(islice(cron.between(expression, "UTC", after, after + timedelta(days=1_499)), 25))
    except InvalidInput:  # no month has such a day
        assert found == []
        assert day_of_week is EVERY_DAY
        return

    assert [slot.date() for slot in slots] == found


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 2-31,L 2 *", range(2, 29)),  # croniter counts 31 entries and takes them for every day
        ("0 0 * 2 0#1,1#1,2#1,3#1,4#1,5#1,6#1", range(1, 8)),
        ("0 0 * 2 L0,L1,L2,L3,L4,L5,L6", range(22, 29)),
    ],
)
def test_a_list_as_long_as_that_of_all_days_is_still_a_list(expression: str, days: range) -> None:
    year = datetime(2025, 1, 1, tzinfo=UTC)

    slots = cron.between(expression, "UTC", year, year + timedelta(days=365))

    assert [slot.date() for slot in slots] == [date(2025, 2, day) for day in days]


# Changed clocks


def changes(place: ZoneInfo, year: int) -> list[datetime]:
    """Find the minutes of a year at which the offset of a zone has become another."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(366)]
    found = []
    for day in days:
        before = day.astimezone(place).utcoffset()
        if (day + timedelta(days=1)).astimezone(place).utcoffset() != before:
            minutes = (day + number * MINUTE for number in range(1, 1_441))
            found.append(next(each for each in minutes if each.astimezone(place).utcoffset() != before))
    return found


def walk(expression: tuple[Field, Field], timezone: str, after: datetime, until: datetime) -> list[datetime]:
    """Find slots minute by minute in UTC.

    With a star: where the clock shows a time that matches. Else: where the clock shows, or passes by, a time that
    matches and that it has never been at or beyond before.
    """
    minute, hour = expression
    place = zone(timezone)
    elapsed = minute.text.startswith("*") or hour.text.startswith("*")
    # Minute by minute, too: a clock put back at this very moment was farthest a minute ago.
    farthest = max((after - step * MINUTE).astimezone(place).replace(tzinfo=None) for step in range(27 * 60))
    slots, now = [], after
    while now < until:
        now += MINUTE
        shown = now.astimezone(place).replace(tzinfo=None)
        passed = (
            [shown] if elapsed else [farthest + step * MINUTE for step in range(1, (shown - farthest) // MINUTE + 1)]
        )
        if any(each.minute in minute.values and each.hour in hour.values for each in passed):
            slots.append(now)
        farthest = max(farthest, shown)
    return slots


ZONES = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Caracas",
    "America/New_York",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Pyongyang",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kwajalein",
    "UTC",
]


def test_a_time_shown_before_the_clock_was_put_back_is_not_met_again() -> None:
    put_back = datetime(1973, 3, 11, 3, tzinfo=UTC)  # from 24:00 to 23:00
    slots = cron.between("1 23 * * *", "America/Santiago", put_back - HOUR, put_back + 28 * HOUR)
    assert list(slots) == [datetime(1973, 3, 11, 2, 1, tzinfo=UTC), datetime(1973, 3, 12, 3, 1, tzinfo=UTC)]
    slots = cron.between("1 23 * * *", "America/Santiago", put_back, put_back + 28 * HOUR)
    assert list(slots) == [datetime(1973, 3, 12, 3, 1, tzinfo=UTC)]


@settings(max_examples=50, deadline=None)
@given(fields(0, 59), fields(0, 23), st.sampled_from(ZONES), st.integers(1973, 2098), st.data())
@example(Field("15,45", frozenset({15, 45})), Field("0-23", frozenset(range(24))), "Pacific/Apia", 2011, None)
@example(Field("*", frozenset(range(60))), Field("2", frozenset({2})), "Australia/Lord_Howe", 2026, None)
@example(Field("59", frozenset({59})), Field("*/3", frozenset(range(0, 24, 3))), "America/St_Johns", 2010, None)
def test_slots_around_changed_clocks_are_those_that_a_walk_finds(
    minute: Field, hour: Field, timezone: str, year: int, data: st.DataObject | None
) -> None:
    found = changes(zone(timezone), year) or [datetime(year, 6, 1, tzinfo=UTC)]
    change = found[0] if data is None else data.draw(st.sampled_from(found))
    distance = 90 if data is None else data.draw(st.one_of(st.integers(0, 130), st.integers(0, 1_600)))
    after, until = change - distance * MINUTE, change + 28 * HOUR

    expected = walk((minute, hour), timezone, after, until)[:50]

    expression = f"{minute.text} {hour.text} * * *"
    assert list(islice(cron.between(expression, timezone, after, until), 50)) == expected


def test_fixed_times_of_one_gap_are_one_slot() -> None:
    day = datetime(2026, 3, 8, tzinfo=UTC)

    slots = cron.between("15,45 2 * * *", "America/New_York", day, day + timedelta(days=2))

    assert list(slots) == instants(["2026-03-08T07:00Z", "2026-03-09T06:15Z", "2026-03-09T06:45Z"])


def test_a_zone_with_seconds_in_its_offset_has_slots_at_whole_local_minutes() -> None:
    slots = following("0 12 * * *", "Africa/Monrovia", datetime(1972, 1, 5, tzinfo=UTC))

    assert list(islice(slots, 3)) == instants(["1972-01-05T12:44:30Z", "1972-01-06T12:44:30Z", "1972-01-07T12:00:00Z"])


def test_a_gap_that_ends_within_a_minute_is_left_behind() -> None:
    """From 00:00 to 00:44:30 on the wall, at 00:44:30Z."""
    slots = following("44,45 0 * * *", "Africa/Monrovia", datetime(1972, 1, 6, 12, tzinfo=UTC))
    assert list(islice(slots, 2)) == instants(["1972-01-07T00:44:30Z", "1972-01-07T00:45:00Z"])
    slots = following("*/44 * * * *", "Africa/Monrovia", datetime(1972, 1, 7, 0, 44, tzinfo=UTC))
    assert list(islice(slots, 2)) == instants(["1972-01-07T01:00:00Z", "1972-01-07T01:44:00Z"])
    slots = following("* 0 * * *", "Africa/Monrovia", datetime(1972, 1, 7, 0, 44, tzinfo=UTC))
    assert list(islice(slots, 2)) == instants(["1972-01-07T00:45:00Z", "1972-01-07T00:46:00Z"])


def times(first: int, last: int) -> st.SearchStrategy[datetime]:
    seconds = st.integers((first - 1970) * 31_556_952, (last - 1970) * 31_556_952)
    return seconds.map(lambda count: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=count))


# Intervals


@settings(max_examples=50)
@given(st.integers(1, 366 * 86_400), times(1970, 2090))
def test_an_interval_has_its_slots_at_multiples_since_the_epoch(seconds: int, after: datetime) -> None:
    slot = cron.next_after(f"@every {seconds}s", "Europe/Berlin", after)

    assert slot is not None
    assert slot.timestamp() % seconds == 0
    assert after < slot <= after + timedelta(seconds=seconds)


# Whole


@settings(max_examples=50, deadline=None)
@given(fields(0, 59), fields(0, 23), days_strategy, st.sampled_from(ZONES), st.data())
def test_slots_only_go_on_and_a_span_has_them_all(
    minute: Field, hour: Field, days: tuple[Days, Days, OnDay], timezone: str, data: st.DataObject
) -> None:
    expression = f"{minute.text} {hour.text} {days[0].text} * {days[1].text}"
    after = data.draw(times(1965, 2090))

    slots = list(islice(following(expression, timezone, after), 15))

    assert [after, *slots] == sorted({after, *slots})
    assert list(cron.between(expression, timezone, after, slots[-1])) == slots
    parsed = cron.parse(expression, timezone)
    assert cron.parse(parsed.text, parsed.timezone) == parsed
    assert cron.describe(expression, timezone)


def test_the_zone_in_which_the_instant_is_told_does_not_matter() -> None:
    after = datetime(2026, 11, 1, 5, 40, tzinfo=UTC)

    slots = {cron.next_after("*/15 * * * *", "America/New_York", after.astimezone(zone(name))) for name in ZONES}

    assert slots == {datetime(2026, 11, 1, 5, 45, tzinfo=UTC)}


@pytest.mark.parametrize("expression", ["* * * * *", "0 0 1 1 *", "@every 90s"])
def test_slots_begin_in_1970_and_end_with_2099(expression: str) -> None:
    earliest, latest = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    beyond_utc = (earliest.replace(tzinfo=zone("Etc/GMT-14")), latest.replace(tzinfo=zone("Etc/GMT+12")))

    for first, last in [(earliest, latest), beyond_utc]:
        assert cron.next_after(expression, "UTC", first) == datetime(1970, 1, 1, tzinfo=UTC)
        assert next(cron.between(expression, "UTC", first, last)) == datetime(1970, 1, 1, tzinfo=UTC)
        assert cron.next_after(expression, "UTC", last) is None
    assert cron.next_after(expression, "UTC", datetime(2099, 12, 31, 23, 59, tzinfo=UTC)) is None


def test_the_rarest_days_are_found_and_their_end_too() -> None:
    fifth_monday_of_february = following("0 0 * 2 1#5", "UTC", datetime(2025, 1, 1, tzinfo=UTC))
    leap_day = following("0 0 29 2 *", "UTC", datetime(2089, 1, 1, tzinfo=UTC))

    assert [slot.year for slot in fifth_monday_of_february] == [2044, 2072]
    assert [slot.year for slot in leap_day] == [2092, 2096]


def test_a_long_span_is_computed_only_as_far_as_it_is_read() -> None:
    slots = cron.between("* * * * *", "UTC", datetime(1970, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC))

    assert next(slots) == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


def test_a_span_that_ends_before_it_begins_is_empty() -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)

    assert list(cron.between("* * * * *", "UTC", day, day - HOUR)) == []


def test_threads_share_an_expression() -> None:
    parsed = cron.parse("*/7 1-5 * * 1", "Europe/Berlin")
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(300)]
    expected = [parsed.next_after(day) for day in days]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: [parsed.next_after(day) for day in days], range(4)))

    assert answers == [expected] * 4


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda time: cron.next_after("* * * * *", "UTC", time), "after must be an aware datetime"),
        (lambda time: cron.between("* * * * *", "UTC", time, time), "after must be an aware datetime"),
        (lambda time: cron.between("* * * * *", "UTC", datetime.now(UTC), time), "until must be an aware datetime"),
    ],
    ids=["next_after", "between, after", "between, until"],
)
def test_a_naive_time_is_refused_at_the_call(ask: Callable[[datetime], object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        ask(datetime(2026, 1, 1))  # noqa: DTZ001 the point of it


def test_the_library_offers_it_and_loads_croniter_only_when_a_slot_is_asked_for() -> None:
    program = "import sys, sqlstreams; sqlstreams.cron.parse('0 9 * * 1'); sys.exit('croniter' in sys.modules)"

    assert sqlstreams.cron is cron
    subprocess.run([sys.executable, "-c", program], check=True)
