"""Bindings are checked where they are declared."""

from __future__ import annotations

from typing import Any

import pytest

from sqlstreams import InvalidInput
from sqlstreams.routing import check_bindings, like_pattern, like_patterns


def test_bindings_are_a_set() -> None:
    assert check_bindings("bindings", ["b.*", "a", "b.*"]) == ("a", "b.*")
    assert check_bindings("bindings", None) == check_bindings("bindings", []) == ()


def test_only_the_star_is_special() -> None:
    assert like_pattern("100%_*\\") == "100\\%\\_%\\\\"


def test_no_binding_takes_everything() -> None:
    assert like_patterns(()) is None


@pytest.mark.parametrize(
    ("bindings", "problem"),
    [
        ("eu.*", "must be a list of patterns, got str"),
        ({"eu.*": 1}, "must be a list of patterns, got dict"),
        (["eu.*", 3], "must be a list of texts, got a int in it"),
        ([""], "must be patterns of 1 to 512 bytes, got one of 0"),
        (["ü" * 257], "must be patterns of 1 to 512 bytes, got one of 514"),
        (["a\x00"], "must not contain the character NUL"),
        (["\ud800"], "must not contain a lone surrogate"),
        ([str(number) for number in range(101)], "must be at most 100 patterns, got 101"),
    ],
)
def test_other_bindings_are_refused(bindings: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_bindings("bindings", bindings)
    assert str(refused.value) == f"bindings {problem}"
