"""The slots of a schedule: its expression within its bounds, and how much a slot is put off by jitter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from msgspec import Struct

from sqlstreams import cron
from sqlstreams.cron_count import count_slots
from sqlstreams.errors import InvalidInput
from sqlstreams.options import check_time

_INSTANT: Final = timedelta(microseconds=1)
_KEPT: Final = 20_000
"""How many answers are kept ready: those of the next slots, computed before they are due."""
_BACK: Final = tuple(timedelta(minutes=minutes) for minutes in (1, 60, 1_440, 14_400, 144_000))


class Rule(Struct, frozen=True):
    """When a schedule is due: the slots of an expression in a zone, from `start_at` up to and with `end_at`."""

    expression: str
    timezone: str
    start_at: datetime | None = None
    end_at: datetime | None = None

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first slot later than an instant, in UTC, or None."""
        if self.start_at is not None:
            after = max(after, self.start_at - _INSTANT)
        slot = _next_after(self.expression, self.timezone, after.astimezone(UTC))
        return None if slot is None or self._is_over(slot) else slot

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the slots later than `after` and not later than `until`, oldest first."""
        slot = self.next_after(after)
        while slot is not None and slot <= until:
            yield slot
            slot = self.next_after(slot)

    def newest(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last slot that is later than `after` and not later than `until`, or None."""
        if self.end_at is not None:
            until = min(until, self.end_at)
        for back in _BACK:
            if until - after <= back:
                break
            if slots := list(self.between(until - back, until)):
                return slots[-1]
        slot = None
        for slot in self.between(after, until):  # noqa: B007  # the last one is meant
            pass
        return slot

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many slots are later than `after` and not later than `until`."""
        if self.start_at is not None:
            after = max(after, self.start_at - _INSTANT)
        if self.end_at is not None:
            until = min(until, self.end_at)
        return count_slots(cron.parse(self.expression, self.timezone), after, until)

    def delayed(self, schedule_id: int, slot: datetime, *, jitter: timedelta | None) -> datetime:
        """Return when a slot is due: at its time, or put off by up to `jitter`, the same each time it is asked.

        Before the next slot is due in any case, so that the slots stay in order.
        """
        if jitter is None:
            return slot
        following = self.next_after(slot)
        longest = jitter if following is None else min(jitter, following - slot - _INSTANT)
        return slot + longest * _fraction(schedule_id, slot)

    def _is_over(self, slot: datetime) -> bool:
        return self.end_at is not None and slot > self.end_at


def check_rule(
    expression: object, timezone: object, *, start_at: datetime | None = None, end_at: datetime | None = None
) -> Rule:
    """Return the rule, with the zone that may stand before the expression; refuse what has no meaning."""
    parsed = cron.parse(expression, timezone)  # type: ignore[arg-type]  # it says itself what it is not
    for field, at in (("start_at", start_at), ("end_at", end_at)):
        if at is not None:
            check_instant(field, at)
    if start_at is not None and end_at is not None and end_at < start_at:
        raise InvalidInput("end_at", f"must not be before start_at, got {end_at.isoformat()}")
    return Rule(parsed.text, parsed.timezone, start_at, end_at)


def check_instant(field: str, value: object) -> datetime:
    """Return `value` when it is an aware datetime that PostgreSQL and cron can work with."""
    at = check_time(field, value)
    if not 1900 <= at.year <= 2200:
        raise InvalidInput(field, f"must lie in the years 1900 to 2200, got {at.isoformat()}")
    return at


@lru_cache(_KEPT)
def _next_after(expression: str, timezone: str, after: datetime) -> datetime | None:
    return cron.parse(expression, timezone).next_after(after)


def _fraction(schedule_id: int, slot: datetime) -> float:
    digest = hashlib.blake2b(f"{schedule_id} {slot.astimezone(UTC).isoformat()}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
