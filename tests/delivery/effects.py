"""A table that handlers write to, so that a test can see which of their writes took effect, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

INSERT = b"insert into effects (message_id) values (%s)"


@contextmanager
def effects(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Make the table and lend a connection to look at it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table effects (number bigint generated always as identity, message_id bigint)")
        yield connection


def seen(connection: psycopg.Connection[Any]) -> list[int]:
    """Return the messages whose writes took effect, in order, one as often as it did."""
    return [row[0] for row in connection.execute("select message_id from effects order by message_id").fetchall()]
