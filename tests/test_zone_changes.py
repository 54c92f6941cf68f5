"""The demo's data set of UTC-offset changes is complete, true, and made by the generator beside it."""

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from sqlstreams_cli.demo import make_zone_changes
from sqlstreams_cli.demo.make_zone_changes import (
    SHIPPED_FILE,
    SHIPPED_TZDATA_VERSION,
    SPAN_END,
    ZoneChange,
    all_changes,
    changes_of,
    main,
)

COUNT = 36_734
ONE_SECOND = timedelta(seconds=1)
SETTLED = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return SHIPPED_FILE.read_bytes().splitlines()


@pytest.fixture(scope="module")
def changes(lines: list[bytes]) -> list[ZoneChange]:
    return [msgspec.json.decode(line, type=ZoneChange) for line in lines]


def of_zone(changes: list[ZoneChange], zone: str) -> list[ZoneChange]:
    return [change for change in changes if change.zone == zone]


def test_every_line_is_one_change_and_nothing_else(lines: list[bytes], changes: list[ZoneChange]) -> None:
    assert [msgspec.json.encode(change) for change in changes] == lines


def test_the_file_has_the_size_and_source_its_readme_states(lines: list[bytes], changes: list[ZoneChange]) -> None:
    readme = SHIPPED_FILE.with_name("README.md").read_text(encoding="utf-8")

    assert len(lines) == COUNT
    assert f"{COUNT:,} lines" in readme
    assert f"{len({change.zone for change in changes})} of them have lines" in readme
    assert f"`tzdata` {SHIPPED_TZDATA_VERSION} " in readme


def test_the_file_is_at_most_five_megabytes() -> None:
    assert SHIPPED_FILE.stat().st_size <= 5_000_000


def test_changes_are_ordered_by_instant_then_zone_and_none_is_there_twice(changes: list[ZoneChange]) -> None:
    assert all((one.at, one.zone) < (next_.at, next_.zone) for one, next_ in pairwise(changes))


def test_every_change_lies_in_the_stated_span(changes: list[ZoneChange]) -> None:
    assert changes[0].at.year == 1844
    assert changes[-1].at < SPAN_END


def test_every_line_changes_the_offset(changes: list[ZoneChange]) -> None:
    assert [change for change in changes if change.offset_before == change.offset_after] == []


def test_a_zone_goes_on_from_the_offset_its_last_change_left(changes: list[ZoneChange]) -> None:
    offsets: dict[str, int] = {}
    for change in changes:
        assert offsets.get(change.zone, change.offset_before) == change.offset_before, change
        offsets[change.zone] = change.offset_after


def test_only_utc_its_aliases_and_fixed_offsets_have_no_change() -> None:
    names = files("tzdata").joinpath("zones").read_text(encoding="ascii").split()

    unchanged = set(names) - {change.zone for change in all_changes()}

    fixed = {"Factory", "GMT", "GMT0", "GMT+0", "GMT-0", "Greenwich", "UCT", "UTC", "Universal", "Zulu"}
    assert {zone for zone in unchanged if not zone.startswith("Etc/")} == fixed


@pytest.mark.parametrize(
    ("zone", "at", "before", "after", "abbreviation", "is_dst"),
    [
        ("America/New_York", "2007-03-11T07:00:00Z", -18000, -14400, "EDT", True),
        ("US/Eastern", "2007-03-11T07:00:00Z", -18000, -14400, "EDT", True),
        ("America/New_York", "1883-11-18T17:00:00Z", -17762, -18000, "EST", False),
        ("Europe/Berlin", "1996-10-27T01:00:00Z", 7200, 3600, "CET", False),
        ("Europe/Dublin", "1996-10-27T01:00:00Z", 3600, 0, "GMT", True),
        ("Asia/Pyongyang", "2015-08-14T15:00:00Z", 32400, 30600, "KST", False),
        ("Asia/Pyongyang", "2018-05-04T15:00:00Z", 30600, 32400, "KST", False),
        ("Pacific/Apia", "2011-12-30T10:00:00Z", -36000, 50400, "+14", True),
        ("Antarctica/Troll", "2015-03-29T01:00:00Z", 0, 7200, "+02", True),
        ("Australia/Lord_Howe", "2019-04-06T15:00:00Z", 39600, 37800, "+1030", False),
        ("Africa/Monrovia", "1972-01-07T00:44:30Z", -2670, 0, "GMT", False),
        ("Europe/Berlin", "2029-03-25T01:00:00Z", 3600, 7200, "CEST", True),
    ],
)
def test_a_known_change_is_there(
    changes: list[ZoneChange], zone: str, at: str, before: int, after: int, abbreviation: str, is_dst: bool
) -> None:
    assert ZoneChange(datetime.fromisoformat(at), zone, before, after, abbreviation, is_dst) in changes


def test_pyongyang_had_no_change_between_2015_and_2018(changes: list[ZoneChange]) -> None:
    later = [change for change in of_zone(changes, "Asia/Pyongyang") if change.at.year >= 2000]

    assert [change.at.year for change in later] == [2015, 2018]


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Antarctica/Troll", "Pacific/Auckland"])
def test_a_zone_with_daylight_time_changes_twice_in_every_recent_year(changes: list[ZoneChange], zone: str) -> None:
    years = [change.at.year for change in of_zone(changes, zone)]

    assert all(years.count(year) == 2 for year in range(2008, SPAN_END.year))


@pytest.mark.parametrize("name", ["America/New_York", "Pacific/Apia", "Africa/Casablanca", "Africa/Monrovia"])
def test_zoneinfo_gives_the_offsets_on_both_sides_of_a_change(changes: list[ZoneChange], name: str) -> None:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as content:
        zone = ZoneInfo.from_file(content)
    settled = [change for change in of_zone(changes, name) if change.at < SETTLED]

    for change in settled:
        sides = [instant.astimezone(zone).utcoffset() for instant in (change.at - ONE_SECOND, change.at)]
        assert sides == [timedelta(seconds=change.offset_before), timedelta(seconds=change.offset_after)], change


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Asia/Pyongyang", "Antarctica/Troll", "UTC"])
def test_the_generator_finds_the_shipped_history_of_a_settled_zone(changes: list[ZoneChange], zone: str) -> None:
    shipped = [change for change in of_zone(changes, zone) if change.at < SETTLED]

    assert [change for change in changes_of(zone) if change.at < SETTLED] == shipped


def test_the_generator_writes_the_shipped_file_again_when_the_tzdata_version_is_the_same(tmp_path: Path) -> None:
    output = tmp_path / "again.ndjson"

    main(["--output", str(output)])

    if version("tzdata") == SHIPPED_TZDATA_VERSION:
        assert output.read_bytes() == SHIPPED_FILE.read_bytes()
    else:
        assert len(output.read_bytes().splitlines()) == pytest.approx(COUNT, rel=0.05)


def test_switches_missed_between_two_looks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_zone_changes, "_WEEK", 365 * 86_400)

    with pytest.raises(ValueError, match=r"rule 'CET-1CEST,M3\.5\.0,M10\.5\.0/3' should switch twice in 1997, found 0"):
        list(changes_of("Europe/Berlin"))
