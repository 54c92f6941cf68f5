"""What the manager asks of a duty."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Ran(Struct, frozen=True):
    """What one bounded batch of a duty came to.

    `done` counts what was done, and `again` says that more was waiting already: the duty is called again at once.
    `due_in` are the seconds after which there will be something to do; None leaves that to the duty's period. `is_told`
    says that there will be news of whatever has to be done before that, so that the period matters less.
    """

    done: int = 0
    again: bool = False
    due_in: float | None = None
    is_told: bool = False


class Duty(Protocol):
    """Something the manager does from time to time.

    Two managers may do it at once, and one may die in the middle: each batch commits whole, and none relies on being
    the only one. `period` are the seconds after which the manager looks again when nothing is due earlier.
    """

    name: str
    period: float

    async def run_once(self) -> Ran:
        """Do one bounded batch."""
