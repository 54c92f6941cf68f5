"""When a missing id may be passed: the reasoning behind "no message is skipped", without a database.

Ids are handed out in order and become visible out of order. Whoever took an id held RowExclusiveLock on the log before
it took it, and keeps the lock until its rows are visible or gone. So once every holder that was seen *after* some head
was read has ended, nothing can appear at or below that head any more.
"""

from __future__ import annotations

from msgspec import Struct

from sqlstreams.model import Holder
from sqlstreams.statements import SettledHead


class Barrier(Struct, frozen=True):
    """A head, and the transactions that could still fill a hole below it."""

    head: int
    holders: tuple[Holder, ...]

    @property
    def is_settled(self) -> bool:
        """Whether nothing can appear at or below the head any more."""
        return not self.holders


def raise_barrier(seen: SettledHead) -> Barrier:
    """Begin to wait: for everyone who held the log when this head had been read."""
    return Barrier(head=seen.head, holders=seen.holders)


def lower_barrier(barrier: Barrier, now: SettledHead) -> Barrier:
    """Drop the holders that ended; those that came later do not count.

    A session that prepares its transaction hands its lock to the prepared transaction, which then shows under another
    name. As long as any session of the barrier was left at the last look, a prepared transaction that is new may be
    one of them and has to be waited for.
    """
    waited_for = {holder.transaction for holder in barrier.holders}
    any_session = any(not holder.prepared for holder in barrier.holders)
    left = tuple(
        holder for holder in now.holders if holder.transaction in waited_for or (holder.prepared and any_session)
    )
    return Barrier(head=barrier.head, holders=left)
