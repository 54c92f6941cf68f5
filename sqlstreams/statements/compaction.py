"""Statements of compaction: sql/compaction.sql."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from sqlstreams.model import StoredMessage
from sqlstreams.statements.statement import Family, Nothing, Statement, nothing, of_family
from sqlstreams.statements.stream import stored_message


class Head(Struct, frozen=True):
    """The message that counts of a key: the greatest by schema version, rank and id."""

    key: str
    schema_version: int
    rank: int
    id: int


class Compacted(Struct, frozen=True):
    """How many messages one step of a compaction removed, whether more may follow, and behind which message."""

    removed: int
    is_full: bool
    last_key: str | None
    last_id: int | None


def move_heads(
    family: Family, *, schema_version: int, keys: list[str], ranks: list[int], ids: list[int]
) -> Statement[Nothing]:
    parameters = {"schema_version": schema_version, "keys": keys, "ranks": ranks, "ids": ids}
    return of_family("move_heads", family, nothing, parameters)


def find_heads(family: Family, *, keys: list[str]) -> Statement[Head]:
    return of_family("find_heads", family, Head, {"keys": keys})


def read_head(family: Family, *, key: str) -> Statement[StoredMessage]:
    return of_family("read_head", family, stored_message, {"key": key})


def read_history(family: Family, *, key: str, limit: int) -> Statement[StoredMessage]:
    return of_family("read_history", family, stored_message, {"key": key, "limit": limit})


def compact(
    family: Family, *, older_than: timedelta, after_key: str, after_id: int, limit: int
) -> Statement[Compacted]:
    parameters = {"older_than": older_than, "after_key": after_key, "after_id": after_id, "limit": limit}
    return of_family("compact", family, Compacted, parameters)
