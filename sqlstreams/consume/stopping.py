"""Stopping on SIGTERM and SIGINT: the first asks every consumer of the process to finish, the second ends them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """What a signal can stop."""

    def stop(self) -> None:
        """Start nothing more and let running handlers finish; at once when called again."""


_listening: dict[asyncio.AbstractEventLoop, list[Stoppable]] = {}


@contextmanager
def stopped_by_signals(consumption: Stoppable) -> Iterator[None]:
    """Stop `consumption` on a signal while the block runs; does nothing outside the main thread."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    consumptions = _listening.setdefault(loop, [])
    consumptions.append(consumption)
    before = {each: signal.getsignal(each) for each in SIGNALS} if len(consumptions) == 1 else {}
    if before:
        _listen(loop, consumptions)
        _restore[loop] = before
    try:
        yield
    finally:
        consumptions.remove(consumption)
        if not consumptions:
            _unlisten(loop)


_restore: dict[asyncio.AbstractEventLoop, dict[signal.Signals, Any]] = {}


def _listen(loop: asyncio.AbstractEventLoop, consumptions: list[Stoppable]) -> None:
    def stop_all() -> None:
        for consumption in list(consumptions):
            consumption.stop()

    for each in SIGNALS:
        loop.add_signal_handler(each, stop_all)


def _unlisten(loop: asyncio.AbstractEventLoop) -> None:
    del _listening[loop]
    for each, handler in _restore.pop(loop).items():
        loop.remove_signal_handler(each)
        if handler is not None:  # None: it was not installed from Python
            signal.signal(each, handler)
