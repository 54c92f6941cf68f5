"""What is kept of the changes of schedules, and who is told of them."""

from __future__ import annotations

import msgspec

from sqlstreams import statements
from sqlstreams.model import ScheduleInfo, StreamInfo
from sqlstreams.names import channel
from sqlstreams.statements import Act, ask

__all__ = ["end_schedules", "log_schedule"]


def log_schedule(schema: str, info: ScheduleInfo, action: str) -> Act[None]:
    """Keep what a schedule is from now on, and tell whoever fires schedules."""
    config = msgspec.json.encode({**msgspec.structs.asdict(info), "payload": msgspec.Raw(info.payload)})
    yield from ask(statements.log_schedule(schema, schedule_id=info.id, name=info.name, action=action, config=config))
    yield from ask(statements.announce_schedules(schema, channel=channel(schema)))


def end_schedules(schema: str, stream: StreamInfo) -> Act[None]:
    """Lock the schedules of a stream that is about to be destroyed, and note their end."""
    for locked in (yield from ask(statements.lock_schedules_of_stream(schema, stream_id=stream.id))):
        yield from log_schedule(schema, locked.info, "destroyed")
