"""How many messages to claim at a time: enough to keep the handlers busy, no more than others could do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlstreams.consume.ranges import PAYLOAD
from sqlstreams.statements import Columns

_MOST: Final = 1_000
_MOST_BYTES: Final = 8 * 1024 * 1024
_TOO_SOON: Final = 0.5
_TOO_LATE: Final = 2.0


class Pace:
    """The size of the next claim. It doubles while claims are used up fast and halves while they last long.

    A `prefetch` fixes it. Payloads bound it either way, so that large ones do not fill the memory.
    """

    def __init__(self, *, concurrency: int, prefetch: int | None) -> None:
        self._fixed = prefetch
        self._size = prefetch or min(2 * concurrency, 100)
        self._least = min(concurrency, self._size)
        self._claimed_at: float | None = None
        self.limit = self._size
        """How many messages to claim now."""

    @property
    def low_water(self) -> int:
        """Fetch more when fewer than this many messages wait to be started.

        One whole claim is fetched while another is handled; half a claim ahead takes a tenth longer
        (docs/benchmarks.md).
        """
        return self.limit

    def claimed(self, rows: Sequence[Columns], *, now: float) -> None:
        """Take note of a claim that was answered at `now` (seconds on any steady clock)."""
        if self._fixed is None and self._claimed_at is not None and len(rows) >= self.limit:
            lasted = now - self._claimed_at
            if lasted < _TOO_SOON:
                self._size = min(self._size * 2, _MOST)
            elif lasted > _TOO_LATE:
                self._size = max(self._size // 2, self._least)
        self._claimed_at = now
        mean_bytes = sum(len(row[PAYLOAD]) for row in rows) / len(rows)
        self.limit = max(1, min(self._size, int(_MOST_BYTES / mean_bytes)))
