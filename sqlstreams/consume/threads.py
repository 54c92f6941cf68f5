"""Threads for handlers that are plain functions: they never keep the interpreter from exiting."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class _Job:
    """A call, the future of its result, and whether it ended."""

    __slots__ = ("ended", "future", "run")

    def __init__(self, run: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.run = run
        self.future = future
        self.ended = False


class HandlerThread:
    """A daemon thread that runs one call at a time for the event loop.

    The executors of the standard library join their threads at exit, so that a handler that hangs would hang the
    process; these threads are left behind.
    """

    def __init__(self, name: str, *, at_end: Callable[[], object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._at_end = at_end
        self._job: _Job | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Run `function(*arguments)` in the thread, in a copy of this context."""
        future: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()
        self._job = _Job(lambda: context.run(function, *arguments), future)
        self._jobs.put(self._job)
        return future

    @property
    def is_busy(self) -> bool:
        """Whether the last call has not ended."""
        return self._job is not None and not self._job.ended

    def close(self) -> None:
        """Let the thread end after the call that it is in."""
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            self._run_jobs()
        finally:
            if self._at_end is not None:
                self._at_end()

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result, error = job.run(), None
            except BaseException as raised:
                result, error = None, raised
            job.ended = True
            try:
                self._loop.call_soon_threadsafe(_settle, job.future, result, error)
            except RuntimeError:  # the loop was closed: nobody waits for this any more
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if isinstance(error, StopIteration):  # a future cannot carry it
        error = RuntimeError(f"the handler raised {error!r}")
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
