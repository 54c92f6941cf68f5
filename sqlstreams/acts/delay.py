"""What is asked of the database about messages that were produced for later."""

from __future__ import annotations

from msgspec import Struct

from sqlstreams import statements
from sqlstreams.acts.group import find_group
from sqlstreams.acts.stream import get_stream
from sqlstreams.errors import InvalidInput, NotFound
from sqlstreams.model import Cancellation, WaitingMessage
from sqlstreams.statements import Act, CancelledDelivery, Family, ask


class Cancelled(Struct, frozen=True):
    """What a cancellation came to in each group, and where the stream's tables are."""

    family: Family
    deliveries: list[CancelledDelivery]

    @property
    def answer(self) -> list[Cancellation]:
        """What the caller is told."""
        return [Cancellation(each.group, each.outcome) for each in self.deliveries]

    @property
    def kept_keys(self) -> bool:
        """Whether other messages may have waited behind it."""
        return any(each.key is not None for each in self.deliveries)


def cancel_message(schema: str, *, name: str, message_id: int) -> Act[Cancelled]:
    """Have a message that was produced for later not be delivered, wherever that has not begun."""
    info = yield from get_stream(schema, name=name)
    family = Family(schema, info.id)
    # A statement of its own, and first: what the next one sees cannot be claimed with the message as it was.
    marked = yield from ask(statements.mark_cancelled(family, message_id=message_id))
    if not marked:
        yield from _refuse(family, name, message_id)
    return Cancelled(family, (yield from ask(statements.cancel_deliveries(family, message_id=message_id))))


def free_cancelled(cancelled: Cancelled) -> Act[None]:
    """Let messages go on that waited behind a cancelled one. In a transaction behind that, as `free_waiting`."""
    for each in cancelled.deliveries:
        if each.key is not None:
            yield from ask(statements.promote(cancelled.family, group_id=each.group_id, keys=[each.key]))


def list_waiting(schema: str, *, stream: str, name: str | None, limit: int) -> Act[list[WaitingMessage]]:
    """Read the messages that wait until they are due, of one group or of all groups of a stream."""
    if name is None:
        info = yield from get_stream(schema, name=stream)
        family, of_group = Family(schema, info.id), None
    else:
        family, of_group = yield from find_group(schema, stream, name)
    return (yield from ask(statements.list_waiting(family, of_group=of_group, limit=limit)))


def _refuse(family: Family, name: str, message_id: int) -> Act[None]:
    found = yield from ask(statements.read_messages(family, from_id=message_id, limit=1))
    if not found or found[0].id != message_id:
        raise NotFound("message", f"{message_id} on {name}")
    raise InvalidInput(
        "message_id",
        f"must be that of a message produced with deliver_at or delay: {message_id} was to be delivered at once",
    )
