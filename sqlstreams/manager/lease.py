"""The right to run the manager, as this process last heard of it."""

from __future__ import annotations

import time
from uuid import UUID, uuid4

from sqlstreams.statements import LeaseAnswer

# Unlike CLOCK_MONOTONIC it goes on while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Return the seconds of a clock that nobody sets."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """The manager's lease, held or not. Its end is counted from before it was asked for, so it is never too late."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.token: UUID = uuid4()
        self.term: int | None = None
        self._until = 0.0

    @property
    def left(self) -> float:
        """For how many seconds it is ours for certain; 0 when it is not."""
        return max(0.0, self._until - clock()) if self.term is not None else 0.0

    def hear(self, answer: LeaseAnswer, *, asked_at: float) -> None:
        """Take over what the database said to a question that was sent at `asked_at`."""
        self.term = answer.term
        self._until = asked_at + self.ttl

    def give_up(self) -> None:
        """Begin nothing more until the database has said anew that it is ours."""
        self.term = None
