"""Consuming processes as the tests see them: what they did, and the signals sent to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from sqlstreams import Reclaim
from tests.chaos.worker import Settings

ROOT = Path(__file__).parents[2]


class Delivery(Struct, frozen=True):
    """One line of a journal about a message: `event` is start, end, or the name of the exception."""

    event: str
    at: float
    id: int
    attempt: int


class Process:
    """A worker and its journal."""

    def __init__(self, settings: Settings) -> None:
        self.journal = Path(settings.journal)
        self.journal.touch()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker", msgspec.json.encode(settings).decode()],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self.pid = self._popen.pid

    def lines(self, event: str) -> list[str]:
        """Return what the journal says of one kind of event."""
        text = self.journal.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [line for line in whole if line.split(" ", 1)[0] == event]

    def logged(self, code: str) -> bool:
        return any(f" {code} " in line for line in self.lines("log"))

    def deliveries(self, event: str) -> list[Delivery]:
        words = [line.split() for line in self.lines(event)]
        return [Delivery(event, float(at), int(message), int(attempt)) for _, at, message, attempt in words]

    def ids(self, event: str = "end") -> list[int]:
        return [delivery.id for delivery in self.deliveries(event)]

    def send(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    @property
    def runs(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def end(self) -> None:
        """End it, however it stands."""
        if self.runs:
            self.send(signal.SIGKILL)
        self._popen.wait(10)


def twice_delivered(processes: Iterable[Process]) -> set[int]:
    """Return the ids of messages of which one attempt began more than once."""
    begun = Counter((each.id, each.attempt) for process in processes for each in process.deliveries("start"))
    return {message_id for (message_id, _), count in begun.items() if count > 1}


def explained(reclaims: Iterable[Reclaim]) -> set[int]:
    """Return the ids that were taken over without being checkpointed as done."""
    return {
        message_id
        for each in reclaims
        for message_id in range(each.resolved + 1, each.high + 1)
        if message_id not in each.done
    }


def finished(processes: Iterable[Process]) -> Counter[int]:
    """Return how often the handling of each message came to its end."""
    return Counter(message_id for process in processes for message_id in process.ids())
