"""The five fields of a cron expression, read into the values that they match.

Whatever reads in more than one way is refused here with the reason, so that nothing is left for croniter to guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from sqlstreams.errors import InvalidInput
from sqlstreams.names import shorten

LAST: Final = 6
"""The `nth` of the last such weekday of a month."""


class NthWeekday(Struct, frozen=True, order=True):
    """The first to fifth of a weekday in a month (0 is Sunday), or the last."""

    weekday: int
    nth: int


class Fields(Struct, frozen=True):
    """What an expression matches: minutes, hours and months are those meant, ascending.

    `nearest_workday` is the day from Monday to Friday nearest to a day, within its month. The day is free where these
    three and those of weekdays say nothing. Where the day of month and the day of week both speak, either will do.
    `wildcard` says that the text of the minute or the hour begins with a star.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days: tuple[int, ...] = ()
    last_day: bool = False
    nearest_workday: int | None = None
    weekdays: tuple[int, ...] = ()
    nth_weekdays: tuple[NthWeekday, ...] = ()
    wildcard: bool = False

    @property
    def has_days(self) -> bool:
        """Whether the day of the month is restricted."""
        return bool(self.days) or self.last_day or self.nearest_workday is not None

    @property
    def has_weekdays(self) -> bool:
        """Whether the day of the week is restricted."""
        return bool(self.weekdays) or bool(self.nth_weekdays)


class _Kind(Struct, frozen=True):
    name: str
    lowest: int
    highest: int
    names: Mapping[str, int] = {}

    @property
    def count(self) -> int:
        return self.highest - self.lowest + 1


_MONTH_NAMES: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAY_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MINUTE: Final = _Kind("minute", 0, 59)
_HOUR: Final = _Kind("hour", 0, 23)
_DAY: Final = _Kind("day of month", 1, 31)
_MONTH: Final = _Kind("month", 1, 12, {name: number for number, name in enumerate(_MONTH_NAMES, 1)})
_WEEKDAY: Final = _Kind("day of week", 0, 6, {name: number for number, name in enumerate(_WEEKDAY_NAMES)})
_LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_ITEM = re.compile(r"(?:(?P<star>\*)|(?P<first>[0-9]+|[a-z]+)(?:-(?P<last>[0-9]+|[a-z]+))?)(?:/(?P<step>[0-9]+))?")
_NEAREST = re.compile(r"([0-9]+)w|w([0-9]+)")
_NTH = re.compile(r"([0-9]+|[a-z]+)#([0-9]+)")
_LAST_WEEKDAY = re.compile(r"l([0-9])")
_LAST_WEEKDAY_ELSEWHERE = re.compile(r"([0-9]|[a-z]{3})l|l([a-z]{3})")


def read_fields(text: str) -> Fields:
    """Return what five fields in lower case, with one space between, match; raise `InvalidInput` for anything else."""
    texts = text.split(" ")
    if len(texts) != 5:
        raise InvalidInput(
            "expression",
            "must have the 5 fields minute, hour, day of month, month and day of week (no seconds, no years), "
            f"got {len(texts)} in {shorten(text)}",
        )
    minute, hour, day, month, weekday = texts
    fields = Fields(
        minutes=_values(_MINUTE, minute),
        hours=_values(_HOUR, hour),
        months=_values(_MONTH, month),
        wildcard=minute.startswith("*") or hour.startswith("*"),
    )
    return _checked_days(_with_weekdays(_with_days(fields, day), weekday), day, weekday)


# The days


def _with_days(fields: Fields, text: str) -> Fields:
    if text in {"*", "?"}:
        return fields
    items = text.split(",")
    if any(_NEAREST.fullmatch(item) for item in items):
        return replace(fields, nearest_workday=_nearest(items, text))
    rest = [item for item in items if item != "l"]
    days = _values(_DAY, ",".join(rest)) if rest else ()
    if len(rest) == len(items):
        return replace(fields, days=days)
    days = tuple(day for day in days if day != 31)  # a 31st is a last day
    if len(days) == 30:
        return replace(fields, days=(*days, 31))
    return replace(fields, days=days, last_day=True)


def _nearest(items: list[str], text: str) -> int:
    match = _NEAREST.fullmatch(items[0])
    if match is None or len(items) > 1:
        _refuse(_DAY, text, "W (the nearest weekday) must be alone in its field, such as 15W")
    day = int(match[1] or match[2])
    if not 1 <= day <= 28:
        _refuse(_DAY, text, "W (the nearest weekday) goes with the days 1 to 28, which every month has")
    return day


def _with_weekdays(fields: Fields, text: str) -> Fields:
    if text in {"*", "?"}:
        return fields
    items = text.split(",")
    nth = [each for each in map(_nth_weekday, items) if each is not None]
    if not nth:
        return replace(fields, weekdays=_values(_WEEKDAY, text))
    if len(nth) < len(items):
        _refuse(_WEEKDAY, text, "# and L must not be mixed with plain days of the week; register two schedules")
    return replace(fields, nth_weekdays=tuple(sorted(set(nth))))


def _nth_weekday(item: str) -> NthWeekday | None:
    if match := _LAST_WEEKDAY.fullmatch(item):
        return NthWeekday(_number(_WEEKDAY, item, match[1]) % 7, LAST)
    if _LAST_WEEKDAY_ELSEWHERE.fullmatch(item):
        _refuse(_WEEKDAY, item, "the last of a weekday is written L and its number, such as L5 for Friday")
    match = _NTH.fullmatch(item)
    if match is None:
        return None
    nth = int(match[2])
    if not 1 <= nth <= 5:
        _refuse(_WEEKDAY, item, "after # must be a number from 1 to 5, for the last write L5")
    return NthWeekday(_number(_WEEKDAY, item, match[1]) % 7, nth)


def _checked_days(fields: Fields, day: str, weekday: str) -> Fields:
    """Refuse what cannot be or is read differently elsewhere, and leave out days that no month meant has."""
    if fields.has_days and fields.has_weekdays:
        _check_both(fields, day, weekday)
    possible = tuple(one for one in fields.days if any(one <= _LONGEST_MONTHS[month - 1] for month in fields.months))
    if fields.days and not possible and not fields.last_day and not fields.has_weekdays:
        _refuse(_DAY, day, "no month of the expression has such a day")
    return replace(
        fields,
        days=() if len(possible) == _DAY.count else possible,
        weekdays=() if len(fields.weekdays) == _WEEKDAY.count else fields.weekdays,
    )


def _check_both(fields: Fields, day: str, weekday: str) -> None:
    """Either of both is enough, which leaves no sense for a field that means every day, and none for # and W."""
    if len(fields.days) == _DAY.count:
        _refuse(_DAY, day, f"means every day, beside the day of week {shorten(weekday)}; write * instead")
    if len(fields.weekdays) == _WEEKDAY.count:
        _refuse(_WEEKDAY, weekday, f"means every day, beside the day of month {shorten(day)}; write * instead")
    if fields.nth_weekdays:
        _refuse(_WEEKDAY, weekday, "# and L need * as the day of month")
    if fields.nearest_workday is not None:
        _refuse(_DAY, day, "W (the nearest weekday) needs * as the day of week")


# One field


def _values(kind: _Kind, text: str) -> tuple[int, ...]:
    items = text.split(",")
    if "" in items:
        _refuse(kind, text, "the list has an empty item")
    if "*" in items and len(items) > 1:
        _refuse(kind, text, "* must not be in a list")
    return tuple(sorted({value for item in items for value in _item_values(kind, item)}))


def _item_values(kind: _Kind, item: str) -> list[int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        _refuse(kind, item, _why_not(item))
    values = _range(kind, item, match)
    step = int(match["step"] or 1)
    if not 1 <= step <= len(values):
        _refuse(
            kind, item, f"the step must be from 1 to {len(values)}, which is how many values there are to step over"
        )
    return [value % 7 if kind is _WEEKDAY else value for value in values[::step]]


def _range(kind: _Kind, item: str, match: re.Match[str]) -> list[int]:
    """Return the values that an item goes through, before its step; from 22 to 2 it goes over the end of the field."""
    if match["star"]:
        return list(range(kind.lowest, kind.highest + 1))
    first = _number(kind, item, match["first"])
    if match["last"] is None:
        return list(range(first % 7 if kind is _WEEKDAY else first, kind.highest + 1)) if match["step"] else [first]
    last = _number(kind, item, match["last"])
    start = first % 7 if kind is _WEEKDAY else first
    if last in {first, start}:
        _refuse(kind, item, f"a range must have two ends; write {match['first']} or *, as is meant")
    if start < last:
        return list(range(start, last + 1))
    if kind is _DAY and match["step"]:
        _refuse(kind, item, "a step must not go over the end of a month, since months differ in length")
    return [*range(start, kind.highest + 1), *range(kind.lowest, last + 1)]


def _number(kind: _Kind, item: str, text: str) -> int:
    if text in kind.names:
        return kind.names[text]
    if not text.isdigit():
        _refuse(kind, item, _why_not(text))
    number = int(text)
    highest = 7 if kind is _WEEKDAY else kind.highest  # both 0 and 7 are Sunday
    if not kind.lowest <= number <= highest:
        _refuse(kind, item, f"must be from {kind.lowest} to {highest}")
    return number


def _why_not(text: str) -> str:
    if re.fullmatch(r"[hr]([(/].*)?", text):
        return "H and R (hashed and random values) are not supported"
    if "?" in text:
        return "? is for the two fields of days, alone; it is the same as *"
    if "l" in text or "#" in text or "w" in text:
        return (
            "L, W and # are understood only as L, 31,L or 15W for the day of month, and 5#3 or L5 for the day of week"
        )
    return "must be *, a value, a range such as 1-5, either with a step such as */15, or a list of these with commas"


def _refuse(kind: _Kind, text: str, reason: str) -> NoReturn:
    raise InvalidInput("expression", f"has the {kind.name} {shorten(text)}: {reason}")
