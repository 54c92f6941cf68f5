"""Threads for handlers that are plain functions: they never keep the interpreter from exiting."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], asyncio.Future[Any]]


class HandlerThread:
    """One daemon thread that runs one call at a time for the event loop.

    The executors of the standard library join their threads at exit, so that a handler that hangs would hang the
    process; these threads are left behind.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Any]:
        """Run `function(argument)` in the thread, in a copy of this context."""
        future: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()
        self._jobs.put((lambda: context.run(function, argument), future))
        return future

    def close(self) -> None:
        """Let the thread end after the call that it is in."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            run, future = job
            try:
                result, error = run(), None
            except BaseException as raised:
                result, error = None, raised
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
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
