"""Which slots of a schedule are fired now, and which are recorded as skipped: decided without the database."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from msgspec import Struct

from sqlstreams.statements import DueSchedule

ON_TIME: Final = timedelta(minutes=1)
"""A slot that is looked at so late, and alone, is fired like any other: managers change hands within that time."""

_INSTANT: Final = timedelta(microseconds=1)


class PlannedFire(Struct, frozen=True):
    """A slot that is to fire.

    `gives_way` says that a later message may supersede it: not where somebody asked for each single one.
    """

    slot: datetime
    kind: str
    gives_way: bool = False


class PlannedSkip(Struct, frozen=True):
    """A range of slots that is not fired."""

    first_slot: datetime
    last_slot: datetime
    slots: int
    reason: str


class Plan(Struct, frozen=True):
    """What is to be done for a schedule as it was read: at `revision`, with `known_slot` as its next one.

    `next_slot` is the first that is left, `due_at` when that is due, at once where `is_behind`.
    """

    schedule: DueSchedule
    fires: tuple[PlannedFire, ...]
    skips: tuple[PlannedSkip, ...]
    next_slot: datetime | None
    due_at: datetime | None
    is_behind: bool

    @property
    def is_single(self) -> bool:
        """Whether it is one fire of the slot that the schedule stands at, and nothing else."""
        return len(self.fires) == 1 and not self.skips and self.fires[0].slot == self.schedule.next_slot


def make_plan(schedule: DueSchedule, now: datetime, *, limit: int) -> Plan:
    """Say what is to be done at `now` for a schedule that is due; at most `limit` fires."""
    newest = _newest_due(schedule, now)
    if newest == schedule.next_slot and now - _due_at(schedule, newest) <= ON_TIME:
        return _go_on(schedule, [PlannedFire(newest, "slot", gives_way=True)], [], behind=newest, until=newest)
    first, skips = _keep_window(schedule, newest, now)
    if first is None:
        return _go_on(schedule, [], skips, behind=newest, until=newest)
    match schedule.catch_up:
        case "newest":
            fires = [newest]
            skips += _skip(schedule, first, newest - _INSTANT, "catch_up")
        case "oldest":
            fires = [first]
            following = schedule.rule.next_after(first)
            skips += [] if following is None else _skip(schedule, following, newest, "catch_up")
        case "all":
            fires = [first, *islice(schedule.rule.between(first, newest), limit - 1)]
        case _:
            fires = []
            skips += _skip(schedule, first, newest, "catch_up")
    behind = fires[-1] if schedule.catch_up == "all" else newest
    gives_way = schedule.catch_up != "all"
    planned = [PlannedFire(slot, "catch_up", gives_way=gives_way) for slot in fires]
    return _go_on(schedule, planned, skips, behind=behind, until=newest)


def _newest_due(schedule: DueSchedule, now: datetime) -> datetime:
    # Only the last slot before now can still be put off by its jitter: each is due before the next one's time.
    newest = schedule.rule.newest(schedule.next_slot, now)
    if newest is not None and _due_at(schedule, newest) > now:
        newest = schedule.rule.newest(schedule.next_slot, newest - _INSTANT)
    return schedule.next_slot if newest is None else newest


def _due_at(schedule: DueSchedule, slot: datetime) -> datetime:
    return schedule.rule.delayed(schedule.id, slot, jitter=schedule.jitter)


def _keep_window(schedule: DueSchedule, newest: datetime, now: datetime) -> tuple[datetime | None, list[PlannedSkip]]:
    first: datetime | None = schedule.next_slot
    opened_at = now - schedule.catch_up_window
    if schedule.next_slot >= opened_at:
        return first, []
    skips = _skip(schedule, schedule.next_slot, min(newest, opened_at - _INSTANT), "window")
    first = schedule.rule.next_after(skips[-1].last_slot)
    return (None if first is None or first > newest else first), skips


def _skip(schedule: DueSchedule, first: datetime, until: datetime, reason: str) -> list[PlannedSkip]:
    if until < first:
        return []
    last = schedule.rule.newest(first, until) or first
    return [PlannedSkip(first, last, 1 + schedule.rule.count(first, last), reason)]


def _go_on(
    schedule: DueSchedule, fires: list[PlannedFire], skips: list[PlannedSkip], *, behind: datetime, until: datetime
) -> Plan:
    slot = schedule.rule.next_after(behind)
    return Plan(
        schedule,
        tuple(fires),
        tuple(skips),
        slot,
        None if slot is None else _due_at(schedule, slot),
        is_behind=slot is not None and slot <= until,
    )
