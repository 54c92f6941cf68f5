"""What each message may spend: time for a delivery, failures and delays before it is dead."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, TypeVar

from msgspec import Struct

from sqlstreams.codec import decode_delivery
from sqlstreams.consume.outcome import Outcome
from sqlstreams.consume.ranges import FAILURES, OPTIONS, attempts
from sqlstreams.model import GroupInfo
from sqlstreams.options import DeliveryOptions
from sqlstreams.statements import Columns

AmountT = TypeVar("AmountT", int, timedelta)


class Budget(Struct, frozen=True):
    """What one message may spend, of all that it, its producer and its group say."""

    timeout: timedelta | None
    max_retries: int
    max_delays: int | None
    retry_base: timedelta
    retry_exponent: float
    retry_cap: timedelta

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after one more failure, with jitter."""
        # The exponent is bounded, so that no number of failures overflows.
        grown = self.retry_base.total_seconds() * self.retry_exponent ** min(failures, 100)
        return min(self.retry_cap.total_seconds(), grown) * random.uniform(0.5, 1)


class Verdict(Struct, frozen=True):
    """What comes of a delivery for its message: the state of its row, the seconds until it is due, and its error."""

    state: str
    error: str
    pause: float = 0.0


def judge(outcome: Outcome, budget: Budget, row: Columns) -> Verdict:
    """Return what comes of a message that did not succeed, from what it spent before."""
    failures, delays = attempts(row)
    match outcome.kind:
        case "deferred" | "unread" | "superseded":
            return Verdict(outcome.kind, outcome.error)
        case "undone":
            return Verdict("ready", outcome.error, outcome.pause)
        case "failed" if failures < budget.max_retries:
            return Verdict("ready", outcome.error, budget.pause(failures))
        case "delayed" if budget.max_delays is None or delays < budget.max_delays:
            return Verdict("ready", outcome.error, outcome.pause)
        case "delayed":
            return Verdict(
                "dead", f"delayed for the {delays + 1}. time, max_delays is {budget.max_delays}: {outcome.error}"
            )
        case _:
            return Verdict("dead", outcome.error)


def resolve(group: GroupInfo, asked: DeliveryOptions) -> Budget:
    """Return what holds for a message: what it asks for, else what its group says, within the group's limits."""
    limits = group.limits
    return Budget(
        timeout=_within(limits.timeout, _first(asked.timeout, group.timeout)),
        max_retries=_within(limits.max_retries, _first(asked.max_retries, group.max_retries)) or 0,
        max_delays=_within(limits.max_delays, _first(asked.max_delays, group.max_delays)),
        retry_base=_first(asked.retry_base, group.retry_base),
        retry_exponent=_first(asked.retry_exponent, group.retry_exponent),
        retry_cap=_first(asked.retry_cap, group.retry_cap),
    )


class Budgets:
    """The budgets of a group's messages; the group's settings may change while it is consumed."""

    def __init__(self, group: GroupInfo) -> None:
        self.change(group)

    def change(self, group: GroupInfo) -> None:
        """Go by the settings of a group as it is registered now."""
        self.group = group
        self._plain = resolve(group, DeliveryOptions())

    def of(self, row: Columns) -> Budget:
        """Return the budget of the message in a row."""
        options = row[OPTIONS]
        return self._plain if options is None else resolve(self.group, decode_delivery(options))


def is_spent(row: Columns, budget: Budget) -> bool:
    """Say whether a message has failed more often than it may: its process died, or the budget was made smaller."""
    return len(row) > FAILURES and row[FAILURES] > budget.max_retries


def _first(asked: Any, said: Any) -> Any:
    return said if asked is None else asked


def _within(bounds: tuple[AmountT | None, AmountT | None], amount: AmountT | None) -> AmountT | None:
    least, most = bounds
    if amount is None:
        return most
    if least is not None and amount < least:
        return least
    return most if most is not None and amount > most else amount
