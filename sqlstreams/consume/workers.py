"""Running the user's handler on messages of the queue, as many at a time as were asked for."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from sqlstreams.consume.budget import is_spent
from sqlstreams.consume.context import current
from sqlstreams.consume.outcome import SPENT, UNREAD, Outcome, decide
from sqlstreams.consume.ranges import ID, Work
from sqlstreams.consume.reading import Unreadable
from sqlstreams.consume.subject import Subject
from sqlstreams.consume.suspects import Suspects
from sqlstreams.consume.threads import HandlerThread
from sqlstreams.consume.watchdog import Watchdog
from sqlstreams.consume.work_queue import WorkQueue
from sqlstreams.statements import Columns

_log = logging.getLogger("sqlstreams.consume")

Handler = Callable[[Any], Awaitable[object] | object]
Settle = Callable[[Work, int, Outcome | None], None]

# A handler that never waits would keep the answer to the next claim from being read.
_BETWEEN_BREATHS: Final = 100


class Workers:
    """Calls the handler.

    `settle` hears how each delivery ended, `hungry` that work may run short, and `suspects` which messages begin that
    may be the ones that kill processes.
    """

    def __init__(
        self,
        subject: Subject,
        queue: WorkQueue,
        *,
        handler: Handler,
        concurrency: int,
        read: Callable[[Columns], Any],
        settle: Settle,
        hungry: Callable[[], None],
        suspects: Suspects,
    ) -> None:
        self._subject, self._budgets = subject, subject.budgets
        self._stream, self._group = subject.stream, subject.group
        self._queue = queue
        self._handler = handler
        self._read = read
        self._settle = settle
        self._hungry = hungry
        self._suspects = suspects
        self._watchdog = Watchdog()
        self._is_async = _is_async(handler)
        self._breathe_every = max(1, _BETWEEN_BREATHS // concurrency)

    def close(self) -> None:
        """Watch over nothing any more."""
        self._watchdog.close()

    async def run_one(self, number: int) -> None:
        """Handle one message after the other until the queue is closed."""
        thread = None if self._is_async else HandlerThread(f"sqlstreams-handler-{number}")
        try:
            await self._handle_all(thread)
        finally:
            if thread is not None:
                thread.close()

    async def _handle_all(self, thread: HandlerThread | None) -> None:
        queue, handled = self._queue, 0
        while not queue.is_closed:
            item = queue.take()
            self._hungry()
            if item is None:
                await queue.wait()
                continue
            work, index = item
            try:
                if work.has_suspects and work.is_suspect(index):
                    await self._handle_suspect(work, index, thread)
                else:
                    await self._handle(work, index, thread)
            finally:
                queue.ended()
            handled += 1
            if handled % self._breathe_every == 0:
                await asyncio.sleep(0)

    async def _handle_suspect(self, work: Work, index: int, thread: HandlerThread | None) -> None:
        if await self._suspects.begin(work, index):
            await self._handle(work, index, thread)
            await self._suspects.end(work)

    async def _handle(self, work: Work, index: int, thread: HandlerThread | None) -> None:
        row = work.rows[index]
        budget = self._budgets.of(row)
        current.set((self._stream, self._group, row, budget))
        if is_spent(row, budget):
            self._settle(work, index, SPENT)
            return
        try:
            payload = self._read(row)
            if budget.timeout is not None:
                await self._call_within(budget.timeout, payload, thread)
            elif thread is None:
                await self._handler(payload)  # type: ignore[misc]  # _is_async said so
            else:
                await _call_in(thread, self._handler, payload)
        except Unreadable:
            self._settle(work, index, UNREAD)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # we are being stopped: the message was not done and is not charged
            self._failed(work, index, error)
        except GeneratorExit:
            raise  # our own coroutine is being closed
        except BaseException as error:
            # sys.exit() in a handler is the message's trouble: raised, it would end the whole event loop.
            self._failed(work, index, error)
        else:
            self._settle(work, index, None)

    async def _call_within(self, limit: timedelta, payload: Any, thread: HandlerThread | None) -> None:
        if thread is None:
            await self._watchdog.within(limit, self._handler(payload))  # type: ignore[arg-type]  # _is_async said so
            return
        try:
            await self._watchdog.within(limit, _call_in(thread, self._handler, payload))
        except TimeoutError:
            if thread.is_busy:
                self._abandon(thread)
            raise

    def _abandon(self, thread: HandlerThread) -> None:
        thread.abandon()
        self._subject.stats.abandoned += 1
        _log.warning(
            "SQL0109 message %d of %s took longer than it may, and its thread cannot be ended: it is left to itself",
            current.get()[2][ID], self._subject,
        )  # fmt: skip

    def _failed(self, work: Work, index: int, error: BaseException) -> None:
        outcome = decide(error)
        _log.info(
            "SQL0106 message %d of stream %s in group %s: %s by %s: %s",
            work.rows[index][ID], self._stream, self._group, outcome.kind, outcome.error_type, outcome.error,
        )  # fmt: skip
        self._settle(work, index, outcome)


async def _call_in(thread: HandlerThread, handler: Handler, payload: Any) -> None:
    result = await thread.call(handler, payload)
    if inspect.isawaitable(result):
        await result


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  # an object with an async __call__
