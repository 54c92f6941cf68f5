"""What a handler can ask about the message it is working on."""

from __future__ import annotations

from contextvars import ContextVar

from sqlstreams.codec import decode_headers, decode_scheduled_at
from sqlstreams.consume import ranges
from sqlstreams.consume.budget import Budget
from sqlstreams.model import Meta
from sqlstreams.statements import Columns

# (stream, group, row, budget): a tuple, because it is set once for every message.
_Handled = tuple[str, str, Columns, Budget]

current: ContextVar[_Handled | list[_Handled]] = ContextVar("sqlstreams.current")
"""The message that is handled, or those of a batch."""


def meta() -> Meta:
    """Return what is known about the message being handled; raises RuntimeError outside a handler and in a batch."""
    handled = _current("meta")
    if isinstance(handled, list):
        raise RuntimeError("sqlstreams.meta() is of one message; in a batch, ask sqlstreams.metas()")
    return _meta(*handled)


def metas() -> list[Meta]:
    """Return what is known about each message of the batch being handled, in its order; as `meta` otherwise."""
    handled = _current("metas")
    return [_meta(*each) for each in handled] if isinstance(handled, list) else [_meta(*handled)]


def named() -> str:
    """Return which messages are handled, for people."""
    handled = current.get()
    if not isinstance(handled, list):
        return f"message {handled[2][ranges.ID]}"
    return f"messages {', '.join(str(each[2][ranges.ID]) for each in handled)}"


def _current(name: str) -> _Handled | list[_Handled]:
    try:
        return current.get()
    except LookupError:
        raise RuntimeError(f"sqlstreams.{name}() has an answer only inside a handler") from None


def _meta(stream: str, group: str, row: Columns, budget: Budget) -> Meta:
    failures, delays = ranges.attempts(row)
    return Meta(
        id=row[ranges.ID],
        stream=stream,
        group=group,
        key=row[ranges.KEY],
        routing_key=row[ranges.ROUTING_KEY],
        headers=decode_headers(row[ranges.OPTIONS]),
        schema_version=row[ranges.SCHEMA_VERSION],
        created_at=row[ranges.CREATED_AT],
        scheduled_at=decode_scheduled_at(row[ranges.OPTIONS]),
        failures=failures,
        delays=delays,
        timeout=budget.timeout,
        max_retries=budget.max_retries,
        max_delays=budget.max_delays,
    )
