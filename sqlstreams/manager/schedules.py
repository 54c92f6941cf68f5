"""The duty that fires schedules when they are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import psycopg
from msgspec import Struct

from sqlstreams import statements
from sqlstreams.database import AsyncDatabase, aexecute_together, is_broken
from sqlstreams.errors import DatabaseUnavailable, ProduceUncertain, SqlstreamsError
from sqlstreams.manager.appending import awithin
from sqlstreams.manager.catch_up import Plan, make_plan
from sqlstreams.manager.duty import Ran
from sqlstreams.manager.firing import Outcome, Refusal, charge, fire_plans, fire_singles, refuse
from sqlstreams.slots import Rule
from sqlstreams.statements import DueSchedule, DueSchedules, Family, OutdatedSchedule, Statement
from sqlstreams.wake import Notifier
from sqlstreams.zones import zone_data_version

_log = logging.getLogger("sqlstreams.schedules")

_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 32_000_000
_FIRES_AT_ONCE: Final = 2_000
_FIRES_OF_ONE: Final = 100
_AHEAD: Final = 60.0
_AHEAD_AT_ONCE: Final = 10_000
_PREPARED: Final = 0.25
"""What is due within so many seconds is planned already, and waited for."""
_IN_ONE_STATEMENT: Final = 250
_QUIET: Final = 0.2
_LOCKED_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_ZONE_DATA_PERIOD: Final = 600.0


class _Part(Struct, frozen=True):
    """Some single fires of one stream, and the statement that carries them out."""

    family: Family
    plans: Sequence[Plan]
    statement: Statement[int]


class _Planned(Struct, frozen=True):
    """What is to be done at `moment`. `is_more` says that there will be more to do at once."""

    moment: datetime
    plans: tuple[Plan, ...]
    singles: tuple[_Part, ...]
    refusals: tuple[Refusal, ...]
    is_more: bool


class ScheduleProducer:
    """Fires what is due, a bounded batch at a time; any number of these may run at once.

    So it needs no proof that its process is still the manager: the rows say what has fired.
    """

    name = "schedules"
    period = 5.0

    def __init__(self, database: AsyncDatabase, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier
        self._locked_before = 0
        self._ahead_until = 0.0
        self._zone_data_seen_at = -_ZONE_DATA_PERIOD

    async def run_once(self) -> Ran:
        """Fire what is due, or will be in a moment; while nothing is, compute what will have to be known then."""
        if retimed := await self._retime():
            return Ran(done=retimed, again=True)
        started = time.monotonic()
        due = statements.due_schedules(
            await self._database.query(
                statements.list_due_schedules(self._database.schema, within=_PREPARED, limit=_AT_ONCE)
            )
        )
        if not due.schedules:
            await self._look_ahead(due.due_in)
            due_in = None if due.due_in is None else due.due_in - _PREPARED
            return Ran(due_in=_remaining(due_in, started), is_told=True)
        planned = await asyncio.to_thread(_plan, self._database.schema, due)
        begin_at = await self._when(planned.moment) if planned.moment > due.now else 0.0
        outcome = await self._fire_all(planned, begin_at)
        await self._charge([*planned.refusals, *outcome.refusals])
        for stream_id in outcome.stream_ids:
            self._notifier.notify(stream_id)
        again = planned.is_more and not outcome.left
        due_in = _remaining(self._due_in(due, planned, outcome), started)
        return Ran(outcome.fires, again=again, due_in=due_in, is_told=True)

    async def _when(self, moment: datetime) -> float:
        """Return when a moment of the database's clock has come, by the clock of `time.monotonic`."""
        (now,) = await self._database.query(statements.read_clock(self._database.schema))
        return time.monotonic() + (moment - now).total_seconds()

    async def _fire_all(self, planned: _Planned, begin_at: float) -> Outcome:
        fired = await self._fire_singles(planned.singles, begin_at)
        await _sleep_until(begin_at)  # where none is as usual, nobody has waited yet
        singles = [plan for plan in planned.plans if plan.schedule.id in fired]
        outcome = Outcome(frozenset(plan.schedule.stream_id for plan in singles), len(singles), (), frozenset())
        left = [plan for plan in planned.plans if plan.schedule.id not in fired]
        outcome = _together(outcome, await self._fire([plan for plan in left if not plan.schedule.failures]))
        # Those that failed before go alone, so that their neighbours do not meet their trouble again.
        for plan in left:
            if plan.schedule.failures:
                outcome = _together(outcome, await self._fire([plan]))
        return outcome

    async def _fire_singles(self, parts: Sequence[_Part], begin_at: float) -> set[int]:
        """Carry out single fires; return the schedules that fired, and leave the others untouched."""
        waiting = iter(parts)
        fired: set[int] = set()

        async def work() -> None:
            async with self._database.in_time("fire_slots") as connection:
                if time.monotonic() < begin_at:
                    # The first statement of its kind takes a connection as long again.
                    await self._fire_part(connection, _part(parts[0].family, []))
                    await _sleep_until(begin_at)
                for part in waiting:
                    fired.update(await self._fire_part(connection, part))

        # Two at a time: the server works on one while the other one is committed (benchmarks/schedules.py).
        workers = [work() for _ in range(min(2, len(parts)))]
        for ended in await asyncio.gather(*workers, return_exceptions=True):
            if ended is not None:
                raise ended
        return fired

    async def _fire_part(self, connection: psycopg.AsyncConnection[Any], part: _Part) -> list[int]:
        try:
            brief = statements.wait_briefly(self._database.schema)
            _, fired = await aexecute_together(connection, [brief, part.statement])
        except psycopg.Error as error:
            if is_broken(error):
                raise  # the rows will say what happened
            _log.debug("%d schedules could not be fired by one statement: %s", len(part.plans), error)
            await connection.rollback()
            return []
        return fired

    async def _fire(self, plans: Sequence[Plan]) -> Outcome:
        """Carry out plans together; where the database refuses, find out by halves which one it was."""
        if not plans:
            return _NOTHING
        schema, stream_ids = self._database.schema, {plan.schedule.stream_id for plan in plans}
        try:
            return await awithin(self._database, lambda: fire_plans(schema, plans), stream_ids=stream_ids)
        except (DatabaseUnavailable, ProduceUncertain):
            raise  # the rows will say what happened
        except (psycopg.Error, SqlstreamsError) as error:
            if len(plans) == 1:
                return Outcome(frozenset(), 0, (refuse(plans[0], f"{type(error).__name__}: {error}"),), frozenset())
            half = len(plans) // 2
            return _together(await self._fire(plans[:half]), await self._fire(plans[half:]))

    async def _charge(self, refusals: Sequence[Refusal]) -> None:
        if not refusals:
            return
        for each in refusals:
            _log.warning("SQL0130 schedule %d could not be fired for %s: %s", each.schedule_id, each.slot, each.error)
        await self._database.run(lambda: charge(self._database.schema, refusals))

    def _due_in(self, due: DueSchedules, planned: _Planned, outcome: Outcome) -> float | None:
        waits = [(plan.due_at - due.now).total_seconds() for plan in planned.plans if plan.due_at is not None]
        waits += [] if due.due_in is None else [due.due_in]
        waits += [(each.due_at - due.now).total_seconds() for each in due.schedules if each.due_at > planned.moment][:1]
        waits = [wait - _PREPARED for wait in waits]
        waits += [0.5] if planned.refusals or outcome.refusals else []
        self._locked_before = self._locked_before + 1 if outcome.left else 0
        if outcome.left:  # being changed or fired by another
            waits.append(_LOCKED_PAUSES[min(self._locked_before, len(_LOCKED_PAUSES)) - 1])
            waits = [max(wait, waits[-1]) for wait in waits]
        return min(waits, default=None)

    async def _look_ahead(self, due_in: float | None) -> None:
        """Have at hand what is needed when the next slots are due, unless that is far off or has been seen to."""
        if due_in is None or not _QUIET < due_in < _AHEAD:
            return
        now = time.monotonic()
        if now + due_in <= self._ahead_until:
            return
        schema = self._database.schema
        coming = await self._database.query(
            statements.list_coming_schedules(schema, within=_AHEAD, limit=_AHEAD_AT_ONCE)
        )
        await asyncio.to_thread(_compute_following, coming)
        self._ahead_until = now + _AHEAD

    async def _retime(self) -> int:
        """Compute the next slots of a batch of schedules again where our zone data is newer than theirs."""
        if time.monotonic() - self._zone_data_seen_at < _ZONE_DATA_PERIOD:
            return 0
        schema, ours = self._database.schema, zone_data_version()
        for known in await self._database.query(statements.list_zone_data(schema)):
            if _version(known) < _version(ours):
                found = statements.list_outdated_schedules(schema, zone_data=known, limit=_AT_ONCE)
                outdated = await self._database.query(found)
                await self._database.query(await asyncio.to_thread(_retimed, schema, outdated, ours))
                return len(outdated)
        self._zone_data_seen_at = time.monotonic()
        return 0


_NOTHING: Final = Outcome(frozenset(), 0, (), frozenset())


def _together(one: Outcome, other: Outcome) -> Outcome:
    return Outcome(
        one.stream_ids | other.stream_ids,
        one.fires + other.fires,
        one.refusals + other.refusals,
        one.left | other.left,
    )


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))


def _remaining(due_in: float | None, started: float) -> float | None:
    return None if due_in is None else max(0.0, due_in - (time.monotonic() - started))


def _plan(schema: str, due: DueSchedules) -> _Planned:
    """Plan what is due now or, if nothing is, what will be due first."""
    moment = max(due.now, due.schedules[0].due_at)
    plans: list[Plan] = []
    refusals: list[Refusal] = []
    size, fires, is_full = 0, 0, len(due.schedules) == _AT_ONCE
    for schedule in due.schedules:
        if schedule.due_at > moment:
            break
        if plans and (size > _BYTES_AT_ONCE or fires >= _FIRES_AT_ONCE):
            is_full = True
            break
        try:
            plan = make_plan(schedule, moment, limit=_FIRES_OF_ONE)
        except SqlstreamsError as error:
            refusals.append(_unplanned(schedule, error))
            continue
        plans.append(plan)
        size += schedule.size * max(1, len(plan.fires))
        fires += len(plan.fires)
    is_more = is_full or any(plan.is_behind for plan in plans)
    return _Planned(moment, tuple(plans), tuple(_parts(schema, plans)), tuple(refusals), is_more=is_more)


def _parts(schema: str, plans: Iterable[Plan]) -> Iterator[_Part]:
    by_stream: dict[int, list[Plan]] = {}
    for plan in plans:
        if plan.is_single and not plan.schedule.failures:
            by_stream.setdefault(plan.schedule.stream_id, []).append(plan)
    for stream_id, of_stream in by_stream.items():
        for start in range(0, len(of_stream), _IN_ONE_STATEMENT):
            yield _part(Family(schema, stream_id), of_stream[start : start + _IN_ONE_STATEMENT])


def _part(family: Family, plans: Sequence[Plan]) -> _Part:
    return _Part(family, plans, fire_singles(family, plans))


def _unplanned(schedule: DueSchedule, error: SqlstreamsError) -> Refusal:
    return Refusal(schedule.id, schedule.revision, schedule.next_slot, f"{type(error).__name__}: {error}")


def _compute_following(coming: Iterable[tuple[Rule, datetime]]) -> None:
    # Kept by the rule itself, and so at hand when the slot is due.
    for rule, slot in coming:
        try:
            rule.next_after(slot)
        except SqlstreamsError:  # told when the schedule is due
            continue
        time.sleep(0)  # lets the event loop's thread in between


def _retimed(schema: str, outdated: Sequence[OutdatedSchedule], ours: str) -> statements.Statement[statements.Nothing]:
    slots = [_next_slot(schedule) for schedule in outdated]
    return statements.retime_schedules(
        schema,
        schedule_ids=[schedule.id for schedule in outdated],
        revisions=[schedule.revision for schedule in outdated],
        known_slots=[schedule.next_slot for schedule in outdated],
        next_slots=slots,
        due_ats=[
            None if slot is None else schedule.rule.delayed(schedule.id, slot, jitter=schedule.jitter)
            for schedule, slot in zip(outdated, slots, strict=True)
        ],
        retimed=[slot != schedule.next_slot for schedule, slot in zip(outdated, slots, strict=True)],
        zone_data=ours,
    )


def _next_slot(schedule: OutdatedSchedule) -> datetime | None:
    # What was due already stays so; what comes is computed as if it had been from the beginning.
    if schedule.next_slot is None or schedule.next_slot <= schedule.now:
        return schedule.next_slot
    try:
        return schedule.rule.next_after(schedule.now)
    except SqlstreamsError:  # told when the schedule is due
        return schedule.next_slot


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
