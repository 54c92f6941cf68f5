"""How many slots lie in a long span, without computing each of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from sqlstreams.cron import CronExpression
from sqlstreams.cron_fields import Fields
from sqlstreams.zones import zone

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_INSTANT: Final = timedelta(microseconds=1)


def count_slots(expression: CronExpression, after: datetime, until: datetime) -> int:
    """Return how many slots are later than `after` and not later than `until`.

    A day on which the clock is not changed has as many as its minutes and hours say; the others are gone through.
    """
    after, until = after.astimezone(UTC), until.astimezone(UTC)
    if until <= after:
        return 0
    rule = expression._rule
    if isinstance(rule, timedelta):
        return (until - _EPOCH) // rule - max((after - _EPOCH) // rule, -1)
    return _count_days(expression, rule, after, until)


def _count_days(expression: CronExpression, fields: Fields, after: datetime, until: datetime) -> int:
    place = zone(expression.timezone)
    # A slot that the clock skips is met at the first instant behind the gap: at the end of a day, that is the next one.
    low, high = (at.astimezone(place).replace(tzinfo=None) for at in (after, until))
    days = _matching_days(fields, low.date(), high.date())
    counted = 0
    for day in _days(low.date(), high.date()):
        if not _is_plain(place, day):
            counted += _count_each(expression, place, day, after, until)
        elif day not in days:
            continue
        elif low.date() < day < high.date():
            counted += len(fields.minutes) * len(fields.hours)
        else:
            counted += sum(low < wall <= high for wall in _walls(fields, day))
    return counted


def _days(first: date, last: date) -> Iterator[date]:
    return (first + number * _DAY for number in range((last - first).days + 1))


def _matching_days(fields: Fields, first: date, last: date) -> set[date]:
    if not fields.has_days and not fields.has_weekdays and len(fields.months) == 12:
        return set(_days(first, last))
    midnights = CronExpression("", "UTC", replace(fields, minutes=(0,), hours=(0,), wildcard=False))
    start, end = (datetime.combine(day, time(), UTC) for day in (first, last))
    return {midnight.date() for midnight in midnights.between(start - _INSTANT, end)}


def _is_plain(place: ZoneInfo, day: date) -> bool:
    """Say whether the clock is changed neither on a day nor as it begins."""
    midnights = [datetime.combine(each, time(), place) for each in (day, day + _DAY)]
    just_before = (midnights[0].astimezone(UTC) - _INSTANT).astimezone(place)
    offsets = {midnight.replace(fold=fold).utcoffset() for midnight in midnights for fold in (0, 1)}
    return offsets == {just_before.utcoffset()}


def _walls(fields: Fields, day: date) -> Iterator[datetime]:
    return (datetime.combine(day, time(hour, minute)) for hour in fields.hours for minute in fields.minutes)


def _count_each(expression: CronExpression, place: ZoneInfo, day: date, after: datetime, until: datetime) -> int:
    start, end = (datetime.combine(each, time(), place).astimezone(UTC) for each in (day, day + _DAY))
    return sum(1 for _ in expression.between(max(after, start - _INSTANT), min(until, end - _INSTANT)))
