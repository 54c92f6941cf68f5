"""Whatever a handler raises becomes an outcome that can be stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlstreams import Delay, InvalidInput, Terminal
from sqlstreams.codec import DecodeFailed
from sqlstreams.consume.outcome import decide


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # with a traceback now
        return raised


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> Any:
        return None  # noqa: PLE0307  # that is the trouble


class ForgetfulDelay(Delay):
    def __init__(self) -> None:
        pass


class WrongDelay(Delay):
    def __init__(self, by: Any) -> None:
        self.by = by


class Fussy(Delay):
    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    ("error", "kind", "error_type"),
    [
        (ValueError("no"), "failed", "ValueError"),
        (Terminal("never"), "dead", "Terminal"),
        (Delay(timedelta(seconds=3)), "delayed", "Delay"),
        (DecodeFailed("at $.x"), "dead", "DecodeFailed"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt"),
        (SystemExit(3), "failed", "SystemExit"),
        (ExceptionGroup("two", [ValueError(), KeyError()]), "failed", "ExceptionGroup"),
        (Unprintable(), "failed", "Unprintable"),
        (NoText(), "failed", "NoText"),
        (ForgetfulDelay(), "failed", "ForgetfulDelay"),
        (WrongDelay(5), "failed", "WrongDelay"),
        (WrongDelay(timedelta.max), "failed", "WrongDelay"),
        (WrongDelay(timedelta(-1)), "failed", "WrongDelay"),
    ],
)
def test_an_exception_means_what_its_class_says(error: BaseException, kind: str, error_type: str) -> None:
    for each in (error, _raised(error)):
        outcome = decide(each)
        assert (outcome.kind, outcome.error_type) == (kind, error_type)


def test_an_exception_whose_every_attribute_fails_is_a_failure() -> None:
    assert decide(_raised(Fussy())).kind == "failed"


@given(st.text(st.characters()))
def test_any_text_can_be_stored(text: str) -> None:
    outcome = decide(_raised(ValueError(text * 1_000)))
    assert "\x00" not in outcome.error
    assert outcome.error.encode()
    assert len(outcome.error) <= 8_192 + 500


def test_the_place_of_the_error_is_told() -> None:
    assert decide(_raised(ValueError("no"))).error.startswith("no\nat ")
    assert "in _raised" in decide(_raised(ValueError("no"))).error


def test_the_name_of_a_class_is_kept_short() -> None:
    assert len(decide(type("Long" * 9_000, (Exception,), {})()).error_type) <= 200


def test_a_delay_lasts_as_long_as_it_says() -> None:
    assert decide(Delay(timedelta(minutes=2))).pause == 120.0
    assert decide(Delay(timedelta(0))).pause == 0.0
    assert decide(Delay(timedelta(1), "the shop is closed")).error == "the shop is closed"


@pytest.mark.parametrize("by", [timedelta(-1), timedelta.max, timedelta(days=3_651)])
def test_a_delay_that_cannot_be_kept_is_refused(by: timedelta) -> None:
    with pytest.raises(InvalidInput, match="by must be"):
        Delay(by)
