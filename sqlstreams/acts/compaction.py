"""What is asked of the database about the heads of keys, and about what they superseded."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlstreams import statements
from sqlstreams.acts.stream import get_stream
from sqlstreams.errors import InvalidInput
from sqlstreams.model import StoredMessage
from sqlstreams.statements import Act, Compacted, Family, ask

BEFORE_ALL: Final = Compacted(removed=0, is_full=True, last_key="", last_id=0)
"""Where a compaction begins."""
_LOOKED_AT: Final = 1_000


def read_head(schema: str, *, name: str, key: str) -> Act[StoredMessage | None]:
    """Read the message that counts of a key."""
    info = yield from get_stream(schema, name=name)
    found = yield from ask(statements.read_head(Family(schema, info.id), key=key))
    return found[0] if found else None


def read_history(schema: str, *, name: str, key: str, limit: int) -> Act[list[StoredMessage]]:
    """Read the messages of a key that take part in compaction, the newest first."""
    info = yield from get_stream(schema, name=name)
    return (yield from ask(statements.read_history(Family(schema, info.id), key=key, limit=limit)))


def compact(schema: str, *, name: str, older_than: timedelta | None, after: Compacted) -> Act[Compacted]:
    """Do one bounded step of a compaction, behind that before; without `older_than` by the stream's setting."""
    info = yield from get_stream(schema, name=name)
    age = info.compact_after if older_than is None else older_than
    if age is None:
        raise InvalidInput("older_than", f"must be given, since the stream {name!r} has no compact_after")
    step = statements.compact(
        Family(schema, info.id),
        older_than=age,
        after_key=after.last_key or "",
        after_id=after.last_id or 0,
        limit=_LOOKED_AT,
    )
    return (yield from ask(step))[0]
