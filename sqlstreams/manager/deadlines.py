"""The duty that moves rows when they come due."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import psycopg
from msgspec import Struct
from psycopg import errors as pg

from sqlstreams import acts, statements
from sqlstreams.database import AsyncDatabase
from sqlstreams.errors import DatabaseUnavailable, NotInstalled, ProduceUncertain, SqlstreamsError
from sqlstreams.manager.appending import awithin
from sqlstreams.manager.duty import Ran
from sqlstreams.manager.lease import clock
from sqlstreams.manager.moving import CannotMove, Culprit, Misfits, move_rows
from sqlstreams.names import clean_text
from sqlstreams.statements import RunningDeadline
from sqlstreams.wake import Notifier

_log = logging.getLogger("sqlstreams.deadlines")

_PERIOD: Final = 5.0
# Where there is no deadline at all; the first one that is registered says so.
_NONE_PERIOD: Final = 15.0
_OBSERVE_EVERY: Final = 30.0
_NOTE_EVERY: Final = 60.0
_LOCKED_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_ASIDES_AT_ONCE: Final = 10
# When so many rows fail one after the other and none succeeds, it is not the rows.
_NOT_THE_ROWS: Final = 5
# A look that is slow, for want of an index, is rarer: it takes at most so large a part of the time.
_LOOKING_SHARE: Final = 0.05


class _Pace(Struct):
    """When a deadline is looked at next, as this process sees it."""

    revision: int
    look_at: float = 0.0
    noted_at: float = 0.0
    locked: int = 0
    failed: bool = False


class _Trouble(Struct):
    """What happened to the rows of one batch."""

    culprits: list[Culprit]
    error: Exception | None = None
    moved: int = 0


class DeadlineProducers:
    """Moves the rows of users' tables that are due, and produces a message for each.

    A bounded batch of each deadline in a transaction of its own; any number of these may run at once: the state of a
    row says whether it is to be moved, and its lock who does so.
    """

    name = "deadlines"
    period = _NONE_PERIOD

    def __init__(self, database: AsyncDatabase, notifier: Notifier) -> None:
        self._database = database
        self._schema = database.schema
        self._notifier = notifier
        self._paces: dict[int, _Pace] = {}

    async def run_once(self) -> Ran:
        """Move a batch of each deadline that has rows due."""
        running = await self._database.query(statements.list_running_deadlines(self._schema))
        paces = {deadline.id: self._pace(deadline) for deadline in running}
        self._paces = paces
        done = 0
        for deadline in running:
            pace = paces[deadline.id]
            if clock() >= pace.look_at:
                done += await self._look(deadline, pace)
        wait = min((pace.look_at - clock() for pace in paces.values()), default=None)
        # Of new rows in a user's table there is no news, but of a new deadline there is.
        return Ran(done, again=wait is not None and wait <= 0, due_in=wait, is_told=not running)

    def _pace(self, deadline: RunningDeadline) -> _Pace:
        known = self._paces.get(deadline.id)
        pace = known if known is not None and known.revision == deadline.revision else _Pace(deadline.revision)
        if deadline.retry_in is not None and known is None:
            pace.failed = True
            pace.look_at = clock() + deadline.retry_in
        return pace

    async def _look(self, deadline: RunningDeadline, pace: _Pace) -> int:
        try:
            if deadline.mode == "observe":
                return await self._observe(deadline, pace)
            return await self._move_due(deadline, pace)
        except (DatabaseUnavailable, ProduceUncertain):
            pace.look_at = clock() + _PERIOD  # others first, should it be this one alone that takes too long
            raise
        except (psycopg.Error, SqlstreamsError) as error:
            await self._fail(deadline, pace, error)
            return 0

    async def _observe(self, deadline: RunningDeadline, pace: _Pace) -> int:
        began = clock()
        (due,) = await self._database.query(statements.measure_due(self._schema, deadline.rows))
        await self._note(deadline, pace, observed_due=due.due)
        pace.look_at = clock() + max(_OBSERVE_EVERY, (clock() - began) / _LOOKING_SHARE)
        return 0

    async def _move_due(self, deadline: RunningDeadline, pace: _Pace) -> int:
        began = clock()
        retried, waits = 0, [_PERIOD]
        if deadline.aside_in is not None:
            if deadline.aside_in <= 0:
                retried = await self._retry_asides(deadline)
            waits.append(max(deadline.aside_in, _LOCKED_PAUSES[-1]))
        due_in = await self._next_due(deadline)
        rarest = (clock() - began) / _LOOKING_SHARE
        moved = 0
        if due_in is not None and due_in <= 0:
            moved = await self._move_batch(deadline)
            waits.append(self._after(pace, moved))
        elif due_in is not None:
            # Exactly when the next row is due, however slow a look is; but not over and over while nothing is.
            waits = [max(min(due_in, *waits), min(due_in, rarest))]
        await self._note_sometimes(deadline, pace, moved=moved + retried)
        pace.look_at = clock() + min(waits)
        return moved + retried

    def _after(self, pace: _Pace, moved: int) -> float:
        if moved:
            pace.locked = 0
            return 0.0
        # Others hold the rows, or have moved them already.
        pace.locked = min(pace.locked + 1, len(_LOCKED_PAUSES))
        return _LOCKED_PAUSES[pace.locked - 1]

    async def _next_due(self, deadline: RunningDeadline) -> float | None:
        found = await self._database.query(
            statements.find_next_due(self._schema, deadline.rows, deadline_id=deadline.id)
        )
        return found[0] if found else None

    # A batch, and finding the rows for which it fails

    async def _move_batch(self, deadline: RunningDeadline) -> int:
        trouble = _Trouble([])
        await self._move(deadline, None, trouble)
        if trouble.error is not None and not trouble.moved and len(trouble.culprits) >= _NOT_THE_ROWS:
            raise trouble.error
        if trouble.culprits:
            await self._put_aside(deadline, trouble.culprits)
        if trouble.error is not None and not trouble.moved:
            raise trouble.error
        return trouble.moved

    async def _move(self, deadline: RunningDeadline, keys: Sequence[str] | None, trouble: _Trouble) -> None:
        """Move rows together; where the database refuses, find out by halves which ones it were."""
        claimed: list[str] = []
        try:
            moved = await awithin(
                self._database,
                lambda: move_rows(self._schema, deadline, keys=keys, limit=deadline.batch, claimed=claimed),
                stream_ids=[deadline.stream_id],
            )
            if moved:
                self._notifier.notify(deadline.stream_id)
            trouble.moved += moved
        except Misfits as misfits:
            trouble.culprits += misfits.culprits
            trouble.error = CannotMove(str(misfits))
            unfit = {culprit.key for culprit in misfits.culprits}
            if rest := [key for key in claimed if key not in unfit]:
                await self._move(deadline, rest, trouble)
        except psycopg.Error as error:
            if not claimed or not _may_be_a_row(error):
                raise
            trouble.error = error
            await self._halve(deadline, claimed, trouble, error)

    async def _halve(
        self, deadline: RunningDeadline, claimed: Sequence[str], trouble: _Trouble, error: psycopg.Error
    ) -> None:
        if len(claimed) == 1:
            trouble.culprits.append(Culprit(claimed[0], _describe(error)))
            return
        half = len(claimed) // 2
        for part in (claimed[:half], claimed[half:]):
            if trouble.moved or len(trouble.culprits) < _NOT_THE_ROWS:
                await self._move(deadline, part, trouble)

    # Rows that were put aside

    async def _put_aside(self, deadline: RunningDeadline, culprits: Sequence[Culprit]) -> None:
        for culprit in culprits:
            _log.warning("SQL0141 deadline %s: row %s is put aside: %s", deadline.name, culprit.key, culprit.error)
        await self._database.query(
            statements.put_aside(
                self._schema,
                deadline_id=deadline.id,
                keys=[culprit.key for culprit in culprits],
                errors=[clean_text(culprit.error) for culprit in culprits],
            )
        )

    async def _retry_asides(self, deadline: RunningDeadline) -> int:
        keys = await self._database.query(
            statements.find_due_asides(self._schema, deadline_id=deadline.id, limit=_ASIDES_AT_ONCE)
        )
        if not keys:
            return 0
        trouble = _Trouble([])
        # Each alone, so that none is charged for another; what was settled meanwhile is forgotten below.
        for key in keys:
            await self._move(deadline, [key], trouble)
        eligible = set(
            await self._database.query(statements.find_eligible_rows(self._schema, deadline.rows, keys=keys))
        )
        if settled := [key for key in keys if key not in eligible]:
            await self._database.query(statements.forget_asides(self._schema, deadline_id=deadline.id, keys=settled))
        if trouble.culprits:
            await self._put_aside(deadline, trouble.culprits)
        return trouble.moved

    # What is noted

    async def _note_sometimes(self, deadline: RunningDeadline, pace: _Pace, *, moved: int) -> None:
        if pace.failed or (not moved and clock() - pace.noted_at >= _NOTE_EVERY):
            await self._note(deadline, pace, observed_due=None)

    async def _note(self, deadline: RunningDeadline, pace: _Pace, *, observed_due: int | None) -> None:
        await self._database.query(
            statements.note_run(self._schema, deadline_id=deadline.id, observed_due=observed_due)
        )
        if pace.failed:
            _log.info("deadline %s works again", deadline.name)
        pace.failed, pace.noted_at = False, clock()

    async def _fail(self, deadline: RunningDeadline, pace: _Pace, error: Exception) -> None:
        # What the server says of a table that is gone would not name the deadline's.
        problem = await self._database.run(lambda: acts.find_problem(self._schema, deadline.rows))
        reason = clean_text(problem or _describe(error))
        _log.warning("SQL0142 deadline %s failed: %s", deadline.name, reason)
        failed = await self._database.query(
            statements.fail_deadline(self._schema, deadline_id=deadline.id, error=reason)
        )
        pace.failed = True
        pace.look_at = clock() + min(300.0, 0.5 * 2.0 ** min(max(failed, default=1) - 1, 20))


def _may_be_a_row(error: psycopg.Error) -> bool:
    # What comes of locks, time-outs and the state of the server, and a lack of rights, is nothing that a row has done.
    elsewhere = (pg.LockNotAvailable, pg.QueryCanceled, pg.InsufficientPrivilege, pg.UndefinedColumn)
    state = error.sqlstate or ""
    return bool(state) and state[:2] not in ("40", "53", "57", "58") and not isinstance(error, elsewhere)


def _describe(error: Exception) -> str:
    known = error.__cause__ if isinstance(error, NotInstalled) and error.__cause__ is not None else error
    return f"{type(known).__name__}: {known}"
