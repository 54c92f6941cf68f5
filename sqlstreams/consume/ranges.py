"""The work a process holds: leased ranges of the log, and rows of the exception queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from sqlstreams.statements import Columns

# Where the columns of claim, take_over and claim_exceptions stand in a row.
ID, PAYLOAD, KEY, ROUTING_KEY, OPTIONS, SCHEMA_VERSION, CREATED_AT, RANK = range(8)
FAILURES, DELAYS, CONCURRENCY, ALONE = range(8, 12)

_NONE: Final[Mapping[int, Keyed]] = MappingProxyType({})
_NO_HEADS: Final[Mapping[int, Head]] = MappingProxyType({})


class Keyed(Struct, frozen=True):
    """A message whose key matters: one of them at a time, and in order when it is ordered."""

    key: str
    ordered: bool

    @property
    def concurrency(self) -> str:
        """The word that users and the database have for it."""
        return "ordered" if self.ordered else "exclusive"


class Head:
    """The greatest message of a key that we know of: its schema version, rank and id."""

    __slots__ = ("__weakref__", "place")

    def __init__(self) -> None:
        self.place = (0, 0, 0)

    def rise(self, schema_version: int, rank: int, message_id: int) -> None:
        """Take note of a head that was read."""
        self.place = max(self.place, (schema_version, rank, message_id))


class Work:
    """Messages under one token, handed out one by one.

    `keyed` names those whose key matters, by id, and `heads` has the heads of the keys of those that take part in
    compaction. `alone` says that each of them runs with nothing beside it, `lost` that the token proves nothing any
    more.
    """

    __slots__ = ("alone", "has_suspects", "heads", "keyed", "lost", "next", "rows", "taken_back", "token")

    def __init__(
        self,
        token: UUID,
        rows: Sequence[Columns],
        *,
        keyed: Mapping[int, Keyed],
        heads: Mapping[int, Head],
        alone: bool = False,
    ) -> None:
        self.token = token
        self.rows: Final = rows
        self.keyed: Final = keyed
        self.heads: Final = heads
        self.alone: Final = alone
        self.has_suspects = alone
        self.next = 0
        self.taken_back: set[int] = set()
        self.lost = False

    def is_suspect(self, index: int) -> bool:
        """Say whether the message at `index` may be one that kills its process."""
        return self.alone

    def is_superseded(self, index: int) -> bool:
        """Say whether a message of the same key counts more than the one at `index`, as far as we know."""
        row = self.rows[index]
        head = self.heads.get(row[ID])
        return head is not None and head.place > (row[SCHEMA_VERSION], row[RANK], row[ID])

    @property
    def unstarted(self) -> int:
        """How many messages no handler has begun."""
        return len(self.rows) - self.next


class Range(Work):
    """A leased range of the log. Which of its messages are done is known here and checkpointed now and then."""

    __slots__ = ("_done", "_left", "_running", "high", "low")

    def __init__(
        self,
        token: UUID,
        rows: Sequence[Columns],
        *,
        low: int,
        high: int,
        keyed: Mapping[int, Keyed] = _NONE,
        heads: Mapping[int, Head] = _NO_HEADS,
        alone: bool = False,
    ) -> None:
        super().__init__(token, rows, keyed=keyed, heads=heads, alone=alone)
        self.low = low
        self.high = high
        self._done = bytearray(len(rows))
        self._left = self._running = len(rows)

    def end_one(self) -> bool:
        """Note that one message was handled and is done when that is recorded; say whether it was the last."""
        self._running -= 1
        return self._running == 0

    def finish_one(self, index: int) -> bool:
        """Note that the message at `index` needs nothing more from this range; say whether it was the last one."""
        if not self._done[index]:
            self._done[index] = 1
            self._left -= 1
        return self._left == 0

    def progress(self) -> tuple[int, list[int]]:
        """Return the id up to which everything is done, and the ids done beyond it. Any thread may ask."""
        first_open = self._done.find(0)
        if first_open < 0:
            return self.high, []
        resolved = self.rows[first_open][ID] - 1
        done = [self.rows[index][ID] for index in range(first_open, len(self.rows)) if self._done[index]]
        return resolved, done


class Retries(Work):
    """Rows of the exception queue; each is given back on its own."""

    __slots__ = ("_left",)

    def __init__(self, token: UUID, rows: Sequence[Columns], *, heads: Mapping[int, Head] = _NO_HEADS) -> None:
        keyed = {
            row[ID]: Keyed(row[KEY], ordered=row[CONCURRENCY] == "ordered")
            for row in rows
            if row[CONCURRENCY] is not None
        }
        super().__init__(token, rows, keyed=keyed, heads=heads)
        self.has_suspects = any(row[ALONE] for row in rows)
        self._left = len(rows)

    def is_suspect(self, index: int) -> bool:
        """Say whether the row's process died before, while the row waited in it."""
        return bool(self.rows[index][ALONE])

    def finish_one(self) -> bool:
        """Note that one row was given back; say whether it was the last one."""
        self._left -= 1
        return self._left == 0


def attempts(row: Columns) -> tuple[Any, Any]:
    """Return how often a row's message failed and was delayed before; a fresh message has no such columns."""
    return (row[FAILURES], row[DELAYS]) if len(row) > FAILURES else (0, 0)


def is_for_later(row: Columns) -> bool:
    """Say whether a row's message was produced for later; headers may hold the words too, and cost only a look."""
    options = row[OPTIONS]
    return options is not None and (b'"deliver_at":' in options or b'"delay":' in options)


def asks_for_keys(row: Columns) -> bool:
    """Say whether a row's message has a concurrency of its own; headers may hold the word too, and cost only a look."""
    return row[OPTIONS] is not None and b'"concurrency":' in row[OPTIONS]
