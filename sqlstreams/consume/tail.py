"""Reading a log as it grows, without a group: in order, and never past an id that may still appear."""

from __future__ import annotations

from msgspec import Struct

from sqlstreams import acts
from sqlstreams.consume.holes import Barrier, lower_barrier, raise_barrier
from sqlstreams.model import StoredMessage
from sqlstreams.statements import Act, Family, ask, read_messages


class Place(Struct, frozen=True):
    """How far a reader has come: everything up to `read` was returned, and nothing can appear up to `settled`."""

    read: int
    settled: int = 0
    barrier: Barrier | None = None


def read_on(family: Family, place: Place, *, limit: int) -> Act[tuple[list[StoredMessage], Place]]:
    """Return the messages that can be read behind `place` now, and the next place."""
    seen = yield from ask(read_messages(family, from_id=place.read + 1, limit=limit))
    taken = [
        message
        for position, message in enumerate(seen, start=1)
        if message.id == place.read + position or message.id <= place.settled
    ]
    if taken:
        return taken, Place(read=taken[-1].id, settled=place.settled, barrier=place.barrier)
    if not seen:
        return [], place
    now = yield from acts.read_settled_head(family)
    barrier = raise_barrier(now) if place.barrier is None else lower_barrier(place.barrier, now)
    if barrier.is_settled:
        return [], Place(read=place.read, settled=barrier.head)
    return [], Place(read=place.read, settled=place.settled, barrier=barrier)
