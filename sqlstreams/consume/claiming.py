"""What the answer to a claim says: the range, its messages, and whether more may follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from sqlstreams.consume.ranges import ID
from sqlstreams.statements import Columns, Gated, Recorded


class Claimed(Struct, frozen=True):
    """The ids that a claim passed and the messages among them that are ours; `high` is None when it passed none.

    `at_hole` says that the id behind the cursor is missing although later ones can be seen, `is_full` that the claim
    ended because it was big enough.
    """

    low: int
    high: int | None
    rows: list[Columns]
    at_hole: bool
    is_full: bool


class SortedOut(Struct, frozen=True):
    """What of a claim may not just run: `gated` have keys that matter, `waiting` are not due, or were cancelled."""

    gated: list[Gated]
    waiting: list[Recorded]


ALL_MAY_RUN: Final = SortedOut([], [])
"""Nothing was to be sorted out."""


def read_claim(rows: list[Columns], *, limit: int) -> Claimed:
    """Read the answer to `claim`: messages end to end, one row of nulls for a hole, nothing at the end of the log."""
    if not rows or rows[0][ID] is None:
        return Claimed(0, None, [], at_hole=bool(rows), is_full=False)
    return Claimed(rows[0][ID], rows[-1][ID], rows, at_hole=False, is_full=len(rows) >= limit)


def read_bound_claim(rows: Sequence[Columns]) -> Claimed:
    """Read the answer to `claim_bound`: four columns about the claim before those of each message, if there is any."""
    low, high, seen, is_full = rows[0][:4]
    messages = [row[4:] for row in rows if row[4] is not None]
    return Claimed(low, high, messages, at_hole=seen and high is None, is_full=is_full)
