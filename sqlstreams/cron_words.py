"""What a cron expression means, in words."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise, product
from typing import Final

from sqlstreams.cron_fields import LAST, Fields

_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NTH: Final = {LAST: "last", 1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}
_REGIONS: Final = frozenset(
    ("Africa", "America", "Antarctica", "Arctic", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")
)
_DAY: Final = 86_400
_UNITS: Final = (("day", _DAY), ("hour", 3_600), ("minute", 60), ("second", 1))
_TIMES_SHOWN: Final = 6


def interval_in_words(interval: timedelta) -> str:
    """Return words such as "every 90 seconds" or "every 1 hour 30 minutes"."""
    seconds = int(interval.total_seconds())
    if seconds == _DAY:
        return "every 24 hours"  # "every day" would be the clock's
    unit, size = next((unit, size) for unit, size in _UNITS if seconds % size == 0)
    count = seconds // size
    return _every(count, unit) if count < 100 or size == _DAY else f"every {_parts(seconds)}"


def fields_in_words(fields: Fields, timezone: str) -> str:
    """Return words such as "every weekday at 09:00 in New York"."""
    times, days, where = _times(fields), _days(fields), _where(timezone)
    if not days and len(fields.hours) == 24:
        return times
    if not days:
        return f"every day {times} {where}" if times.startswith("at ") else f"{times} {where}"
    if days.startswith("every ") and times.startswith("at "):
        return f"{days} {times} {where}"
    return f"{times}{',' if days.startswith('every ') else ''} {days} {where}"


# Times of the day


def _times(fields: Fields) -> str:
    minutes, hours = fields.minutes, fields.hours
    if len(hours) == 24:
        return _minutes(minutes)
    if len(minutes) == 1 and minutes[0] == 0 and (step := _step(hours, 24)):
        return f"every {step} hours"
    if len(minutes) * len(hours) <= _TIMES_SHOWN:
        return f"at {_list(f'{hour:02}:{minute:02}' for hour, minute in product(hours, minutes))}"
    if len(minutes) == 1 and _is_run(hours):
        return f"every hour from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[0]:02}"
    return f"{_minutes(minutes).removesuffix(' of every hour')} in the hours {_runs(hours)}"


def _minutes(minutes: tuple[int, ...]) -> str:
    if len(minutes) == 60:
        return "every minute"
    if minutes == (0,):
        return "every hour"
    if len(minutes) == 1:
        return f"at minute {minutes[0]} of every hour"
    if step := _step(minutes, 60):
        return f"every {step} minutes"
    return f"at the minutes {_runs(minutes)} of every hour"


def _step(values: tuple[int, ...], cycle: int) -> int | None:
    """Return the distance of two values or more that begin at 0 and are as far from each other all around."""
    step = cycle // len(values)
    return step if len(values) > 1 and values == tuple(range(0, cycle, step)) and cycle % step == 0 else None


# Days


def _days(fields: Fields) -> str:
    """Return on which days; nothing when it is on all of them."""
    month = "of the month" if len(fields.months) == 12 else f"of {_list(_MONTHS[one - 1] for one in fields.months)}"
    if fields.has_days:
        also = [f"every {_weekdays(fields)}"] if fields.has_weekdays else []
        return f"on {_list([*_days_of_month(fields), *also])} {month}"
    if fields.nth_weekdays:
        return f"on {_list(f'the {_NTH[one.nth]} {_WEEKDAYS[one.weekday]}' for one in fields.nth_weekdays)} {month}"
    every = f"every {_weekdays(fields) if fields.has_weekdays else 'day'}"
    if len(fields.months) < 12:
        return f"{every} {month}"
    return every if fields.has_weekdays else ""


def _days_of_month(fields: Fields) -> list[str]:
    days = []
    if fields.days == (1,):
        days.append("the first day")
    elif fields.days:
        days.append(f"day{'s' if len(fields.days) > 1 else ''} {_runs(fields.days)}")
    if fields.nearest_workday is not None:
        days.append(f"the weekday nearest to day {fields.nearest_workday}")
    if fields.last_day:
        days.append("the last day")
    return days


def _weekdays(fields: Fields) -> str:
    if fields.weekdays == (1, 2, 3, 4, 5):
        return "weekday"
    from_monday = sorted(fields.weekdays, key=lambda day: (day - 1) % 7)
    return _list(_WEEKDAYS[day] for day in from_monday)


# Grammar


def _where(timezone: str) -> str:
    if timezone in {"UTC", "Etc/UTC"}:
        return "UTC"
    region, _, place = timezone.partition("/")
    return f"in {place.rpartition('/')[2].replace('_', ' ') if region in _REGIONS else timezone}"


def _every(count: int, unit: str) -> str:
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"


def _parts(seconds: int) -> str:
    words = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " ".join(words)


def _is_run(values: tuple[int, ...]) -> bool:
    return len(values) > 1 and all(after == before + 1 for before, after in pairwise(values))


def _runs(values: tuple[int, ...]) -> str:
    """Return numbers as a list in which three or more in a row are told by their ends."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    shown = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return _list(text for texts in shown for text in texts)


def _list(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
