"""Looking into a stream's log past the library."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg.rows import tuple_row


def ask(url: str, query: LiteralString) -> list[tuple[Any, ...]]:
    """Run one query on a connection of its own."""
    with psycopg.connect(url, autocommit=True, row_factory=tuple_row) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def stored(url: str) -> list[str]:
    """Return the `text` of every message of the first stream, in the order of the ids."""
    return [text for (text,) in ask(url, "select payload->>'text' from sqlstreams.message_log_1 order by id")]


def partitions(url: str) -> int:
    """Return how many partitions the log of the first stream has."""
    query = "select count(*) from pg_inherits where inhparent = 'sqlstreams.message_log_1'::regclass"
    return int(ask(url, query)[0][0])


def commits(url: str) -> int:
    """Return how many transactions wrote the messages of the first stream."""
    return int(ask(url, "select count(distinct xmin::text) from sqlstreams.message_log_1")[0][0])
