"""What a leased range knows of its messages: what is done, and from where on it would have to be repeated."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from sqlstreams.consume.ranges import Range, Retries, attempts

IDS = st.lists(st.integers(1, 2**62), min_size=1, max_size=30, unique=True).map(sorted)


def leased(ids: list[int], *, low: int | None = None, high: int | None = None) -> Range:
    rows = [(each, b"1") for each in ids]
    return Range(uuid4(), rows, low=ids[0] if low is None else low, high=ids[-1] if high is None else high)


def test_a_fresh_range_has_nothing_done() -> None:
    held = leased([5, 6, 7])
    assert held.progress() == (4, [])
    assert held.unstarted == 3


def test_the_messages_done_in_front_need_not_be_named() -> None:
    held = leased([5, 6, 7])
    held.finish_one(0)
    assert held.progress() == (5, [])


def test_messages_done_behind_an_open_one_are_named() -> None:
    held = leased([5, 6, 7, 8])
    held.finish_one(1)
    held.finish_one(3)
    assert held.progress() == (4, [6, 8])


def test_ids_that_are_missing_in_front_of_the_first_open_message_count_as_resolved() -> None:
    held = leased([5, 9], low=3, high=12)
    held.finish_one(0)
    assert held.progress() == (8, [])


def test_a_finished_range_is_resolved_to_its_end_and_says_so_once() -> None:
    held = leased([5, 9], high=12)
    assert [held.finish_one(1), held.finish_one(0)] == [False, True]
    assert held.progress() == (12, [])


def test_finishing_a_message_twice_counts_once() -> None:
    held = leased([5, 6])
    assert [held.finish_one(0), held.finish_one(0), held.finish_one(1)] == [False, False, True]


@given(ids=IDS, data=st.data())
def test_what_progress_tells_is_exactly_what_is_done(ids: list[int], data: st.DataObject) -> None:
    held = leased(ids)
    finished = data.draw(st.permutations(range(len(ids))))[: data.draw(st.integers(0, len(ids)))]
    told_finished = [held.finish_one(index) for index in finished]
    resolved, done = held.progress()
    told = {each for each in ids if each <= resolved} | set(done)
    assert told == {ids[index] for index in finished}
    assert all(each > resolved for each in done)
    assert any(told_finished) == (len(finished) == len(ids))


def test_retries_say_when_the_last_one_was_given_back() -> None:
    retries = Retries(uuid4(), [(number, b"1", *[None] * 10) for number in (1, 2)])
    assert [retries.finish_one(), retries.finish_one()] == [False, True]


def test_only_rows_of_the_exception_queue_have_been_attempted_before() -> None:
    fresh = (1, b"1", None, None, None, 1, None, None)
    assert attempts(fresh) == (0, 0)
    assert attempts((*fresh, 3, 2)) == (3, 2)
