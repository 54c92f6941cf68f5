"""Expressions: what is read, and what is refused with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqlstreams import InvalidInput, cron

AFTER = datetime(2026, 1, 1, tzinfo=UTC)
INVALID: list[dict[str, str]] = msgspec.json.decode(Path(__file__).with_name("cron_invalid.json").read_bytes())
OURS = {"TZ=UTC 0 0 * * *", "@every 5m"}  # no cron fields, and read before these


@pytest.mark.parametrize("vector", INVALID, ids=lambda vector: vector["expression"])
def test_what_croniter_misreads_is_refused(vector: dict[str, str]) -> None:
    if vector["expression"] in OURS:
        assert cron.next_after(vector["expression"], "UTC", AFTER)
        return
    with pytest.raises(InvalidInput) as refused:
        cron.parse(vector["expression"])
    assert refused.value.field == "expression", vector["why"]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "must have the 5 fields minute, hour, day of month, month and day of week"),
        ("* * * * * * *", "got 7 in '* * * * * * *'"),
        ("60 * * * *", "has the minute '60': must be from 0 to 59"),
        ("0 0 0 * *", "has the day of month '0': must be from 1 to 31"),
        ("0 0 * 0 *", "has the month '0': must be from 1 to 12"),
        ("0 0 * * 8", "has the day of week '8': must be from 0 to 7"),
        ("0 0 * * L8", "has the day of week 'l8': must be from 0 to 7"),
        ("0 0 * * 7-0", "has the day of week '7-0': a range must have two ends; write 7 or *"),
        ("0 0 * * 7-7", "a range must have two ends"),
        ("0 0 * * sun-sun", "a range must have two ends"),
        ("*/61 * * * *", "has the minute '*/61': the step must be from 1 to 60"),
        ("50-52/4 * * * *", "has the minute '50-52/4': the step must be from 1 to 3"),
        ("59/15 * * * *", "has the minute '59/15': the step must be from 1 to 1"),
        ("0 0 28-3/2 * *", "has the day of month '28-3/2': a step must not go over the end of a month"),
        ("0/ * * * *", "has the minute '0/': must be *, a value, a range"),
        ("1-2-3 * * * *", "has the minute '1-2-3': must be"),
        ("*-5 * * * *", "has the minute '*-5': must be"),
        ("-5 * * * *", "has the minute '-5': must be"),
        ("+5 * * * *", "has the minute '+5': must be"),
        ("1,,2 * * * *", "has the minute '1,,2': the list has an empty item"),
        ("1, * * * *", "the list has an empty item"),
        ("*,5 * * * *", "has the minute '*,5': * must not be in a list"),
        ("mon * * * *", "has the minute 'mon': must be"),
        ("0 0 * mon *", "has the month 'mon': must be"),
        ("0 0 * * monday", "has the day of week 'monday': must be"),
        ("h(0-5) * * * *", "H and R (hashed and random values) are not supported"),
        ("R/5 * * * *", "H and R (hashed and random values) are not supported"),
        ("? * * * *", "has the minute '?': ? is for the two fields of days"),
        ("0 0 ?,1 * *", "has the day of month '?': ? is for the two fields of days"),
        ("L * * * *", "has the minute 'l': L, W and # are understood only as"),
        ("0 0 1-L * *", "has the day of month '1-l': L, W and #"),
        ("0 0 LW * *", "has the day of month 'lw': L, W and #"),
        ("0 0 15W,20 * *", "W (the nearest weekday) must be alone in its field"),
        ("0 0 29W * *", "W (the nearest weekday) goes with the days 1 to 28"),
        ("0 0 * * L", "has the day of week 'l': L, W and #"),
        ("0 0 * * friL", "the last of a weekday is written L and its number"),
        ("0 0 * * Lfri", "the last of a weekday is written L and its number"),
        ("0 0 * * 1-3#2", "has the day of week '1-3#2': L, W and #"),
        ("0 0 * * 1#0", "after # must be a number from 1 to 5"),
        ("0 0 * * 2,1#1", "# and L must not be mixed with plain days of the week"),
        ("0 0 1 * */1", "has the day of week '*/1': means every day, beside the day of month '1'; write * instead"),
        ("0 0 1-31 * 1", "has the day of month '1-31': means every day, beside the day of week '1'; write *"),
        ("0 0 1-30,L * 1", "has the day of month '1-30,l': means every day, beside the day of week '1'"),
        ("0 0 31 2,4,6,9,11 *", "has the day of month '31': no month of the expression has such a day"),
        ("0 0\u00a0* * *", "must be printable ASCII on one line"),
        ("0 0\n* * *", "must be printable ASCII on one line"),
        ("0 0 * * *\x00", "must not contain the character NUL"),
        ("\ud800 * * * *", "must not contain a lone surrogate"),
        ("1," * 250 + "1 * * * *", "must have at most 500 characters, got 509"),
        ("9" * 400 + " * * * *", "must be from 0 to 59"),
        ("@reboot", "must be 5 fields, @every or one of @hourly, @daily, @midnight"),
        ("@", "must be 5 fields, @every or one of"),
        ("@every", "must be 5 fields, @every or one of"),
        ("@every 90", "must have a duration such as 90s or 1h30m after @every, got '90'"),
        ("@every 1.5h", "must have a duration"),
        ("@every -5m", "must have a duration"),
        ("@every 30m1h", "must have a duration"),
        ("@every 1h 30m", "must have a duration"),
        ("@every 0s", "must have 1s to 366d after @every, got '0s'"),
        ("@every 367d", "must have 1s to 366d after @every, got '367d'"),
        (None, "must be a str, got NoneType"),
        (["* * * * *"], "must be a str, got list"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(expression: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cron.parse(expression)
    assert refused.value.field == "expression"
    assert problem in refused.value.problem
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@annually", "0 0 1 1 *"),
        ("  0\t9 *   * mon-FRI ", "0 9 * * 1-5"),
        ("00 09 * * 1", "0 9 * * 1"),
        ("0 0 ? * 1", "0 0 * * 1"),
        ("0 0 1 * ?", "0 0 1 * *"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 1-31 */1 *", "0 0 * * *"),
        ("0 0 * * 5-7", "0 0 * * 0,5,6"),
        ("0 0 * * fri-sun", "0 0 * * 5,6,0"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 0 * * 7#2,L7", "0 0 * * 0#2,L0"),
        ("0 0 w15 * *", "0 0 15W * *"),
        ("0 22-4/3 * * *", "0 22,1,4 * * *"),
        ("0 0 30,31 4 *", "0 0 30 4 *"),
        ("0 0 31 2 0", "0 0 * 2 0"),
        ("0 0 2-31,L * *", "0 0 2-30,L * *"),
        ("0 0 1-30,L * *", "0 0 * * *"),
        ("@every 1h30m", "@every 90m"),
        ("@every  2d", "@EVERY 48h"),
        ("TZ=UTC @daily", "CRON_TZ=UTC  0 0 * * *"),
    ],
)
def test_expressions_that_mean_the_same_have_the_same_slots(expression: str, same: str) -> None:
    assert cron.parse(expression)._rule == cron.parse(same)._rule
    assert cron.next_after(expression, "UTC", AFTER) == cron.next_after(same, "UTC", AFTER)


def test_a_list_that_begins_with_a_star_goes_by_elapsed_time_and_another_does_not() -> None:
    first_pass = datetime(2026, 11, 1, 5, 59, tzinfo=UTC)

    assert cron.next_after("*/30,5 * * * *", "America/New_York", first_pass) == datetime(2026, 11, 1, 6, tzinfo=UTC)
    assert cron.next_after("5,*/30 1-3 * * *", "America/New_York", first_pass) == datetime(2026, 11, 1, 7, tzinfo=UTC)


# The zone


def test_a_prefix_names_the_zone_and_is_no_part_of_the_text() -> None:
    parsed = cron.parse("CRON_TZ=Europe/Berlin 0  2 * * *", "UTC")

    assert (parsed.text, parsed.timezone) == ("0 2 * * *", "Europe/Berlin")
    assert parsed.next_after(AFTER) == datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert parsed == cron.parse("0 2 * * *", "Europe/Berlin")


@pytest.mark.parametrize("timezone", ["Europe/Berlin", "America/New_York"])
def test_a_prefix_beside_a_zone_is_refused(timezone: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cron.parse("TZ=Europe/Berlin 0 2 * * *", timezone)
    assert str(refused.value) == f"expression must not begin with TZ=Europe/Berlin when timezone={timezone!r} is given"


def test_without_a_zone_it_is_utc() -> None:
    assert cron.parse("0 2 * * *").timezone == "UTC"


@pytest.mark.parametrize("expression", ["TZ=Mars/Olympus 0 0 * * *", "TZ= 0 0 * * *", "TZ=../UTC 0 0 * * *"])
def test_a_prefix_with_an_unknown_zone_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput, match=r"^timezone must be a zone such as Europe/Berlin"):
        cron.parse(expression)


# Anything


CRON_LIKE = st.text("0123456789*/-,#?LWHRsunmofeb@every TZ=\t", max_size=40)
FIVE = st.lists(st.text("0123456789*/-,#?LW", min_size=1, max_size=4), min_size=5, max_size=5).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(st.characters()), CRON_LIKE, FIVE, CRON_LIKE.map(lambda text: f"@every {text}")))
@example("0 0 * * *")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = cron.parse(text)
    except InvalidInput:
        return
    assert parsed.describe()
    slot = parsed.next_after(AFTER)
    assert slot is None or slot > AFTER
