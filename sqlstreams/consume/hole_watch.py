"""Waiting at a missing id, no longer than someone can still fill it, and saying who that is."""

from __future__ import annotations

import logging
import time
from typing import Final

from sqlstreams import statements
from sqlstreams.consume.holes import Barrier, lower_barrier, raise_barrier
from sqlstreams.consume.subject import Subject

_log = logging.getLogger("sqlstreams.consume")

_PAUSES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
# A hole that is older than this many looks is left to the timer: every commit behind it brings a notification.
_PROMPT_LOOKS: Final = 5
_REPORT_AFTER: Final = 1.0
_REPORT_EVERY: Final = 30.0


class HoleWatch:
    """One group's knowledge of holes: `settled` is the id at and below which nothing can appear any more."""

    def __init__(self, subject: Subject) -> None:
        self.settled = 0
        self._subject = subject
        self._barrier: Barrier | None = None
        self._since: float | None = None
        self._looks = 0
        self._reported_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether claims are held back by a hole now."""
        return self._since is not None

    @property
    def is_prompt(self) -> bool:
        """Whether news of the stream are worth a look at the hole before its timer says so."""
        return self._since is None or self._looks < _PROMPT_LOOKS

    @property
    def pause(self) -> float:
        """How long to wait, in seconds, before the next look."""
        return _PAUSES[min(self._looks, len(_PAUSES) - 1)]

    async def meet(self) -> bool:
        """Take note that a claim met a hole; say whether it can be passed at once."""
        if self._since is None:
            self._since = time.monotonic()
            self._subject.stats.waits += 1
        if self._barrier is None:
            settled_before = self.settled
            self._barrier = raise_barrier(await self._read_settled_head())
            if self._settle():
                if self.settled > settled_before:
                    self._looks = 0
                    return True
                # No hole: other ranges have to be finished or taken over first.
                self._looks += 1
                return False
            self._looks = 0
        self._looks += 1
        self._report(self._barrier)
        return False

    async def look(self) -> None:
        """See who of those that were waited for is left."""
        if self._barrier is not None:
            self._barrier = lower_barrier(self._barrier, await self._read_settled_head())
            self._settle()

    def closed(self) -> None:
        """Take note that claims go on."""
        if self._since is not None:
            self._subject.stats.wait_seconds += time.monotonic() - self._since
            self._subject.stats.waiting_for = ()
            self._since = None
            self._reported_at = 0.0

    def _settle(self) -> bool:
        if self._barrier is None or not self._barrier.is_settled:
            return False
        self.settled = max(self.settled, self._barrier.head)
        self._barrier = None
        return True

    async def _read_settled_head(self) -> statements.SettledHead:
        rows = await self._subject.database.query_once(statements.read_settled_head(self._subject.family))
        return statements.settled_head(rows)

    def _report(self, barrier: Barrier) -> None:
        self._subject.stats.waiting_for = barrier.holders
        now = time.monotonic()
        waited = now - (self._since or now)
        if waited > _REPORT_AFTER and now - self._reported_at > _REPORT_EVERY:
            self._reported_at = now
            holders = "; ".join(map(str, barrier.holders))
            _log.warning("SQL0101 %s has waited %.1f s for %s", self._subject, waited, holders)
