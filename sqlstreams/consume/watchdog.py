"""Ending deliveries that take longer than they may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta


class _Watched:
    """One running call: the task that awaits it, until when it may run, and whether it was cancelled for that."""

    __slots__ = ("cancelling", "deadline", "is_late", "task")

    def __init__(self, task: asyncio.Task[object], deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.cancelling = task.cancelling()
        self.is_late = False

    def was_cancelled_for_being_late(self) -> bool:
        """Take back our cancellation, if there was one; being stopped meanwhile counts for more."""
        return self.is_late and self.task.uncancel() <= self.cancelling


class Watchdog:
    """One timer for all running calls: it rings at the first deadline, and seldom more than once per timeout."""

    def __init__(self) -> None:
        self._running: set[_Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, limit: timedelta, call: Awaitable[object]) -> object:
        """Return what a call returns when awaited; cancel it when it takes longer.

        Raises TimeoutError then, however the call ends: whether it was done nobody can tell from a call that caught its
        cancellation.
        """
        watched = self._watch(limit.total_seconds())
        late = TimeoutError(f"the handler took longer than its timeout of {limit.total_seconds():g} s")
        try:
            result = await call
        except BaseException as error:
            if watched.was_cancelled_for_being_late():
                raise late.with_traceback(error.__traceback__) from None
            raise
        else:
            if watched.was_cancelled_for_being_late():
                raise late
            return result
        finally:
            self._running.discard(watched)

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, seconds: float) -> _Watched:
        task = asyncio.current_task()
        assert task is not None
        watched = _Watched(task, asyncio.get_running_loop().time() + seconds)
        self._running.add(watched)
        self._ring_at(watched.deadline)
        return watched

    def _ring_at(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for watched in self._running:
            if not watched.is_late and watched.deadline <= now:
                watched.is_late = True
                watched.task.cancel()
        if waiting := [watched.deadline for watched in self._running if not watched.is_late]:
            self._ring_at(min(waiting))
