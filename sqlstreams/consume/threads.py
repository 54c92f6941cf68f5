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

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._job: _Job | None = None
        self._start()

    def call(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Any]:
        """Run `function(argument)` in the thread, in a copy of this context."""
        future: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()
        self._job = _Job(lambda: context.run(function, argument), future)
        self._jobs.put(self._job)
        return future

    @property
    def is_busy(self) -> bool:
        """Whether the last call has not ended."""
        return self._job is not None and not self._job.ended

    def abandon(self) -> None:
        """Leave a call that cannot be ended to itself, and go on in a new thread."""
        self.close()
        self._start()

    def close(self) -> None:
        """Let the thread end after the call that it is in."""
        self._jobs.put(None)

    def _start(self) -> None:
        self._job = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._run, args=(self._jobs,), name=self._name, daemon=True).start()

    def _run(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
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
