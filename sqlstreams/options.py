"""Settings of streams and groups, refused at construction when they cannot work."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from sqlstreams.errors import InvalidInput
from sqlstreams.names import ERROR_TEXT_LIMIT, check_identifier, check_key, check_table, encode_text, shorten

Start = Literal["beginning", "head"] | int | datetime
"""Where a new group begins: the first kept message, behind the last one, after an id, or at a time."""

CONCURRENCIES: Final = ("parallel", "exclusive", "ordered")
CATCH_UPS: Final = ("newest", "oldest", "all", "skip")
DEADLINE_MODES: Final = ("active", "observe")
ROLE_KINDS: Final = ("producer", "consumer", "operator", "manager")
DELIVERY_LOGS: Final = ("failures", "all", "off")
MAX_ID: Final = 2**63 - 1
_LONGEST: Final = timedelta(days=3650)
_LONGEST_RETENTION: Final = timedelta(days=36_500)
_SHORTEST_RETENTION: Final = timedelta(seconds=1)
_SHORTEST_TIMEOUT: Final = timedelta(milliseconds=1)
_SHORTEST_AGE: Final = timedelta(microseconds=1)
_MOST_TRIES: Final = 1_000_000
_MOST_IDS: Final = 100_000


class StreamOptions(Struct, frozen=True, kw_only=True):
    """Settings of a stream: the largest payload in bytes, and how many ids one partition of the log spans.

    Messages older than `retention` are removed (None: they stay); with `keep_unread` only those that every group has
    done or given up.
    `compact_after` is the age at which compaction removes messages that a greater one of their key superseded; None
    leaves that to whoever asks for it. `idempotency_ttl` is how long the idempotency key of a message is remembered.
    """

    max_payload: int = 1_048_576
    partition_rows: int = 1_000_000
    retention: timedelta | None = None
    keep_unread: bool = True
    compact_after: timedelta | None = None
    idempotency_ttl: timedelta = timedelta(hours=24)

    def __post_init__(self) -> None:
        check_integer("max_payload", self.max_payload, low=1, high=268_435_456)
        check_integer("partition_rows", self.partition_rows, low=1_000, high=1_000_000_000)
        if self.retention is not None:
            check_duration("retention", self.retention, low=_SHORTEST_RETENTION, high=_LONGEST_RETENTION)
        check_flag("keep_unread", self.keep_unread)
        if self.compact_after is not None:
            check_duration("compact_after", self.compact_after, low=_SHORTEST_AGE, high=_LONGEST)
        check_duration("idempotency_ttl", self.idempotency_ttl, low=_SHORTEST_AGE, high=_LONGEST)


class DeliveryLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The least and the most that messages of a group may have, whatever they ask for; None leaves a side open.

    Outside of them the nearest bound holds. What has no end (a `timeout` or `max_delays` of None) gets the most.
    """

    timeout: tuple[timedelta | None, timedelta | None] = (None, None)
    max_retries: tuple[int | None, int | None] = (None, None)
    max_delays: tuple[int | None, int | None] = (None, None)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _check_bounds(name, getattr(self, name))


class DeliveryOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a message asks for its deliveries; None leaves it to the group."""

    concurrency: str | None = None
    timeout: timedelta | None = None
    max_retries: int | None = None
    max_delays: int | None = None
    retry_base: timedelta | None = None
    retry_exponent: float | None = None
    retry_cap: timedelta | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _DELIVERY_CHECKS[name](name, getattr(self, name))


class GroupOptions(Struct, frozen=True, kw_only=True):
    """Settings of a consumer group: how long a delivery may take, and how often and when a message comes again.

    The pause after failure n is `retry_base × retry_exponent^(n-1)`, at most `retry_cap`, of which a random half is
    taken off so that failures of one moment spread out. `concurrency` says what messages of one key may do: run in
    `parallel`, one at a time (`exclusive`), or in order as well (`ordered`), where a message waits until the earlier
    ones of its key are done or dead. A delivery that takes longer than `timeout` has failed; `max_delays` bounds how
    often a message may be delayed. `limits` bound what messages ask for themselves. `delivery_log` says what the
    history keeps: `failures` keeps every delivery that did not succeed, and what became of dead letters; `all` keeps
    those that succeeded as well, at the cost of a row for each message; `off` keeps nothing.
    `bindings` are patterns of routing keys, as `routing.check_bindings` returns them.
    """

    timeout: timedelta | None = None
    max_retries: int = 10
    max_delays: int | None = None
    retry_base: timedelta = timedelta(seconds=1)
    retry_exponent: float = 2.0
    retry_cap: timedelta = timedelta(minutes=10)
    concurrency: str = "parallel"
    limits: DeliveryLimits = msgspec.field(default_factory=DeliveryLimits)
    delivery_log: str = "failures"
    bindings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_concurrency("concurrency", self.concurrency)
        check_choice("delivery_log", self.delivery_log, DELIVERY_LOGS)
        check_integer("max_retries", self.max_retries, low=0, high=_MOST_TRIES)
        _DELIVERY_CHECKS["timeout"]("timeout", self.timeout)
        _DELIVERY_CHECKS["max_delays"]("max_delays", self.max_delays)
        check_duration("retry_base", self.retry_base, low=timedelta(0), high=_LONGEST)
        check_duration("retry_cap", self.retry_cap, low=self.retry_base, high=_LONGEST)
        check_number("retry_exponent", self.retry_exponent, low=1.0, high=10.0)


class DeadlineOptions(Struct, frozen=True, kw_only=True):
    """Which rows of a table come due, and what becomes of them. See `AsyncDeadline.register`."""

    table: str
    key: str
    deadline: str
    state: str
    from_state: str
    to_state: str
    batch: int = 200
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_table("table", self.table)
        for field in ("key", "deadline", "state"):
            check_identifier(field, getattr(self, field))
        if len({self.key, self.deadline, self.state}) < 3:
            raise InvalidInput("key", "deadline and state must be three columns")
        for field in ("from_state", "to_state"):
            encode_text(field, getattr(self, field))
        if self.from_state == self.to_state:
            raise InvalidInput("to_state", f"must be another than from_state, got {self.to_state!r} for both")
        check_integer("batch", self.batch, low=1, high=10_000)
        if self.columns is not None and not self.columns:
            raise InvalidInput("columns", "must name a column at least; None takes all")
        for position, column in enumerate(self.columns or ()):
            check_identifier(f"columns[{position}]", column)
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise InvalidInput("columns", "must name each column once")


class ScheduleOptions(Struct, frozen=True, kw_only=True):
    """Settings of a schedule beside its payload and its slots. See `AsyncScheduler.register`."""

    concurrency: str = "parallel"
    timeout: timedelta = timedelta(seconds=30)
    catch_up: str = "newest"
    catch_up_window: timedelta = timedelta(days=365)
    jitter: timedelta | None = None
    compaction: bool = True

    def __post_init__(self) -> None:
        check_concurrency("concurrency", self.concurrency)
        check_duration("timeout", self.timeout, low=_SHORTEST_TIMEOUT, high=_LONGEST)
        check_choice("catch_up", self.catch_up, CATCH_UPS)
        check_duration("catch_up_window", self.catch_up_window, low=timedelta(0), high=_LONGEST)
        if self.jitter is not None:
            check_duration("jitter", self.jitter, low=timedelta(milliseconds=1), high=_LONGEST)
        if not isinstance(self.compaction, bool):
            raise InvalidInput("compaction", f"must be a bool, got {type(self.compaction).__name__}")
        if self.compaction and self.concurrency == "ordered":
            raise InvalidInput("concurrency", "of 'ordered' needs compaction=False: it keeps what compaction drops")


class DeadFilter(Struct, frozen=True, kw_only=True):
    """Which dead letters are meant: those that pass every filter that is given. The ids are in order, each once."""

    message_ids: tuple[int, ...] | None = None
    error: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        check_error("error", self.error)
        check_key("key", self.key)
        for field, at in (("since", self.since), ("until", self.until)):
            if at is not None:
                check_time(field, at)

    def ids_behind(self, after: int, *, limit: int) -> list[int] | None:
        """Return the next of the ids; None where ids are no filter."""
        if self.message_ids is None:
            return None
        first = bisect_right(self.message_ids, after)
        return list(self.message_ids[first : first + limit])


def check_value(field: str, value: object) -> str:
    """Return a value of a column as text: of a str, a bool, an int, or a member of an Enum."""
    value = value.value if isinstance(value, Enum) else value
    match value:
        case str():
            encode_text(field, value)
            return value
        case bool():
            return "true" if value else "false"
        case int() if -(2**63) <= value < 2**63:
            return str(value)
        case _:
            raise InvalidInput(field, f"must be a str, a bool or an int of 64 bits, got {shorten(repr(value))}")


def check_only(field: str, only: object) -> dict[str, str]:
    """Return what columns must be, as text; None is no column at all."""
    if only is None:
        return {}
    if not isinstance(only, Mapping):
        raise InvalidInput(field, f"must map columns to values, got {type(only).__name__}")
    return {check_identifier(field, column): check_value(f"{field}.{column}", each) for column, each in only.items()}


def check_columns(field: str, columns: object) -> tuple[str, ...] | None:
    """Return names of columns as a tuple; None is all of them."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidInput(field, f"must be names of columns, got {shorten(repr(columns))}")
    return tuple(columns)


def select_dead(
    message_ids: Iterable[int] | None,
    *,
    error: str | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
    everything: bool,
) -> DeadFilter:
    """Return the filter for a change of dead letters; refuse one that selects nothing, or everything and something."""
    narrowed = any(each is not None for each in (message_ids, error, key, since, until))
    if narrowed and everything:
        raise InvalidInput("everything", "must not be given together with ids or filters")
    if not narrowed and not everything:
        raise InvalidInput("message_ids", "or a filter must be given, or everything=True")
    ids = None if message_ids is None else check_message_ids("message_ids", message_ids)
    return DeadFilter(message_ids=ids, error=error, key=key, since=since, until=until)


def check_message_ids(field: str, values: object) -> tuple[int, ...]:
    """Return `values` in order, each once, when they are up to 100,000 ids."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(field, f"must be several ids, got {type(values).__name__}")
    ids = sorted({check_integer(field, each, low=1, high=MAX_ID) for each in values})
    if len(ids) > _MOST_IDS:
        raise InvalidInput(field, f"must be at most {_MOST_IDS} ids, got {len(ids)}")
    return tuple(ids)


def check_error(field: str, value: object) -> str | None:
    """Return `value` when it can be looked for in the text of an error, or is None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    if not 1 <= len(encode_text(field, value)) <= ERROR_TEXT_LIMIT:
        raise InvalidInput(field, f"must have 1 to {ERROR_TEXT_LIMIT} bytes")
    return value


def check_reason(field: str, value: object) -> str:
    """Return `value` when it can be kept as the reason of a change."""
    if check_error(field, value) is None:
        raise InvalidInput(field, "must be given")
    return str(value)


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


def check_rank(field: str, value: object) -> int | None:
    """Return `value` when it is a rank that a message may have in compaction, or None."""
    return None if value is None else check_integer(field, value, low=-MAX_ID - 1, high=MAX_ID)


def check_due(deliver_at: object, delay: object) -> tuple[datetime | None, timedelta | None]:
    """Return when a message is to be delivered, in UTC or as what is left until then; refuse both at once."""
    if deliver_at is not None and delay is not None:
        raise InvalidInput("delay", "goes without deliver_at")
    return (
        None if deliver_at is None else _check_instant("deliver_at", deliver_at),
        None if delay is None else check_duration("delay", delay, low=timedelta(0), high=_LONGEST),
    )


def _check_instant(field: str, value: object) -> datetime:
    try:
        return check_time(field, value).astimezone(UTC)
    except OverflowError:
        raise InvalidInput(field, f"must be in the years 1 to 9999 of UTC, got {value}") from None


def check_age(field: str, value: object) -> timedelta | None:
    """Return `value` when it is an age that messages may reach, or None."""
    return None if value is None else check_duration(field, value, low=timedelta(0), high=_LONGEST)


def check_duration(field: str, value: object, *, low: timedelta, high: timedelta) -> timedelta:
    """Return `value` when it is a timedelta from `low` to `high`."""
    if not isinstance(value, timedelta):
        raise InvalidInput(field, f"must be a timedelta, got {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidInput(field, f"must be between {low} and {high}, got {value}")
    return value


def check_flag(field: str, value: object) -> bool:
    """Return `value` when it is True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(field, f"must be True or False, got {type(value).__name__}")
    return value


def check_concurrency(field: str, value: object) -> str:
    """Return `value` when it says what messages of one key may do: "parallel", "exclusive" or "ordered"."""
    return check_choice(field, value, CONCURRENCIES)


def check_choice(field: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` when it is one of `choices`."""
    if value not in choices:
        raise InvalidInput(field, f"must be one of {', '.join(choices)}, got {value!r}")
    return str(value)


def check_role(field: str, value: object) -> str:
    """Return `value` when it can name a role of the server."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    size = len(encode_text(field, value))
    if not 1 <= size <= 63:
        raise InvalidInput(field, f"must have 1 to 63 bytes, got {size}")
    return value


def _or_none(check: Callable[[str, Any], object]) -> Callable[[str, Any], object]:
    return lambda field, value: None if value is None else check(field, value)


def _check_bounds(name: str, bounds: Any) -> None:
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise InvalidInput(f"limits.{name}", f"must be a pair of the least and the most, got {bounds!r}")
    for bound in bounds:
        _DELIVERY_CHECKS[name](f"limits.{name}", bound)
    if None not in bounds and bounds[0] > bounds[1]:
        raise InvalidInput(f"limits.{name}", f"must not begin above its end, got {bounds[0]} and {bounds[1]}")


def _check_tries(field: str, value: object) -> int:
    return check_integer(field, value, low=0, high=_MOST_TRIES)


def _check_pause(field: str, value: object) -> timedelta:
    return check_duration(field, value, low=timedelta(0), high=_LONGEST)


_DELIVERY_CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "concurrency": _or_none(check_concurrency),
    "timeout": _or_none(lambda field, value: check_duration(field, value, low=_SHORTEST_TIMEOUT, high=_LONGEST)),
    "max_retries": _or_none(_check_tries),
    "max_delays": _or_none(_check_tries),
    "retry_base": _or_none(_check_pause),
    "retry_exponent": _or_none(lambda field, value: check_number(field, value, low=1.0, high=10.0)),
    "retry_cap": _or_none(_check_pause),
}


def check_time(field: str, value: object) -> datetime:
    """Return `value` when it is an aware datetime."""
    if not isinstance(value, datetime):
        raise InvalidInput(field, f"must be a datetime, got {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidInput(field, f"must be an aware datetime, got the naive {value.isoformat()}")
    return value


def check_start(field: str, value: object) -> Start:
    """Return `value` when it is a position: "beginning", "head", an id of 0 or more, or an aware datetime."""
    if isinstance(value, datetime):
        return check_time(field, value)
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
