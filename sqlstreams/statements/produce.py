"""Statements of producing: sql/produce.sql."""

from __future__ import annotations

from msgspec import Struct

from sqlstreams.statements.statement import (
    Family,
    Nothing,
    Statement,
    nothing,
    of_family,
    of_system,
)


class Edge(Struct, frozen=True):
    """The first id of a log that has no partition yet."""

    edge: int


class Fate(Struct, frozen=True):
    """What became of a transaction: committed, aborted, in progress, or None when too old to be known."""

    status: str | None


def produce_many(
    family: Family,
    *,
    schema_version: int,
    payloads: object,
    routing_keys: list[str | None] | None,
    message_keys: list[str | None] | None,
    options: object,
    compaction_ranks: list[int | None] | None,
) -> Statement[int]:
    parameters = {
        "schema_version": schema_version,
        "payloads": payloads,
        "routing_keys": routing_keys,
        "message_keys": message_keys,
        "options": options,
        "compaction_ranks": compaction_ranks,
    }
    return of_family("produce_many", family, int, parameters)


def extend_log(family: Family, *, ahead: int) -> Statement[Edge]:
    return of_family("extend_log", family, Edge, {"ahead": ahead})


def read_xact(schema: str) -> Statement[int]:
    return of_system("read_xact", schema, int)


def read_assigned_xact(schema: str) -> Statement[int | None]:
    return of_system("read_assigned_xact", schema, lambda xact: xact)


def ask_commit(schema: str, *, xact: int) -> Statement[Fate]:
    return of_system("ask_commit", schema, Fate, {"xact": xact})


def notify(schema: str, *, channel: str, stream_ids: list[int]) -> Statement[Nothing]:
    return of_system("notify", schema, nothing, {"channel": channel, "stream_ids": stream_ids})
