"""The size of claims: larger while they are used up fast, smaller while they last, bounded by bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqlstreams.consume.pace import Pace

MEBIBYTE = 1024 * 1024


def rows(count: int, *, size: int = 100) -> list[tuple[int, bytes]]:
    return [(number, b"x" * size) for number in range(count)]


def claim_at(pace: Pace, *times: float, size: int = 100) -> None:
    for now in times:
        pace.claimed(rows(pace.limit, size=size), now=now)


def test_the_first_claim_is_enough_for_every_handler_twice() -> None:
    assert Pace(concurrency=10, prefetch=None).limit == 20
    assert Pace(concurrency=1, prefetch=None).limit == 2


def test_claims_that_are_used_up_fast_double_up_to_a_thousand() -> None:
    pace = Pace(concurrency=10, prefetch=None)
    limits = []
    for number in range(10):
        claim_at(pace, number * 0.1)
        limits.append(pace.limit)
    assert limits == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000]


def test_claims_that_last_long_halve_but_leave_no_handler_without_work() -> None:
    pace = Pace(concurrency=10, prefetch=None)
    claim_at(pace, 0, 0.1, 0.2, 0.3)
    assert pace.limit == 160
    limits = []
    for number in range(1, 6):
        claim_at(pace, number * 10)
        limits.append(pace.limit)
    assert limits == [80, 40, 20, 10, 10]


def test_claims_that_last_about_a_second_stay_as_they_are() -> None:
    pace = Pace(concurrency=10, prefetch=None)
    claim_at(pace, 0, 1, 2, 3)
    assert pace.limit == 20


def test_a_claim_that_met_the_end_of_the_log_says_nothing_about_the_pace() -> None:
    pace = Pace(concurrency=10, prefetch=None)
    for now in (0, 0.1, 0.2):
        pace.claimed(rows(5), now=now)
    assert pace.limit == 20


def test_a_prefetch_is_kept() -> None:
    pace = Pace(concurrency=10, prefetch=7)
    claim_at(pace, 0, 0.1, 0.2, 100, 200)
    assert pace.limit == 7


def test_large_payloads_bound_a_claim_by_their_bytes_also_with_a_prefetch() -> None:
    for prefetch in (None, 100):
        pace = Pace(concurrency=50, prefetch=prefetch)
        claim_at(pace, 0, size=MEBIBYTE)
        assert pace.limit == 8


def test_one_message_is_claimed_however_large_it_is() -> None:
    pace = Pace(concurrency=1, prefetch=None)
    pace.claimed(rows(1, size=9 * MEBIBYTE), now=0)
    assert pace.limit == 1


def test_small_payloads_after_large_ones_lift_the_bound() -> None:
    pace = Pace(concurrency=50, prefetch=100)
    claim_at(pace, 0, size=MEBIBYTE)
    claim_at(pace, 1)
    assert pace.limit == 100


@given(concurrency=st.integers(1, 10_000), pauses=st.lists(st.floats(0, 10), min_size=1, max_size=12))
def test_a_claim_that_lasts_long_never_makes_the_next_one_larger(concurrency: int, pauses: list[float]) -> None:
    pace = Pace(concurrency=concurrency, prefetch=None)
    now = 0.0
    claim_at(pace, now)
    for pause in pauses:
        before, now = pace.limit, now + pause
        claim_at(pace, now)
        assert 1 <= pace.limit <= (before if pause > 2 else 1_000)


@given(
    prefetch=st.integers(1, 10_000),
    claims=st.lists(st.tuples(st.integers(1, 50), st.sampled_from([1, 100, MEBIBYTE])), min_size=1, max_size=10),
)
def test_a_prefetch_is_never_exceeded_and_never_comes_to_nothing(prefetch: int, claims: list[tuple[int, int]]) -> None:
    pace = Pace(concurrency=10, prefetch=prefetch)
    for now, (count, size) in enumerate(claims):
        pace.claimed([(1, b"x" * size)] * count, now=now / 10)
        assert 1 <= pace.limit <= prefetch
