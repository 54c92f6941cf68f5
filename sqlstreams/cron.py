"""When schedules are due: the instants, called slots, that a cron expression means in a time zone.

An expression is one of

- five fields: minute, hour, day of month, month, day of week. A field is `*`, a value, a range (`1-5`; `22-2` goes over
  the end), a step (`*/15`, `8-18/2`, `2/4`), or a list of these. Months and weekdays have names (`jan`, `mon`); 0 and 7
  are Sunday. `L` is the last day of the month, `15W` the weekday nearest to the 15th, `5#3` the third Friday, `L5` the
  last one. `?` is `*` for the two fields of days. When both of these are restricted, a day that matches either will do,
  and a step such as `*/2` restricts.
- `@hourly`, `@daily` (`@midnight`), `@weekly`, `@monthly`, `@yearly` (`@annually`).
- `@every 90s`, also `5m`, `2h`, `1h30m`, `1d` (24 hours): the multiples of that since 1970-01-01 00:00 UTC, so that the
  slots do not depend on when somebody asks, and zones do not matter.

`TZ=Europe/Berlin ` or `CRON_TZ=Europe/Berlin ` may come first, instead of the argument `timezone`.

Where a clock is put forward or back, the five fields follow the rule of Debian's cron, as its manual page cron(8) tells
it. Fixed times are those where neither minute nor hour begins with a star: each local time is met once; one that the
clock skips is met at the first instant after the gap, one that it shows twice the first time. With a star it is elapsed
time that counts: nothing is due in the gap, and a repeated hour is met in both passes.

Slots lie in the years 1970 to 2099. Zones are those of the package tzdata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from sqlstreams.cron_fields import LAST, Fields, NthWeekday, read_fields
from sqlstreams.cron_words import fields_in_words, interval_in_words
from sqlstreams.errors import InvalidInput
from sqlstreams.names import encode_text, shorten
from sqlstreams.options import check_time
from sqlstreams.zones import check_timezone, zone, zone_data_version

if TYPE_CHECKING:
    from croniter import croniter

__all__ = ["CronExpression", "between", "describe", "next_after", "parse", "zone_data_version"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = datetime(2100, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_QUARTER: Final = timedelta(minutes=15)
_LONGEST_TEXT: Final = 500
_LONGEST_INTERVAL: Final = timedelta(days=366)
_KEPT: Final = 4_096
"""How many expressions are kept ready for croniter, and parsed; each is a few kB."""

_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PREFIX = re.compile(r"(?:CRON_)?TZ=([^ \t]*)[ \t]+")
_INTERVAL = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")


class CronExpression(Struct, frozen=True):
    """An expression that `parse` has read: ask it as often as needed.

    `text` is the expression without a prefix and with single spaces; with `timezone` it parses to the same slots again.
    """

    text: str
    timezone: str
    _rule: timedelta | Fields

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first slot later than an aware instant, in UTC; None when there is none before the year 2100."""
        return self._next_after(_in_utc("after", after))

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the slots later than `after` and not later than `until`, oldest first, in UTC.

        They are computed one by one as they are asked for, so a long span costs nothing until it is read.
        """
        return self._between(_in_utc("after", after), _in_utc("until", until))

    def describe(self) -> str:
        """Return what the expression means, such as "every weekday at 09:00 in New York"."""
        if isinstance(self._rule, timedelta):
            return interval_in_words(self._rule)
        return fields_in_words(self._rule, self.timezone)

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        slot = self._next_after(after)
        while slot is not None and slot <= until:
            yield slot
            slot = self._next_after(slot)

    def _next_after(self, after: datetime) -> datetime | None:
        if isinstance(self._rule, timedelta):
            slot: datetime | None = _EPOCH + ((after - _EPOCH) // self._rule + 1) * self._rule
        elif self._rule.wildcard:
            slot = _next_elapsed(self._rule, zone(self.timezone), after)
        else:
            slot = _next_fixed(self._rule, zone(self.timezone), after)
        return slot if slot is not None and slot < _END else None


def next_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    """Return the first slot later than an aware instant, in UTC; None when there is none before the year 2100.

    The answer depends on the three arguments and the zone data alone. `InvalidInput` names what is refused.
    """
    return parse(expression, timezone).next_after(after)


def between(expression: str, timezone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Return the slots later than `after` and not later than `until`, oldest first, in UTC.

    They are computed one by one as they are asked for; what is wrong is refused at the call, by `InvalidInput`.
    """
    return parse(expression, timezone).between(after, until)


def describe(expression: str, timezone: str) -> str:
    """Return what an expression means, such as "every weekday at 09:00 in New York"; there are words for every one."""
    return parse(expression, timezone).describe()


def parse(expression: str, timezone: str | None = None) -> CronExpression:
    """Check an expression and its zone, and return what answers for them.

    `timezone` is UTC when it is None. Beside a prefix `TZ=` it must be None or "UTC". `InvalidInput` says what is
    refused: among it expressions that never match, such as 30 February, and those that other crons read differently.
    """
    if not isinstance(expression, str):
        raise InvalidInput("expression", f"must be a str, got {type(expression).__name__}")
    if timezone is not None:
        check_timezone("timezone", timezone)
    return _parse(expression, timezone)


# Reading


@lru_cache(_KEPT)
def _parse(expression: str, timezone: str | None) -> CronExpression:
    if len(expression) > _LONGEST_TEXT:
        raise InvalidInput("expression", f"must have at most {_LONGEST_TEXT} characters, got {len(expression)}")
    encode_text("expression", expression)
    if not expression.isascii() or not expression.replace("\t", " ").isprintable():
        raise InvalidInput("expression", f"must be printable ASCII on one line, got {shorten(expression)}")
    text, timezone = _without_prefix(expression.strip(), timezone)
    text = " ".join(text.split())
    return CronExpression(text, timezone, _read(text.lower()))


def _without_prefix(text: str, timezone: str | None) -> tuple[str, str]:
    match = _PREFIX.match(text)
    if match is None:
        return text, timezone or "UTC"
    if timezone not in {None, "UTC"}:
        raise InvalidInput("expression", f"must not begin with {match[0].strip()} when timezone={timezone!r} is given")
    return text[match.end() :], check_timezone("timezone", match[1])


def _read(text: str) -> timedelta | Fields:
    if not text.startswith("@"):
        return read_fields(text)
    if text.startswith("@every "):
        return _read_interval(text.removeprefix("@every "))
    if text not in _ALIASES:
        raise InvalidInput(
            "expression", f"must be 5 fields, @every or one of {', '.join(_ALIASES)}, got {shorten(text)}"
        )
    return read_fields(_ALIASES[text])


def _read_interval(text: str) -> timedelta:
    match = _INTERVAL.fullmatch(text)
    if match is None or not any(match.groups()):
        raise InvalidInput("expression", f"must have a duration such as 90s or 1h30m after @every, got {shorten(text)}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 1 <= total <= _LONGEST_INTERVAL.total_seconds():
        raise InvalidInput("expression", f"must have 1s to 366d after @every, got {shorten(text)}")
    return timedelta(seconds=total)


def _in_utc(field: str, value: datetime) -> datetime:
    """Return an instant in UTC; one that lies before or after all slots becomes one just before or after them."""
    return min(max(check_time(field, value), _EPOCH - _SECOND), _END).astimezone(UTC)


# From local times to instants. `wall` is a naive local time: what a clock on the wall shows.


def _next_fixed(fields: Fields, place: ZoneInfo, after: datetime) -> datetime | None:
    """Find the first matching wall time that the clock has not come to by `after`; its first time counts."""
    here = after.astimezone(place)
    wall = here.replace(tzinfo=None)
    if here.fold:  # the second pass, in which everything has been met before
        before, _ = _offsets(place, wall)
        found = _match_from(fields, (_change(place, wall) + before).replace(tzinfo=None))
    else:
        found = _match_after(fields, wall)
    if found is None:
        return None
    instants = _instants(place, found)
    return instants[0] if instants else _change(place, found)


def _next_elapsed(fields: Fields, place: ZoneInfo, after: datetime) -> datetime | None:
    """Find the first instant later than `after` at which the clock shows a matching wall time."""
    here = after.astimezone(place)
    wall = here.replace(tzinfo=None)
    found = _match_after(fields, wall)
    if not here.fold and len(_instants(place, wall)) == 2:  # the first pass
        change = _change(place, wall)
        before, _ = _offsets(place, wall)
        if found is None or _instant(found, before) >= change:  # nothing more in it
            found = _match_from(fields, _wall(place, change))
    while found is not None:
        for instant in _instants(place, found):
            if instant > after:
                return instant
        behind = _wall(place, _change(place, found))
        found = _match_that_day(fields, found, behind) or _match_from(fields, behind)
    return None


def _instants(place: ZoneInfo, wall: datetime) -> list[datetime]:
    """Return when the clock shows this: once, twice where it is put back, never where it skips this."""
    before, after = _offsets(place, wall)
    if before == after:
        return [_instant(wall, before)]
    return [_instant(wall, before), _instant(wall, after)] if before > after else []


def _change(place: ZoneInfo, wall: datetime) -> datetime:
    """Return the first instant after the change that skips or repeats a wall time."""
    before, _ = offsets = _offsets(place, wall)
    low, high = (_instant(wall, offset) for offset in (max(offsets), min(offsets)))
    low, high = _quarter_of(low), _quarter_of(high) + _QUARTER
    for step in (_QUARTER, _SECOND):  # nearly all changes come at a quarter of an hour
        while high - low > step:
            middle = low + (high - low) // step // 2 * step
            if middle.astimezone(place).utcoffset() == before:
                low = middle
            else:
                high = middle
        if (high - _SECOND).astimezone(place).utcoffset() == before:
            break
    return high


def _quarter_of(instant: datetime) -> datetime:
    return instant.replace(minute=instant.minute // 15 * 15, second=0, microsecond=0)


def _offsets(place: ZoneInfo, wall: datetime) -> tuple[timedelta, timedelta]:
    """Return the offsets before and after the change that skips or repeats a wall time; elsewhere the same twice."""
    first, second = (wall.replace(tzinfo=place, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None
    assert second is not None
    return first, second


def _instant(wall: datetime, offset: timedelta) -> datetime:
    return (wall - offset).replace(tzinfo=UTC)


def _wall(place: ZoneInfo, instant: datetime) -> datetime:
    return instant.astimezone(place).replace(tzinfo=None)


# Wall times, which croniter finds. It is given minutes that are whole, and fields that can be read in one way alone.


def _match_from(fields: Fields, wall: datetime) -> datetime | None:
    """Find the first matching wall time that is not earlier than this one."""
    whole = wall.replace(second=0, microsecond=0)
    return _match_after(fields, whole if whole < wall else whole - _MINUTE)


def _match_that_day(fields: Fields, found: datetime, wall: datetime) -> datetime | None:
    """Find the first wall time on the day of one that matches, and not earlier than another; without croniter."""
    if found.date() != wall.date():
        return None
    earliest = (wall.hour, wall.minute, wall.second)
    times = ((hour, minute, 0) for hour in fields.hours for minute in fields.minutes)
    at = next((time for time in times if time >= earliest), None)
    return None if at is None else found.replace(hour=at[0], minute=at[1])


def _match_after(fields: Fields, wall: datetime) -> datetime | None:
    """Find the first matching wall time later than the minute of this one."""
    from croniter import CroniterBadDateError  # takes 0.1 s, which those without schedules need not wait

    search = copy(_search(fields))  # it has a state, and threads share the original
    try:
        found: datetime = search.get_next(datetime, start_time=wall.replace(second=0, microsecond=0))
    except CroniterBadDateError:  # none in 50 years, which only the year 2100 without its 29 February can bring about
        return None
    return found


@lru_cache(_KEPT)
def _search(fields: Fields) -> croniter:
    from croniter import croniter

    return croniter(_normal_form(fields), start_time=0.0)


def _normal_form(fields: Fields) -> str:
    """Write fields for croniter: numbers only, no ranges, no steps."""
    days = [*map(str, fields.days), *(["l"] if fields.last_day else [])]
    if fields.nearest_workday is not None:
        days = [f"{fields.nearest_workday}w"]
    weekdays = [*map(str, fields.weekdays), *map(_nth_form, fields.nth_weekdays)]
    return " ".join(
        (
            _list_form(fields.minutes, 60),
            _list_form(fields.hours, 24),
            ",".join(days) or "*",
            _list_form(fields.months, 12),
            ",".join(weekdays) or "*",
        )
    )


def _list_form(values: tuple[int, ...], count: int) -> str:
    return "*" if len(values) == count else ",".join(map(str, values))


def _nth_form(day: NthWeekday) -> str:
    return f"l{day.weekday}" if day.nth == LAST else f"{day.weekday}#{day.nth}"
