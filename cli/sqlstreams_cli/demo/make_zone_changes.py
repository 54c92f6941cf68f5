"""Make zone_changes.ndjson, the demo's data set, from the installed tzdata package."""

import argparse
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

SHIPPED_FILE = Path(__file__).with_name("zone_changes.ndjson")
SHIPPED_TZDATA_VERSION = "2026.6"
SPAN_END = datetime(2030, 1, 1, tzinfo=UTC)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WEEK = 7 * 86_400


class ZoneChange(Struct, frozen=True):
    """One change of one zone's total UTC offset: a line of the data set.

    `at` is the first instant with the new offset. Offsets are seconds east of UTC. `abbreviation` and `is_dst` describe
    the time after the change.
    """

    at: datetime
    zone: str
    offset_before: int
    offset_after: int
    abbreviation: str
    is_dst: bool


def all_changes() -> list[ZoneChange]:
    """Find the changes of every zone before `SPAN_END`, ordered by instant, then zone."""
    zones = files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    changes = [change for zone in zones for change in changes_of(zone)]
    return sorted(changes, key=lambda change: (change.at, change.zone))


def changes_of(zone: str) -> Iterator[ZoneChange]:
    """Find the changes of one zone before `SPAN_END`, oldest first.

    A transition that leaves the total offset as it was (a new abbreviation, or standard time renamed to daylight time)
    is no change.
    """
    content = files("tzdata").joinpath("zoneinfo", *zone.split("/")).read_bytes()
    table = _parse(content)
    before = table.initial
    for transition in [*table.transitions, *_transitions_by_rule(content, table)]:
        at = _EPOCH + timedelta(seconds=transition.at)
        after = transition.after
        if after.offset != before.offset and at < SPAN_END:
            yield ZoneChange(at, zone, before.offset, after.offset, after.abbreviation, after.is_dst)
        before = after


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the data set to a file, the shipped one unless told otherwise."""
    parser = argparse.ArgumentParser(prog="python -m sqlstreams_cli.demo.make_zone_changes", description=__doc__)
    parser.add_argument("--output", type=Path, default=SHIPPED_FILE, metavar="FILE", help="default: the shipped file")
    output: Path = parser.parse_args(arguments).output
    changes = all_changes()
    output.write_bytes(msgspec.json.Encoder().encode_lines(changes))
    print(f"{len(changes)} changes written to {output}", file=sys.stderr)


class _LocalTime(Struct, frozen=True):
    offset: int
    is_dst: bool
    abbreviation: str


class _Transition(Struct, frozen=True):
    at: int
    after: _LocalTime


class _Table(Struct, frozen=True):
    initial: _LocalTime
    transitions: list[_Transition]
    rule: str


class _Header(Struct, frozen=True):
    ut_indicators: int
    standard_indicators: int
    leap_seconds: int
    transitions: int
    local_times: int
    abbreviation_bytes: int


def _parse(content: bytes) -> _Table:
    """Read the 64-bit block and the footer of a TZif file (RFC 9636, section 3)."""
    read = BytesIO(content).read
    skipped = _read_header(read(44))
    read(_block_size(skipped, time_size=4))
    header = _read_header(read(44))
    instants = struct.unpack(f">{header.transitions}q", read(8 * header.transitions))
    kinds = read(header.transitions)
    records = list(struct.iter_unpack(">i?B", read(6 * header.local_times)))
    names = read(header.abbreviation_bytes)
    read(12 * header.leap_seconds + header.standard_indicators + header.ut_indicators)
    local_times = [
        _LocalTime(offset, is_dst, names[start : names.index(0, start)].decode("ascii"))
        for offset, is_dst, start in records
    ]
    transitions = [_Transition(at, local_times[kind]) for at, kind in zip(instants, kinds, strict=True)]
    return _Table(local_times[0], transitions, rule=read().strip(b"\n").decode("ascii"))


def _read_header(header: bytes) -> _Header:
    magic, version, *counts = struct.unpack(">4sc15x6I", header)
    if magic != b"TZif" or version < b"2":
        raise ValueError(f"expected a TZif header of version 2 or later, got {header[:5]!r}")
    return _Header(*counts)


def _block_size(header: _Header, *, time_size: int) -> int:
    return (
        header.transitions * (time_size + 1)
        + header.local_times * 6
        + header.abbreviation_bytes
        + header.leap_seconds * (time_size + 4)
        + header.standard_indicators
        + header.ut_indicators
    )


def _transitions_by_rule(content: bytes, table: _Table) -> list[_Transition]:
    """Find what the footer's rule brings between the last listed transition and `SPAN_END`.

    A POSIX rule switches to daylight time once a year and back once a year. Looking once a week would miss both when
    they are less than a week apart, so a whole year without exactly two is refused.
    """
    if "," not in table.rule:
        return []
    zone = ZoneInfo.from_file(BytesIO(content))
    end = int(SPAN_END.timestamp())
    looks = [*range(table.transitions[-1].at, end, _WEEK), end]
    found = [
        _first_with_offset_of(zone, low, high)
        for low, high in pairwise(looks)
        if _offset(zone, low) != _offset(zone, high)
    ]
    _refuse_year_without_two(found, first=_year(looks[0]) + 1, rule=table.rule)
    return found


def _refuse_year_without_two(found: list[_Transition], *, first: int, rule: str) -> None:
    per_year = Counter(_year(transition.at) for transition in found)
    for year in range(first, SPAN_END.year):
        if per_year[year] != 2:
            raise ValueError(f"rule {rule!r} should switch twice in {year}, found {per_year[year]}")


def _first_with_offset_of(zone: ZoneInfo, low: int, high: int) -> _Transition:
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == _offset(zone, low):
            low = middle
        else:
            high = middle
    local = datetime.fromtimestamp(high, zone)
    return _Transition(high, _LocalTime(_offset(zone, high), bool(local.dst()), local.tzname() or ""))


def _year(at: int) -> int:
    return datetime.fromtimestamp(at, UTC).year


def _offset(zone: ZoneInfo, at: int) -> int:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    assert offset is not None  # a ZoneInfo always has one; the type says otherwise
    return int(offset.total_seconds())


if __name__ == "__main__":
    main()
