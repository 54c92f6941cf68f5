"""Settings that cannot work are refused where they are given, with the field named."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlstreams import AsyncClient, Client, InvalidInput
from sqlstreams.options import (
    MAX_ID,
    GroupOptions,
    StreamOptions,
    check_duration,
    check_integer,
    check_number,
    check_start,
)

anything: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.timedeltas()
    | st.datetimes()
    | st.sampled_from([10**400, -(10**5_000), timedelta.max, timedelta.min, [], {}, object()])
)
CHECKS: list[Callable[[Any], object]] = [
    lambda value: check_integer("field", value, low=0, high=10),
    lambda value: check_number("field", value, low=0, high=10),
    lambda value: check_duration("field", value, low=timedelta(0), high=timedelta(1)),
    lambda value: check_start("field", value),
]


@pytest.mark.parametrize("check", CHECKS, ids=["integer", "number", "duration", "start"])
@given(anything)
def test_a_check_returns_the_value_or_names_the_field(check: Callable[[Any], object], value: Any) -> None:
    refused: InvalidInput | None = None
    try:
        assert check(value) == value
    except InvalidInput as error:
        refused = error
    if refused is not None:
        assert refused.field == "field"
        assert len(str(refused)) < 1_000


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_payload": 0}, "max_payload"),
        ({"max_payload": 268_435_457}, "max_payload"),
        ({"max_payload": 1.0}, "max_payload"),
        ({"max_payload": True}, "max_payload"),
        ({"max_payload": "1"}, "max_payload"),
        ({"max_payload": 10**30}, "max_payload"),
        ({"partition_rows": 999}, "partition_rows"),
        ({"partition_rows": 1_000_000_001}, "partition_rows"),
        ({"partition_rows": None}, "partition_rows"),
    ],
)
def test_stream_settings_out_of_range_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field} must be") as refused:
        StreamOptions(**options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1_000_001}, "max_retries"),
        ({"max_retries": 2.5}, "max_retries"),
        ({"retry_base": timedelta(microseconds=-1)}, "retry_base"),
        ({"retry_base": 5}, "retry_base"),
        ({"retry_base": timedelta.max}, "retry_base"),
        ({"retry_base": timedelta(hours=1), "retry_cap": timedelta(minutes=1)}, "retry_cap"),
        ({"retry_cap": timedelta(days=3_651)}, "retry_cap"),
        ({"retry_exponent": 0.99}, "retry_exponent"),
        ({"retry_exponent": 10.01}, "retry_exponent"),
        ({"retry_exponent": math.nan}, "retry_exponent"),
        ({"retry_exponent": math.inf}, "retry_exponent"),
        ({"retry_exponent": 10**400}, "retry_exponent"),
        ({"retry_exponent": "2"}, "retry_exponent"),
    ],
)
def test_group_settings_out_of_range_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field} must be") as refused:
        GroupOptions(**options)
    assert refused.value.field == field


def test_settings_at_their_limits_are_taken() -> None:
    StreamOptions(max_payload=1, partition_rows=1_000)
    StreamOptions(max_payload=268_435_456, partition_rows=1_000_000_000)
    GroupOptions(max_retries=0, retry_base=timedelta(0), retry_cap=timedelta(0), retry_exponent=1)
    GroupOptions(max_retries=1_000_000, retry_cap=timedelta(days=3_650), retry_exponent=10)


@pytest.mark.parametrize(
    "start",
    ["beginning", "head", 0, 7, MAX_ID, datetime(2026, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
)
def test_a_position_is_taken(start: Any) -> None:
    assert check_start("start", start) == start


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (datetime(2026, 1, 1), "must be an aware datetime, got the naive 2026-01-01T00:00:00"),  # noqa: DTZ001
        (-1, "must be between 0 and"),
        (MAX_ID + 1, "must be between 0 and"),
        pytest.param(10**5_000, "must be between 0 and", id="huge"),
        (True, 'must be "beginning", "head", an id or an aware datetime'),
        ("end", 'must be "beginning", "head", an id or an aware datetime'),
        (1.0, 'must be "beginning", "head", an id or an aware datetime'),
        (None, 'must be "beginning", "head", an id or an aware datetime'),
    ],
)
def test_what_is_no_position_is_refused(start: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_start("start", start)
    assert refused.value.field == "start"
    assert refused.value.problem.startswith(problem)


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"pool_size": 0}, "pool_size"),
        ({"pool_size": 1_001}, "pool_size"),
        ({"pool_size": 1.5}, "pool_size"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": "30"}, "timeout"),
        ({"timeout": 10**400}, "timeout"),
        ({"lease_ttl": timedelta(0)}, "lease_ttl"),
        ({"lease_ttl": timedelta(days=2)}, "lease_ttl"),
        ({"lease_ttl": 15}, "lease_ttl"),
        ({"max_pending": 0}, "max_pending"),
        ({"max_pending": 10**30}, "max_pending"),
        ({"listen_url": ""}, "url"),
        ({"listen_url": "mysql://h/d"}, "url"),
    ],
)
def test_a_client_that_cannot_work_is_refused(face: Any, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        face("postgresql:///", **options)
    assert refused.value.field.endswith(field)


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://h/d", "a=b", "dbname=x\x00y", "postgresql://h/\x00", "\ud800", None, 5, b"dbname=x"],
)
def test_an_address_that_is_none_is_refused(face: Any, url: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^url "):
        face(url)


def test_a_time_zone_of_any_sort_makes_a_datetime_aware() -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    assert check_start("start", start) is start
