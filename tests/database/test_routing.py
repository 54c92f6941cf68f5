"""The database matches routing keys as the bindings say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlstreams.routing import like_patterns

CHARACTERS = st.sampled_from("ab.*%_\\ü\n😀'")
TEXTS = st.text(CHARACTERS, min_size=1, max_size=8)


@pytest.fixture(scope="module")
def connection(server_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server_url, autocommit=True) as connection:
        yield connection


def _matches(binding: str, key: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, binding.split("*"))), key, re.DOTALL) is not None


@settings(max_examples=400, deadline=None)
@given(bindings=st.lists(TEXTS, min_size=1, max_size=3), keys=st.lists(TEXTS, min_size=1, max_size=20))
def test_a_key_is_taken_when_a_binding_matches_all_of_it(
    connection: psycopg.Connection[Any], bindings: list[str], keys: list[str]
) -> None:
    rows = connection.execute(
        'select key collate "C" like any(%s::text[]) from unnest(%s::text[]) with ordinality as k (key, n) order by n',
        (like_patterns(bindings), keys),
    ).fetchall()
    assert [taken for (taken,) in rows] == [any(_matches(each, key) for each in bindings) for key in keys]
