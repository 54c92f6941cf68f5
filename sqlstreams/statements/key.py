"""Statements of keys: sql/key.sql."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

from sqlstreams.model import (
    BlockedKey,
)
from sqlstreams.statements.statement import (
    Columns,
    Family,
    Identified,
    Statement,
    columns,
    first,
    of_family,
    of_system,
)


class Gated(Struct, frozen=True):
    """A message of a leased range whose key matters, and whether it has to wait in the exception queue."""

    message_id: int
    key: str
    concurrency: str
    deferred: bool


class Key(Struct, frozen=True):
    """A message key."""

    key: str


def lock_cursor(schema: str, *, group_id: int) -> Statement[Columns]:
    return of_system("lock_cursor", schema, columns, {"group_id": group_id})


def gate(
    family: Family, *, group_id: int, instance_id: int, token: UUID, chain: list[str], steal: bool
) -> Statement[Gated]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        "chain": chain,
        "steal": steal,
    }
    return of_family("gate", family, Gated, parameters)


def release_keys(schema: str, *, group_id: int, instance_id: int, keys: list[str]) -> Statement[Key]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "keys": keys}
    return of_system("release_keys", schema, first(Key, 1), parameters)


def disown_keys(schema: str, *, group_id: int, instance_id: int, known: list[str]) -> Statement[Key]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "known": known}
    return of_system("disown_keys", schema, first(Key, 1), parameters)


def promote(family: Family, *, group_id: int, keys: list[str]) -> Statement[Identified]:
    return of_family("promote", family, first(Identified, 1), {"group_id": group_id, "keys": keys})


def free_keys(family: Family, *, group_id: int) -> Statement[Key]:
    return of_family("free_keys", family, first(Key, 1), {"group_id": group_id})


def list_blocked_keys(family: Family, *, group_id: int, limit: int) -> Statement[BlockedKey]:
    return of_family("list_blocked_keys", family, BlockedKey, {"group_id": group_id, "limit": limit})


def mark_keyed(schema: str, *, stream_id: int) -> Statement[Identified]:
    return of_system("mark_keyed", schema, Identified, {"stream_id": stream_id})
