"""What a handler can ask about the message it is working on."""

from __future__ import annotations

from contextvars import ContextVar

from sqlstreams.codec import decode_headers
from sqlstreams.consume import ranges
from sqlstreams.consume.budget import Budget
from sqlstreams.model import Meta
from sqlstreams.statements import Columns

# (stream, group, row, budget): a tuple, because it is set once for every message.
current: ContextVar[tuple[str, str, Columns, Budget]] = ContextVar("sqlstreams.current")


def meta() -> Meta:
    """Return what is known about the message being handled; raises RuntimeError outside a handler."""
    try:
        stream, group, row, budget = current.get()
    except LookupError:
        raise RuntimeError("sqlstreams.meta() has an answer only inside a handler") from None
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
        failures=failures,
        delays=delays,
        timeout=budget.timeout,
        max_retries=budget.max_retries,
        max_delays=budget.max_delays,
    )
