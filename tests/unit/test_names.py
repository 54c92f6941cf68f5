"""What may be named, and the limits of text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlstreams import InvalidInput
from sqlstreams.names import KEY_LIMIT, NAME_PATTERN, check_key, check_name, check_schema, clean_text, shorten
from sqlstreams.sql import quote_identifier, quote_literal

anything = st.text(st.characters())  # lone surrogates and NUL among them


@given(st.from_regex(NAME_PATTERN, fullmatch=True))
def test_a_name_of_the_pattern_is_taken(name: str) -> None:
    assert check_name("stream", name) == name


@given(anything)
def test_any_other_text_is_no_name(text: str) -> None:
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", text):
        return
    with pytest.raises(InvalidInput, match=r"^stream must match") as refused:
        check_name("stream", text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "name", ["", "a\n", "\n", "Upper", "-a", ".a", "_a", "ä", "a b", "a/b", "a" * 101, "a\x00", "٣", None, 5, b"a"]
)
def test_names_that_nearly_fit_are_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="group must"):
        check_name("group", name)


@given(anything)
def test_a_key_has_1_to_512_bytes_of_text(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        size = 0
    if 1 <= size <= KEY_LIMIT and "\x00" not in key:
        assert check_key("key", key) == key
    else:
        with pytest.raises(InvalidInput, match=r"^key must"):
            check_key("key", key)


@pytest.mark.parametrize("key", ["k" * 512, "🔑" * 128, "🔑", " ", "\n"])
def test_a_key_at_the_limit_is_taken(key: str) -> None:
    assert check_key("key", key) == key


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "must have 1 to 512 bytes, got 0"),
        ("k" * 513, "must have 1 to 512 bytes, got 513"),
        ("🔑" * 129, "must have 1 to 512 bytes, got 516"),
        ("k" * 10_240, "must have 1 to 512 bytes, got 10240"),
        ("\x00", "must not contain the character NUL"),
        ("a\ud800", "must not contain a lone surrogate, found one at 1"),
        (5, "must be a str, got int"),
        (b"k", "must be a str, got bytes"),
    ],
)
def test_a_key_over_the_limit_is_refused(key: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_key("routing_key", key)
    assert (refused.value.field, refused.value.problem) == ("routing_key", problem)


def test_no_key_is_a_key() -> None:
    assert check_key("key", None) is None


@given(anything)
def test_a_schema_is_taken_when_postgresql_can_have_it(name: str) -> None:
    try:
        fits = 1 <= len(name.encode()) <= 63 and "\x00" not in name and not name.startswith("pg_")
    except UnicodeEncodeError:
        fits = False
    if fits:
        assert check_schema(name) == name
    else:
        with pytest.raises(InvalidInput, match=r"^schema must"):
            check_schema(name)


@given(anything, st.integers(100, 9_000))
def test_cleaned_text_can_always_be_stored(text: str, limit: int) -> None:
    cleaned = clean_text(text * 50, limit=limit)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert len(cleaned) <= limit


@pytest.mark.parametrize("text", ["\x00" * 9_000, "\ud800" * 9_000, "x" * 9_000, "x" * 8_192])
def test_cleaned_text_keeps_to_its_limit(text: str) -> None:
    assert len(clean_text(text)) <= 8_192


def test_clean_text_leaves_what_can_be_stored_alone() -> None:
    assert clean_text("Zürich 🔑\n") == "Zürich 🔑\n"


def test_clean_text_says_how_much_it_left_out() -> None:
    assert re.search(r"… \(1060 more characters\)$", clean_text("x" * 2_000, limit=1_000))


@given(anything)
def test_a_shortened_value_fits_a_message(text: str) -> None:
    assert len(shorten(text)) < 700


@given(anything)
def test_a_quoted_name_ends_where_it_ends(text: str) -> None:
    quoted = quote_identifier(text)
    assert quoted[0] == quoted[-1] == '"'
    assert quoted[1:-1].replace('""', "") == text.replace('"', "")
    assert quoted[1:-1].replace('""', '"') == text


@given(anything)
def test_a_quoted_literal_ends_where_it_ends(text: str) -> None:
    quoted = quote_literal(text).removeprefix("E")
    assert quoted[0] == quoted[-1] == "'"
    assert "'" not in quoted[1:-1].replace("''", "")
