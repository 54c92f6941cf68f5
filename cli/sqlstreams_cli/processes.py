"""Running a command in several processes: started, started again after a crash, and ended together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL

from sqlstreams_cli.connect import talk

PARENT_PIPE = "SQLSTREAMS_PARENT_PIPE"
"""Names, for a child, the descriptor whose end tells that its parent is gone."""

TRY_AGAIN = 75
"""The exit code of a child that may have better luck later: the database could not be reached."""

_SAID_WHY = (1, 2)
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_HEALTHY_AFTER = 60.0
_PATIENCE = 30.0


class Processes:
    """A number of child processes with the same arguments."""

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str], count: int) -> None:
        self._command = [sys.executable, "-m", "sqlstreams_cli", *arguments]
        self._environment = environment
        self._count = count
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until every child ended by itself; return the worst of their exit codes."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._stop)
        # The end of this pipe is held by us alone, so it closes however we end.
        watched, held = os.pipe()
        try:
            return max(await asyncio.gather(*(self._keep_one(watched) for _ in range(self._count))))
        finally:
            os.close(watched)
            os.close(held)

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._running:
            process.send_signal(signal.SIGTERM)

    async def _keep_one(self, watched: int) -> int:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            code = await self._run_one(watched)
            if code == 0 or code in _SAID_WHY or self._stopping.is_set():
                return max(code, 0)
            pause = _FIRST_PAUSE if time.monotonic() - began > _HEALTHY_AFTER else pause
            talk(f"a process ended {_describe(code)}; starting another in {pause:g} s")
            if await self._stopped_within(pause):
                return 0
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _run_one(self, watched: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            env={**os.environ, **self._environment, PARENT_PIPE: str(watched)},
            pass_fds=[watched],
            # Ctrl-C reaches the whole group of the terminal; the children get their one signal from us.
            process_group=0,
        )
        self._running.add(process)
        try:
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)
            return await process.wait()
        finally:
            self._running.discard(process)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True


def is_child() -> bool:
    """Say whether this process was started by `Processes`."""
    return PARENT_PIPE in os.environ


def end_with_parent(*, grace: float) -> None:
    """Stop this process, as by SIGTERM, when its parent is gone however it ended."""
    descriptor = int(os.environ[PARENT_PIPE])
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace + _PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="sqlstreams-parent", daemon=True).start()


def _describe(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"
