"""Zones come from the package tzdata alone."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import pytest

from sqlstreams import InvalidInput, cron
from sqlstreams.zones import check_timezone, zone


def test_every_zone_of_the_package_is_taken_and_loads() -> None:
    names = files("tzdata").joinpath("zones").read_text(encoding="ascii").split()

    assert [zone(check_timezone("timezone", name)).key for name in names] == names


def test_the_process_keeps_its_own_zones() -> None:
    path = zoneinfo.TZPATH
    ours = zone("Europe/Berlin")

    assert path == zoneinfo.TZPATH
    assert zoneinfo.ZoneInfo("Europe/Berlin") is not ours


def test_a_change_that_older_data_lack_is_known() -> None:
    """Vancouver stays on summer time since 2026."""
    assert datetime(2026, 12, 1, tzinfo=UTC).astimezone(zone("America/Vancouver")).utcoffset() == timedelta(hours=-7)


def test_the_version_of_the_data_is_that_of_the_package() -> None:
    assert cron.zone_data_version() == version("tzdata")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Europe/Berlinn", "must be a zone such as Europe/Berlin, got 'Europe/Berlinn'; did you mean Europe/Berlin"),
        ("europe/berlin", "got 'europe/berlin'; did you mean Europe/Berlin?"),
        ("Berlin", "got 'Berlin'; did you mean Europe/Berlin?"),
        ("new york", "got 'new york'; did you mean America/New_York?"),
        ("Qqqq", "must be a zone such as Europe/Berlin, got 'Qqqq'"),
        ("", "must be a zone such as Europe/Berlin, got ''"),
        ("../../etc/passwd", "must be a zone"),
        ("UTC\n", "must be a zone"),
        ("UTC\x00", "must not contain the character NUL"),
        ("\ud800", "must not contain a lone surrogate"),
        ("x" * 100_000, "must be a zone"),
        (5, "must be a str, got int"),
        (["UTC"], "must be a str, got list"),
    ],
)
def test_another_name_is_refused_with_the_nearest(name: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cron.next_after("* * * * *", name, datetime.now(UTC))
    assert refused.value.field == "timezone"
    assert problem in refused.value.problem
    assert len(str(refused.value)) < 300
