"""Running the user's handler on messages of the queue, as many at a time as were asked for."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from sqlstreams.consume.budget import is_spent
from sqlstreams.consume.context import current, named
from sqlstreams.consume.lanes import Lane
from sqlstreams.consume.outcome import SPENT, SUPERSEDED, UNDONE, UNREAD, Outcome, decide
from sqlstreams.consume.ranges import ID, OPTIONS, Range, Work
from sqlstreams.consume.reading import Unreadable
from sqlstreams.consume.subject import Subject
from sqlstreams.consume.suspects import Suspects
from sqlstreams.consume.transactions import DeliveryRefused, Undone
from sqlstreams.consume.watchdog import Watchdog
from sqlstreams.consume.work_queue import WorkQueue
from sqlstreams.statements import Columns
from sqlstreams.tracing import trace_of

_log = logging.getLogger("sqlstreams.consume")

Settle = Callable[[Work, int, Outcome | None], None]

# A handler that never waits would keep the answer to the next claim from being read.
_BETWEEN_BREATHS: Final = 100
_BETWEEN_CONNECTS: Final = 0.5


class Workers:
    """Calls the handler, as often at a time as there are lanes for it.

    `settle` hears how each delivery ended, `hungry` that work may run short, and `suspects` which messages begin that
    may be the ones that kill processes; `lost` hears of ranges that turned out to be another process's.
    """

    def __init__(
        self,
        subject: Subject,
        queue: WorkQueue,
        *,
        lanes: Callable[[int], Lane],
        concurrency: int,
        read: Callable[[Columns], Any],
        settle: Settle,
        hungry: Callable[[], None],
        suspects: Suspects,
        lost: Callable[[UUID], None],
    ) -> None:
        self._subject, self._budgets = subject, subject.budgets
        self._stream, self._group = subject.stream, subject.group
        self._queue = queue
        self._lanes = lanes
        self._read = read
        self._settle = settle
        self._hungry = hungry
        self._suspects = suspects
        self._lost = lost
        self._watchdog = Watchdog()
        self._breathe_every = max(1, _BETWEEN_BREATHS // concurrency)

    def close(self) -> None:
        """Watch over nothing any more."""
        self._watchdog.close()

    async def run_one(self, number: int) -> None:
        """Handle one message after the other until the queue is closed."""
        lane = self._lanes(number)
        try:
            await self._handle_all(lane)
        finally:
            await lane.close()

    async def _handle_all(self, lane: Lane) -> None:
        queue, handled = self._queue, 0
        while not queue.is_closed:
            if not lane.is_open and not await self._open(lane):
                continue
            item = queue.take()
            self._hungry()
            if item is None:
                await queue.wait()
                continue
            work, index = item
            try:
                if work.heads and work.is_superseded(index):
                    self._settle(work, index, SUPERSEDED)
                elif work.has_suspects and work.is_suspect(index):
                    await self._handle_suspect(work, index, lane)
                else:
                    await self._handle(work, index, lane)
            finally:
                queue.ended()
            handled += 1
            if handled % self._breathe_every == 0:
                await asyncio.sleep(0)

    async def _handle_suspect(self, work: Work, index: int, lane: Lane) -> None:
        if await self._suspects.begin(work, index):
            await self._handle(work, index, lane)
            await self._suspects.end(work)

    async def _handle(self, work: Work, index: int, lane: Lane) -> None:
        row = work.rows[index]
        budget = self._budgets.of(row)
        current.set((self._stream, self._group, row, budget))
        if is_spent(row, budget):
            self._settle(work, index, SPENT)
            return
        try:
            payload = self._read(row)
            with trace_of(row[OPTIONS]):
                call = lane.call(payload, work, (index,))
                if budget.timeout is None:
                    await call
                else:
                    await self._within(budget.timeout, call, lane)
        except BaseException as error:
            self._ended_badly(work, (index,), error)
        else:
            self._settle(work, index, None)

    async def _open(self, lane: Lane) -> bool:
        try:
            await lane.open()
        except psycopg.Error as error:
            _log.warning("SQL0105 a handler of %s has no connection: %s", self._subject, str(error).strip())
            await asyncio.sleep(_BETWEEN_CONNECTS * random.uniform(1, 2))
        return lane.is_open

    async def _within(self, limit: timedelta, call: Awaitable[object], lane: Lane) -> object:
        try:
            return await self._watchdog.within(limit, call)
        except TimeoutError:
            if lane.is_stuck:
                self._abandon(lane)
            raise

    def _abandon(self, lane: Lane) -> None:
        lane.abandon()
        self._subject.stats.abandoned += 1
        _log.warning(
            "SQL0109 %s of %s took longer than it may, and the thread cannot be ended: it is left to itself",
            named(), self._subject,
        )  # fmt: skip

    def _ended_badly(self, work: Work, indexes: Sequence[int], error: BaseException) -> None:
        """Settle messages whose handling raised; raise again what has to do with us and not with them."""
        if isinstance(error, GeneratorExit):
            raise error  # our own coroutine is being closed
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise error  # we are being stopped: the messages were not done and are not charged
        for index in indexes:
            if isinstance(error, Unreadable | Undone | DeliveryRefused):
                self._put_aside(work, index, error)
            else:
                # sys.exit() in a handler is the message's trouble: raised, it would end the whole event loop.
                self._failed(work, index, error)

    def _put_aside(self, work: Work, index: int, error: Exception) -> None:
        match error:
            case Unreadable():
                self._settle(work, index, UNREAD)
                return
            case DeliveryRefused() if isinstance(work, Range):
                self._lost(work.token)
            case DeliveryRefused():
                _log.warning("SQL0040 message %d of %s: %s", work.rows[index][ID], self._subject, error)
            case _:
                _log.warning("SQL0105 message %d of %s comes again: %s", work.rows[index][ID], self._subject, error)
        self._settle(work, index, UNDONE)

    def _failed(self, work: Work, index: int, error: BaseException) -> None:
        outcome = decide(error)
        _log.info(
            "SQL0106 message %d of stream %s in group %s: %s by %s: %s",
            work.rows[index][ID], self._stream, self._group, outcome.kind, outcome.error_type, outcome.error,
        )  # fmt: skip
        self._settle(work, index, outcome)
