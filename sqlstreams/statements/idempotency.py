"""Statements of idempotency keys: sql/idempotency.sql."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sqlstreams.statements.manager import Forgotten
from sqlstreams.statements.statement import Family, Nothing, Statement, nothing, of_family, of_streams


class KnownKey(Struct, frozen=True):
    """An idempotency key and the message it is of."""

    key: str
    fingerprint: bytes
    message_id: int
    is_expired: bool


def take_idempotency_keys(family: Family, *, keys: list[str], fingerprints: list[bytes]) -> Statement[str]:
    return of_family("take_idempotency_keys", family, str, {"keys": keys, "fingerprints": fingerprints})


def find_idempotency_keys(family: Family, *, keys: list[str]) -> Statement[KnownKey]:
    return of_family("find_idempotency_keys", family, KnownKey, {"keys": keys})


def renew_idempotency_keys(family: Family, *, keys: list[str], fingerprints: list[bytes]) -> Statement[str]:
    return of_family("renew_idempotency_keys", family, str, {"keys": keys, "fingerprints": fingerprints})


def record_idempotent_messages(family: Family, *, keys: list[str], ids: list[int]) -> Statement[Nothing]:
    return of_family("record_idempotent_messages", family, nothing, {"keys": keys, "ids": ids})


def list_expired_keys(schema: str, *, streams: Sequence[int]) -> Statement[int]:
    """One statement that returns those of some streams that have expired keys."""
    return of_streams("list_expired_keys", schema, streams, int)


def forget_idempotency_keys(family: Family, *, limit: int) -> Statement[Forgotten]:
    return of_family("forget_idempotency_keys", family, Forgotten, {"limit": limit})
