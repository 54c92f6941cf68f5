"""Settings of streams and groups, refused at construction when they cannot work."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from sqlstreams.errors import InvalidInput

Start = Literal["beginning", "head"] | int | datetime
"""Where a new group begins: the first kept message, behind the last one, after an id, or at a time."""

CONCURRENCIES: Final = ("parallel", "exclusive", "ordered")
MAX_ID: Final = 2**63 - 1
_LONGEST: Final = timedelta(days=3650)


class StreamOptions(Struct, frozen=True, kw_only=True):
    """Settings of a stream: the largest payload in bytes, and how many ids one partition of the log spans."""

    max_payload: int = 1_048_576
    partition_rows: int = 1_000_000

    def __post_init__(self) -> None:
        check_integer("max_payload", self.max_payload, low=1, high=268_435_456)
        check_integer("partition_rows", self.partition_rows, low=1_000, high=1_000_000_000)


class GroupOptions(Struct, frozen=True, kw_only=True):
    """Settings of a consumer group: how often and after what pause a failed message is delivered again.

    The pause after failure n is `retry_base × retry_exponent^(n-1)`, at most `retry_cap`, of which a random half is
    taken off so that failures of one moment spread out. `concurrency` says what messages of one key may do: run in
    `parallel`, one at a time (`exclusive`), or in order as well (`ordered`), where a message waits until the earlier
    ones of its key are done or dead.
    """

    max_retries: int = 10
    retry_base: timedelta = timedelta(seconds=1)
    retry_exponent: float = 2.0
    retry_cap: timedelta = timedelta(minutes=10)
    concurrency: str = "parallel"

    def __post_init__(self) -> None:
        check_concurrency("concurrency", self.concurrency)
        check_integer("max_retries", self.max_retries, low=0, high=1_000_000)
        check_duration("retry_base", self.retry_base, low=timedelta(0), high=_LONGEST)
        check_duration("retry_cap", self.retry_cap, low=self.retry_base, high=_LONGEST)
        check_number("retry_exponent", self.retry_exponent, low=1.0, high=10.0)


def check_integer(field: str, value: object, *, low: int, high: int) -> int:
    """Return `value` when it is an int from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field, f"must be an int, got {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidInput(field, f"must be between {low} and {high}, got {_shown(value)}")
    return value


def check_number(field: str, value: object, *, low: float, high: float) -> float:
    """Return `value` when it is a finite number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(field, f"must be a number, got {type(value).__name__}")
    if not low <= value <= high:  # so NaN is refused, too
        raise InvalidInput(field, f"must be between {low} and {high}, got {_shown(value)}")
    return float(value)


def check_duration(field: str, value: object, *, low: timedelta, high: timedelta) -> timedelta:
    """Return `value` when it is a timedelta from `low` to `high`."""
    if not isinstance(value, timedelta):
        raise InvalidInput(field, f"must be a timedelta, got {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidInput(field, f"must be between {low} and {high}, got {value}")
    return value


def check_concurrency(field: str, value: object) -> str:
    """Return `value` when it says what messages of one key may do: "parallel", "exclusive" or "ordered"."""
    if value not in CONCURRENCIES:
        raise InvalidInput(field, f"must be one of {', '.join(CONCURRENCIES)}, got {value!r}")
    return str(value)


def check_start(field: str, value: object) -> Start:
    """Return `value` when it is a position: "beginning", "head", an id of 0 or more, or an aware datetime."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidInput(field, f"must be an aware datetime, got the naive {value.isoformat()}")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return check_integer(field, value, low=0, high=MAX_ID)
    if value == "beginning":
        return "beginning"
    if value == "head":
        return "head"
    raise InvalidInput(field, f'must be "beginning", "head", an id or an aware datetime, got {value!r}')


def _shown(number: object) -> str:
    # Python refuses to write out an int of thousands of digits.
    return "a larger one" if isinstance(number, int) and abs(number) > 10**20 else str(number)
