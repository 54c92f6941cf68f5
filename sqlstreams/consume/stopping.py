"""Stopping on SIGTERM and SIGINT: the first asks every consumer of the process to finish, the second ends them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

ResultT = TypeVar("ResultT")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """What one consumption was asked: to stop (`asked`), and by a second call to do so `at_once`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """Start nothing more and let running handlers finish; at once when called again."""
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()

    def end(self) -> None:
        """Stop at once."""
        self.asked.set()
        self.at_once.set()

    async def unless_asked(self, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """Return what `work` returns, or cancel it and return None as soon as a stop is asked."""
        doing, asked = asyncio.create_task(work), asyncio.create_task(self.asked.wait())
        try:
            await asyncio.wait([doing, asked], return_when=asyncio.FIRST_COMPLETED)
            return await doing if doing.done() else None
        finally:
            doing.cancel()
            asked.cancel()
            await asyncio.wait([doing, asked])


_listening: dict[asyncio.AbstractEventLoop, list[Stop]] = {}


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Ask `stop` on a signal while the block runs; does nothing outside the main thread."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = _listening.setdefault(loop, [])
    stops.append(stop)
    before = {each: signal.getsignal(each) for each in SIGNALS} if len(stops) == 1 else {}
    if before:
        _listen(loop, stops)
        _restore[loop] = before
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            _unlisten(loop)


_restore: dict[asyncio.AbstractEventLoop, dict[signal.Signals, Any]] = {}


def _listen(loop: asyncio.AbstractEventLoop, stops: list[Stop]) -> None:
    def stop_all() -> None:
        for stop in list(stops):
            stop.ask()

    for each in SIGNALS:
        loop.add_signal_handler(each, stop_all)


def _unlisten(loop: asyncio.AbstractEventLoop) -> None:
    del _listening[loop]
    for each, handler in _restore.pop(loop).items():
        loop.remove_signal_handler(each)
        if handler is not None:  # None: it was not installed from Python
            signal.signal(each, handler)
