"""What is kept of the changes of deadlines, and who is told of them."""

from __future__ import annotations

import msgspec

from sqlstreams import statements
from sqlstreams.model import DeadlineInfo, StreamInfo
from sqlstreams.names import channel
from sqlstreams.statements import Act, ask

__all__ = ["end_deadlines", "log_deadline"]


def log_deadline(schema: str, info: DeadlineInfo, action: str) -> Act[None]:
    """Keep what a deadline is from now on, and tell whoever moves rows."""
    config = msgspec.json.encode(info)
    yield from ask(statements.log_deadline(schema, deadline_id=info.id, name=info.name, action=action, config=config))
    yield from ask(statements.announce_deadlines(schema, channel=channel(schema)))


def end_deadlines(schema: str, stream: StreamInfo) -> Act[None]:
    """Lock the deadlines of a stream that is about to be destroyed, and note their end."""
    for known in (yield from ask(statements.list_deadlines(schema, stream_id=stream.id))):
        for locked in (yield from ask(statements.lock_deadline(schema, name=known.info.name))):
            yield from log_deadline(schema, locked.info, "destroyed")
