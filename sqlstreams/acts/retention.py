"""What is asked of the database about what a stream keeps and what it lets go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from sqlstreams import statements
from sqlstreams.acts.stream import find_place, get_stream, lock_stream, read_kept
from sqlstreams.model import (
    Expiry,
    LostMessages,
    StreamInfo,
)
from sqlstreams.statements import Act, Deleted, Family, Kept, Lost, LowestHead, Partition, Unread, ask

ROWS_AT_A_TIME: Final = 5_000
_REASONS_SHOWN: Final = 3


class Reach(Struct, frozen=True):
    """How far age, open transactions and compaction let retention go, and the partitions that this is judged by."""

    old_through: int
    partitions: tuple[Partition, ...]
    head: LowestHead | None = None

    @property
    def kept_from(self) -> int:
        """The first id that stays, if no group is asked."""
        end = self.old_through + 1
        return self.below(end if self.head is None else min(end, self.head.id))

    @property
    def reasons(self) -> list[str]:
        """What keeps messages that are old enough, besides the groups."""
        reasons = []
        if self.written is not None:
            reasons.append(f"an open transaction wrote into the partition from id {self.written} on")
        if self.head is not None and self.head.id <= self.old_through:
            reasons.append(f"message {self.head.id} is what counts for key {self.head.key!r}")
        return reasons

    @property
    def written(self) -> int | None:
        """The first id of the lowest full partition that an open transaction wrote into."""
        return next((part.first_id for part in self._full() if part.written), None)

    def below(self, end: int) -> int:
        """Return where that cut lies which removes as much as can be of the ids below `end`.

        A partition that is full goes whole, so there it is an edge; the one that is being written is cut anywhere.
        """
        for part in self._full():
            if part.written or part.edge > end:
                return min(part.first_id, end)
        return end

    def droppable(self, kept_from: int) -> list[Partition]:
        """Return the partitions of which nothing is kept, the lowest first."""
        return [part for part in self._full() if part.edge <= kept_from]

    def first_of(self, kept_from: int) -> int:
        """Return the first id of the partition that is cut."""
        return max((part.first_id for part in self.partitions if part.first_id <= kept_from), default=0)

    def _full(self) -> list[Partition]:
        # Never the last one: its edge is where the log goes on.
        return [part for part in self.partitions[:-1] if part.edge <= part.taken]


class Declared(Struct, frozen=True):
    """The first id that is kept from now on, why it is no higher one, and what groups lost by it."""

    family: Family
    kept_from: int
    held_back_by: tuple[str, ...]
    lost: tuple[LostMessages, ...] = ()
    lost_by: tuple[int, ...] = ()


def declare_expired(schema: str, *, name: str) -> Act[Declared]:
    """Say from now on that everything is gone that may go, before any of it is removed.

    Rewinds, skips and claims of the stream's groups wait while theirs is looked at, and so do new groups and redriven
    dead letters: each comes before this and is seen, or finds the first id that is kept.
    """
    yield from ask(statements.bound_waiting(schema))
    info = yield from lock_stream(schema, name)
    family = Family(schema, info.id)
    kept = yield from read_kept(family)
    reach = yield from _find_reach(family, kept)
    if reach.kept_from <= kept.kept_from:
        _, held_back_by = _cut(info, reach, (yield from _list_unread(family, reach)))
        return Declared(family, kept.kept_from, held_back_by)
    yield from ask(statements.lock_cursors(schema, stream_id=info.id))
    unread = yield from _list_unread(family, reach)
    kept_from, held_back_by = _cut(info, reach, unread)
    if kept_from <= kept.kept_from:
        return Declared(family, kept.kept_from, held_back_by)
    lost = yield from _lose(family, unread, kept_from)
    moved = statements.move_kept(schema, stream_id=info.id, kept_from=kept_from, expired_before=_expired_before(kept))
    yield from ask(moved)
    return Declared(family, kept_from, held_back_by, lost, tuple(each.group_id for each in unread))


def preview_expiry(schema: str, *, name: str) -> Act[Expiry]:
    """Say what retention would remove of a stream now."""
    info = yield from get_stream(schema, name=name)
    family = Family(schema, info.id)
    kept = yield from read_kept(family)
    reach = yield from _find_reach(family, kept)
    unread = yield from _list_unread(family, reach)
    kept_from, held_back_by = _cut(info, reach, unread)
    kept_from = max(kept_from, kept.kept_from)
    first_id = reach.first_of(kept_from)
    expired = (yield from ask(statements.measure_expired(family, first_id=first_id, kept_from=kept_from)))[0]
    lost = []
    for each in _before(unread, kept_from):
        counted = (yield from ask(statements.measure_lost(family, group_id=each.group_id, kept_from=kept_from)))[0]
        lost.extend(_told(each, counted))
    return Expiry(
        kept_from=kept_from,
        partitions=len(reach.droppable(kept_from)),
        messages=expired.messages,
        exceptions=expired.exceptions,
        deliveries=expired.deliveries,
        lost=tuple(lost),
        held_back_by=held_back_by,
    )


def kept_from(schema: str, *, name: str) -> Act[int]:
    """Read the first id that a stream keeps."""
    info = yield from get_stream(schema, name=name)
    return (yield from read_kept(Family(schema, info.id))).kept_from


def delete_exceptions_below(family: Family, *, kept_from: int) -> Act[Deleted]:
    """Remove the next exception rows of messages that are gone."""
    statement = statements.delete_expired_exceptions(family, kept_from=kept_from, limit=ROWS_AT_A_TIME)
    return (yield from ask(statement))[0]


def delete_deliveries_below(family: Family, *, kept_from: int) -> Act[Deleted]:
    """Remove the next entries of the history of messages that are gone."""
    statement = statements.delete_expired_deliveries(family, kept_from=kept_from, limit=ROWS_AT_A_TIME)
    return (yield from ask(statement))[0]


def delete_messages_below(family: Family, *, kept_from: int) -> Act[Deleted]:
    """Remove the next messages of the partition in which the first id lies that is kept."""
    partitions = yield from ask(statements.list_partitions(family))
    first_id = Reach(0, tuple(partitions)).first_of(kept_from)
    statement = statements.delete_expired_messages(family, first_id=first_id, kept_from=kept_from, limit=ROWS_AT_A_TIME)
    return (yield from ask(statement))[0]


def list_droppable(family: Family, *, kept_from: int) -> Act[list[Partition]]:
    """Read the partitions of which nothing is kept and into which nobody writes, the lowest first."""
    partitions = yield from ask(statements.list_partitions(family))
    found = []
    for part in Reach(0, tuple(partitions)).droppable(kept_from):
        if part.written:
            break
        found.append(part)
    return found


def drop_detached(family: Family, *, kept_from: int) -> Act[int]:
    """Remove the partitions that were detached because nothing of them is kept."""
    partitions = yield from ask(statements.list_partitions(family))
    lowest = min((part.first_id for part in partitions), default=0)
    below = lowest if lowest <= kept_from else 0
    return (yield from ask(statements.drop_detached(family, below=below)))[0].tables


def describe_log_users(family: Family) -> Act[str]:
    """Say whose transactions use a log."""
    return ", ".join(str(user) for user in (yield from ask(statements.list_log_users(family))))


def _find_reach(family: Family, kept: Kept) -> Act[Reach]:
    old_through = kept.kept_from - 1
    if kept.expires_before is not None:
        # A message that is still uncommitted counts as to come there, however old it is.
        old_through = yield from find_place(family, kept.expires_before)
    partitions = yield from ask(statements.list_partitions(family))
    heads = yield from ask(statements.find_lowest_head(family))
    return Reach(old_through, tuple(partitions), heads[0] if heads else None)


def _list_unread(family: Family, reach: Reach) -> Act[list[Unread]]:
    unread = yield from ask(statements.list_unread(family))
    return [each for each in unread if each.first_id <= reach.old_through]


def _cut(info: StreamInfo, reach: Reach, unread: Sequence[Unread]) -> tuple[int, tuple[str, ...]]:
    if not info.keep_unread or not unread:
        return reach.kept_from, tuple(reach.reasons)
    reasons = [*reach.reasons, *(each.reason for each in unread[:_REASONS_SHOWN])]
    return min(reach.kept_from, reach.below(unread[0].first_id)), tuple(reasons)


def _lose(family: Family, unread: Sequence[Unread], kept_from: int) -> Act[tuple[LostMessages, ...]]:
    lost = []
    for each in _before(unread, kept_from):
        lost.extend((yield from _lose_of_group(family, each, kept_from)))
    return tuple(lost)


def _lose_of_group(family: Family, unread: Unread, kept_from: int) -> Act[list[LostMessages]]:
    schema, group_id, position = family.schema, unread.group_id, kept_from - 1
    yield from ask(statements.lock_leases(schema, group_id=group_id))
    counted = (yield from ask(statements.measure_lost(family, group_id=group_id, kept_from=kept_from)))[0]
    taken = yield from ask(statements.delete_leases_through(schema, group_id=group_id, position=position))
    yield from ask(statements.resolve_leases_through(schema, group_id=group_id, position=position))
    if counted.claimed < position:
        yield from ask(statements.move_cursor(schema, group_id=group_id, position=position))
    if counted.messages:
        yield from ask(
            statements.log_position(
                schema,
                group_id=group_id,
                action="lost",
                claimed=counted.claimed,
                position=max(counted.claimed, position),
                messages=counted.messages,
                first_id=counted.first_id,
                last_id=counted.last_id,
                leases=len(taken),
                exceptions=counted.waiting,
            )
        )
    return _told(unread, counted)


def _told(unread: Unread, counted: Lost) -> list[LostMessages]:
    if counted.first_id is None or counted.last_id is None:
        return []
    return [LostMessages(unread.group, counted.messages, counted.first_id, counted.last_id)]


def _before(unread: Sequence[Unread], kept_from: int) -> list[Unread]:
    return [each for each in unread if each.first_id < kept_from]


def _expired_before(kept: Kept) -> datetime | None:
    return max((at for at in (kept.expired_before, kept.expires_before) if at is not None), default=None)
