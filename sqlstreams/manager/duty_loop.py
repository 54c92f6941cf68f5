"""One duty, run again and again for as long as this process is the manager."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sqlstreams.consume.outcome import describe
from sqlstreams.manager.duty import Duty, Ran
from sqlstreams.manager.lease import clock
from sqlstreams.statements import DutyReport

_log = logging.getLogger("sqlstreams.manager")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
# News may get lost with a connection, which is noticed within about half a minute.
_TOLD_PERIOD: Final = 30.0


class Account:
    """What a duty did since that was last written down, and how it stands."""

    def __init__(self, name: str) -> None:
        self.failures = 0
        self._name = name
        self._runs = 0
        self._done = 0
        self._began: float | None = None
        self._ended: float | None = None
        self._took: float | None = None
        self._last_done: int | None = None
        self._next: float | None = None
        self._error: str | None = None
        self._failed: float | None = None
        self._has_news = False

    def begin(self) -> None:
        """Note that the duty runs."""
        self._began = clock()
        self._has_news = True

    def end(self, *, done: int, error: str | None) -> None:
        """Note that it has run, and what came of it."""
        self._has_news = True
        self._ended = clock()
        self._took = None if self._began is None else self._ended - self._began
        self._began = None
        self._runs += 1
        self._done += done
        self._last_done = done
        self.failures = self.failures + 1 if error is not None else 0
        if error is not None:
            self._error, self._failed = error, self._ended

    def cut_off(self) -> None:
        """Note that it was cancelled."""
        self._has_news = True
        self._began = self._next = None

    def plan(self, pause: float) -> None:
        """Note when it runs next."""
        self._next = clock() + pause

    def report(self) -> DutyReport | None:
        """Return what is not written down yet, if anything."""
        if not self._has_news:
            return None
        now = clock()
        return DutyReport(
            name=self._name,
            runs=self._runs,
            done=self._done,
            ran_ago=_since(self._ended, now),
            took=self._took,
            last_done=self._last_done,
            running_for=_since(self._began, now),
            next_in=None if self._next is None else max(0.0, self._next - now),
            failures=self.failures,
            error=self._error,
            failed_ago=_since(self._failed, now),
        )

    def written(self, report: DutyReport) -> None:
        """Hear that a report was written down."""
        self._runs -= report.runs
        self._done -= report.done
        # What ended meanwhile is news; what still runs is told each time, for another holder may say that it does not.
        self._has_news = self._runs > 0 or self._began is not None or report.running_for is not None


def _since(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


class DutyLoop:
    """Runs one duty.

    `may_begin` is asked before each batch and `hears_news` after it; `report_soon` is called when there is something to
    be seen.
    """

    def __init__(
        self,
        duty: Duty,
        *,
        may_begin: Callable[[], bool],
        hears_news: Callable[[], bool],
        report_soon: Callable[[], None],
    ) -> None:
        self.name = duty.name
        self.suspended = False
        self.account = Account(duty.name)
        self._duty = duty
        self._may_begin = may_begin
        self._hears_news = hears_news
        self._report_soon = report_soon
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Have the duty look now, unless it backs off."""
        self._woken.set()

    async def run(self) -> None:
        """Run the duty until cancelled. Its failures end with it: no other duty waits for this one."""
        self._woken.clear()
        while True:
            # The lease may have run out while this process was frozen, and nobody has had the time to notice.
            pause = await self._run_once() if self._may_begin() and not self.suspended else self._duty.period
            self.account.plan(pause)
            await self._wait(pause)

    async def _run_once(self) -> float:
        self.account.begin()
        try:
            ran = await self._duty.run_once()
        except asyncio.CancelledError:
            self.account.cut_off()
            raise
        except Exception as error:
            return self._failed(error)
        recovered = self.account.failures > 0
        self.account.end(done=ran.done, error=None)
        if recovered:
            _log.info("duty %s of the manager works again", self.name)
            self._report_soon()
        return self._pause(ran)

    def _pause(self, ran: Ran) -> float:
        if ran.again:
            return 0.0
        longest = max(_TOLD_PERIOD, self._duty.period) if ran.is_told and self._hears_news() else self._duty.period
        return longest if ran.due_in is None else max(0.0, min(ran.due_in, longest))

    def _failed(self, error: Exception) -> float:
        self.account.end(done=0, error=f"{type(error).__name__}: {describe(error)}")
        pause = min(_FIRST_PAUSE * 2.0 ** min(self.account.failures - 1, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)
        _log.warning("SQL0110 duty %s of the manager failed, again in %.1f s: %s", self.name, pause, error)
        self._report_soon()
        return pause

    async def _wait(self, pause: float) -> None:
        if self.account.failures:
            await asyncio.sleep(pause)
        elif pause > 0:
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the news.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()
        self._woken.clear()
