"""What the demo's consumer groups do with a change: handlers as a user would write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

import sqlstreams
from sqlstreams_cli.demo.make_zone_changes import ZoneChange

_DAY = 86_400


class PerZone:
    """Counts changes by zone and by year. Any number may run at a time: the sums are the same in any order."""

    def __init__(self) -> None:
        self.changes: Counter[str] = Counter()
        self.years: Counter[int] = Counter()
        self.whole_days: list[ZoneChange] = []

    async def handle(self, change: ZoneChange) -> None:
        """Count one change."""
        self.changes[change.zone] += 1
        self.years[change.at.year] += 1
        if abs(change.offset_after - change.offset_before) == _DAY:
            self.whole_days.append(change)


class Audit:
    """Keeps a tally of deliveries, and sees whether each change begins at the offset where its zone was left.

    The second needs the order of the log, so this one handles one message at a time.
    """

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter()
        self.breaks = 0
        self._offsets: dict[str, int] = {}

    async def handle(self, change: ZoneChange) -> None:
        """Note one delivery."""
        self.deliveries[sqlstreams.meta().id] += 1
        self.breaks += self._offsets.get(change.zone, change.offset_before) != change.offset_before
        self._offsets[change.zone] = change.offset_after

    def verdict(self, produced: Iterable[int]) -> Verdict:
        """Compare what was delivered with the ids that the producer got back."""
        expected = set(produced)
        return Verdict(
            produced=len(expected),
            seen=len(expected & self.deliveries.keys()),
            twice=sum(count > 1 for count in self.deliveries.values()),
            foreign=len(self.deliveries.keys() - expected),
            breaks=self.breaks,
        )


class Flaky:
    """Calls a service that does not answer every time. Raising is all it takes: the message comes again."""

    async def handle(self, change: ZoneChange) -> None:
        """Fail the first attempt of one message in 200."""
        meta = sqlstreams.meta()
        if meta.attempt == 1 and meta.id % 200 == 0:
            raise TimeoutError(f"no answer about {change.zone}")


class Verdict(Struct, frozen=True):
    """What the audit found: of the produced messages how many were `seen`, and how many it got more than once.

    `foreign` counts messages that this run did not produce, `breaks` changes that did not begin at their zone's offset.
    """

    produced: int
    seen: int
    twice: int
    foreign: int
    breaks: int

    @property
    def lost(self) -> int:
        """How many produced messages were never delivered."""
        return self.produced - self.seen

    @property
    def passed(self) -> bool:
        """Whether every message came exactly once, unchanged and in order."""
        return (self.lost, self.twice, self.foreign, self.breaks) == (0, 0, 0, 0)
