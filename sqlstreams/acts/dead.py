"""What is asked of the database about dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from sqlstreams import statements
from sqlstreams.acts.group import find_group
from sqlstreams.model import (
    DeadLetter,
    DeadLetterDetail,
    DeliveryRecord,
    Redriven,
)
from sqlstreams.options import MAX_ID, DeadFilter
from sqlstreams.statements import Act, Family, ask

_DEAD_AT_A_TIME: Final = 1_000


class Moved(Struct, frozen=True):
    """How many dead letters one batch moved, and the id behind which the next begins (None: it was the last)."""

    messages: int
    next_after: int | None
    first_due: datetime | None = None
    last_due: datetime | None = None

    def behind(self, earlier: Redriven) -> Redriven:
        """Return what this batch and the earlier ones are together."""
        return Redriven(
            messages=earlier.messages + self.messages,
            first_due=earlier.first_due or self.first_due,
            last_due=self.last_due or earlier.last_due,
        )


def list_dead_letters(
    schema: str, *, stream: str, name: str, meant: DeadFilter, after: int, limit: int
) -> Act[list[DeadLetter]]:
    """Read dead letters of a group in the order of their ids, from behind one id on."""
    family, group_id = yield from find_group(schema, stream, name)
    found = yield from ask(
        statements.find_dead_letters(family, group_id=group_id, meant=meant, after=after, limit=limit)
    )
    ids = [each.id for each in found]
    return (yield from ask(statements.read_dead_letters(family, group_id=group_id, message_ids=ids)))


def get_dead_letter(schema: str, *, stream: str, name: str, message_id: int) -> Act[DeadLetterDetail | None]:
    """Read one dead letter with its message and its deliveries."""
    family, group_id = yield from find_group(schema, stream, name)
    letters = yield from ask(statements.read_dead_letters(family, group_id=group_id, message_ids=[message_id]))
    if not letters:
        return None
    messages = yield from ask(statements.read_messages(family, from_id=message_id, limit=1))
    deliveries = yield from ask(
        statements.list_deliveries(family, group_id=group_id, message_id=message_id, limit=MAX_ID)
    )
    message = messages[0] if messages and messages[0].id == message_id else None
    return DeadLetterDetail(letter=letters[0], message=message, deliveries=tuple(deliveries))


def list_deliveries(schema: str, *, stream: str, name: str, message_id: int, limit: int) -> Act[list[DeliveryRecord]]:
    """Read what the history of a group has of one message."""
    family, group_id = yield from find_group(schema, stream, name)
    return (yield from ask(statements.list_deliveries(family, group_id=group_id, message_id=message_id, limit=limit)))


def redrive_dead_letters(
    schema: str, *, stream: str, name: str, meant: DeadFilter, after: int, rate: float | None
) -> Act[Moved]:
    """Have the next batch of dead letters delivered again."""
    family, group_id = yield from find_group(schema, stream, name)
    ids, next_after = yield from _next_dead(family, group_id, meant, after)
    redriven = yield from ask(statements.redrive_dead_letters(family, group_id=group_id, message_ids=ids, rate=rate))
    return Moved(redriven[0].messages, next_after, redriven[0].first_due, redriven[0].last_due)


def discard_dead_letters(
    schema: str, *, stream: str, name: str, meant: DeadFilter, after: int, reason: str
) -> Act[Moved]:
    """Give up the next batch of dead letters."""
    family, group_id = yield from find_group(schema, stream, name)
    ids, next_after = yield from _next_dead(family, group_id, meant, after)
    discarded = yield from ask(
        statements.discard_dead_letters(family, group_id=group_id, message_ids=ids, reason=reason)
    )
    return Moved(len(discarded), next_after)


def _next_dead(family: Family, group_id: int, meant: DeadFilter, after: int) -> Act[tuple[list[int], int | None]]:
    # What retention is about to remove must not wait for a delivery; and it removes nothing that we make wait.
    kept_from = (yield from ask(statements.hold_kept(family.schema, stream_id=family.stream)))[0].id
    after = max(after, kept_from - 1)
    # Ids only grow from batch to batch, so what dies again meanwhile is not met a second time.
    found = yield from ask(
        statements.find_dead_letters(family, group_id=group_id, meant=meant, after=after, limit=_DEAD_AT_A_TIME)
    )
    ids = [each.id for each in found]
    asked_for = meant.ids_behind(after, limit=_DEAD_AT_A_TIME)
    if asked_for is None:
        return ids, ids[-1] if len(ids) == _DEAD_AT_A_TIME else None
    return ids, asked_for[-1] if len(asked_for) == _DEAD_AT_A_TIME else None
