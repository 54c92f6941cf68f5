"""What a run of the demo has found, as values."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from sqlstreams_cli.demo.handlers import PerZone, Verdict

_RANKS = 5


class Tally(Struct, frozen=True):
    """What one group did: deliveries that succeeded, that failed, that were retries; messages dead; and how fast."""

    name: str
    purpose: str
    handled: int
    failed: int
    retried: int
    dead: int
    seconds: float
    per_second: int


class Rank(Struct, frozen=True):
    """The zones with the same number of changes, by name."""

    changes: int
    zones: list[str]


class Findings(Struct, frozen=True):
    """What per-zone counted. `whole_days` are the changes by exactly 24 hours, across the date line."""

    zones: int
    most_changes: list[Rank]
    busiest_years: list[int]
    busiest_year_changes: int
    whole_days: int
    last_whole_day: str | None


class Report(Struct, frozen=True):
    """A finished run."""

    schema: str
    stream: str
    produced: int
    produce_seconds: float
    produced_per_second: int
    seconds: float
    groups: list[Tally]
    findings: Findings
    audit: Verdict
    audit_passed: bool
    next_commands: list[str]


def find(counted: PerZone) -> Findings:
    """Draw the results from what per-zone counted."""
    most = max(counted.years.values(), default=0)
    last = max(counted.whole_days, key=lambda change: (change.at, change.zone), default=None)
    return Findings(
        zones=len(counted.changes),
        most_changes=_ranks(counted),
        busiest_years=sorted(year for year, changes in counted.years.items() if changes == most),
        busiest_year_changes=most,
        whole_days=len(counted.whole_days),
        last_whole_day=None if last is None else f"{last.zone} on {last.at:%Y-%m-%d}",
    )


def per_second(count: int, seconds: float) -> int:
    """Return a rate in whole messages."""
    return round(count / seconds) if seconds > 0 else 0


def _ranks(counted: PerZone) -> list[Rank]:
    zones_with: dict[int, list[str]] = defaultdict(list)
    for zone, changes in counted.changes.items():
        zones_with[changes].append(zone)
    return [Rank(changes, sorted(zones_with[changes])) for changes in sorted(zones_with, reverse=True)[:_RANKS]]
