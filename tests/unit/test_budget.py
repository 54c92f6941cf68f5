"""What a message may spend: what it asks for, else what its group says, within the group's limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlstreams import DeliveryLimits, GroupInfo, InvalidInput
from sqlstreams.codec import decode_delivery, encode_options
from sqlstreams.consume.budget import Budgets, judge, resolve
from sqlstreams.consume.outcome import DEFERRED, SPENT, Outcome
from sqlstreams.options import DeliveryOptions, GroupOptions

SECOND = timedelta(seconds=1)
FAILED = Outcome("failed", "ValueError", "no")
DELAYED = Outcome("delayed", "Delay", "later", pause=7.0)

durations = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=3650))
tries = st.integers(min_value=0, max_value=1_000_000)
asked = st.builds(
    DeliveryOptions,
    concurrency=st.none() | st.sampled_from(["parallel", "exclusive", "ordered"]),
    timeout=st.none() | durations,
    max_retries=st.none() | tries,
    max_delays=st.none() | tries,
    retry_base=st.none() | durations,
    retry_exponent=st.none() | st.floats(min_value=1, max_value=10),
    retry_cap=st.none() | durations,
)


def _group(**options: Any) -> GroupInfo:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    settings = msgspec.structs.asdict(GroupOptions(**options))
    return GroupInfo(id=1, stream="s", name="g", start_at="head", created_at=now, updated_at=now, **settings)


def _row(*, failures: int = 0, delays: int = 0, options: bytes | None = None) -> tuple[Any, ...]:
    return (1, b"{}", None, None, options, 1, None, None, failures, delays, None, False)


@given(asked)
def test_what_is_asked_for_comes_back_as_it_was(options: DeliveryOptions) -> None:
    encoded = encode_options(headers={"timeout": "no option"}, delivery=options)
    assert encoded is not None
    assert decode_delivery(encoded) == options


def test_what_nobody_asked_for_takes_no_room() -> None:
    assert encode_options(headers=None, delivery=DeliveryOptions()) is None
    assert encode_options(headers=None, delivery=DeliveryOptions(max_retries=3)) == b'{"max_retries":3}'


@pytest.mark.parametrize("options", [b"[]", b'{"timeout": "soon"}', b'{"max_retries": -4}', b'{"max_delays": 1e9}'])
def test_options_that_this_library_did_not_write_ask_for_nothing(options: bytes) -> None:
    assert decode_delivery(options) == DeliveryOptions()


@given(asked, asked)
def test_no_message_gets_more_or_less_than_its_group_allows(one: DeliveryOptions, other: DeliveryOptions) -> None:
    least, most = 3, 5
    shortest, longest = SECOND, timedelta(hours=1)
    group = _group(
        timeout=one.timeout,
        max_delays=one.max_delays,
        limits=DeliveryLimits(timeout=(shortest, longest), max_retries=(least, most), max_delays=(least, most)),
    )
    budget = resolve(group, other)
    assert budget.timeout is not None
    assert budget.max_delays is not None
    assert shortest <= budget.timeout <= longest
    assert least <= budget.max_retries <= most
    assert least <= budget.max_delays <= most


def test_a_message_comes_before_its_group() -> None:
    group = _group(timeout=SECOND, max_retries=4, max_delays=5, retry_exponent=3.0)
    assert resolve(group, DeliveryOptions()).timeout == SECOND
    budget = resolve(group, DeliveryOptions(timeout=2 * SECOND, max_retries=0))
    assert (budget.timeout, budget.max_retries, budget.max_delays, budget.retry_exponent) == (2 * SECOND, 0, 5, 3.0)


def test_a_budget_follows_the_row_and_the_group() -> None:
    budgets = Budgets(_group(max_retries=2))
    asks = encode_options(headers=None, delivery=DeliveryOptions(max_retries=7))
    assert [budgets.of(_row()).max_retries, budgets.of(_row(options=asks)).max_retries] == [2, 7]
    budgets.change(_group(max_retries=3))
    assert [budgets.of(_row()).max_retries, budgets.of(_row(options=asks)).max_retries] == [3, 7]


@given(asked, st.integers(min_value=0, max_value=2**31))
def test_no_number_of_failures_makes_a_pause_that_cannot_be_kept(options: DeliveryOptions, failures: int) -> None:
    budget = resolve(_group(), options)
    assert 0 <= budget.pause(failures) <= budget.retry_cap.total_seconds()


def test_pauses_grow_to_the_cap_less_a_random_half() -> None:
    budget = resolve(_group(retry_base=SECOND, retry_exponent=2, retry_cap=10 * SECOND), DeliveryOptions())
    for failures, longest in enumerate([1, 2, 4, 8, 10, 10]):
        assert longest / 2 <= budget.pause(failures) <= longest


@pytest.mark.parametrize(
    ("outcome", "failures", "delays", "state"),
    [
        (FAILED, 0, 9, "ready"),
        (FAILED, 1, 9, "ready"),
        (FAILED, 2, 0, "dead"),
        (DELAYED, 9, 0, "ready"),
        (DELAYED, 0, 2, "ready"),
        (DELAYED, 0, 3, "dead"),
        (Outcome("dead", "Terminal", "never"), 0, 0, "dead"),
        (SPENT, 0, 0, "dead"),
        (DEFERRED, 9, 9, "deferred"),
    ],
)
def test_failures_and_delays_have_budgets_of_their_own(
    outcome: Outcome, failures: int, delays: int, state: str
) -> None:
    budget = resolve(_group(max_retries=2, max_delays=3), DeliveryOptions())
    assert judge(outcome, budget, _row(failures=failures, delays=delays)).state == state


def test_a_delay_too_many_says_so_and_keeps_its_reason() -> None:
    verdict = judge(DELAYED, resolve(_group(max_delays=3), DeliveryOptions()), _row(delays=3))
    assert "max_delays" in verdict.error
    assert "later" in verdict.error


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"timeout": (2 * SECOND, SECOND)}, "limits.timeout"),
        ({"timeout": (1, 2)}, "limits.timeout"),
        ({"timeout": SECOND}, "limits.timeout"),
        ({"timeout": (timedelta(0), None)}, "limits.timeout"),
        ({"max_retries": (-1, None)}, "limits.max_retries"),
        ({"max_retries": (None, 2_000_000)}, "limits.max_retries"),
        ({"max_delays": (1, 2, 3)}, "limits.max_delays"),
        ({"max_delays": None}, "limits.max_delays"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        DeliveryLimits(**limits)
    assert refused.value.field == field
