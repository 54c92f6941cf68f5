"""Statements of claims and deliveries: sql/consume.sql."""

from __future__ import annotations

from uuid import UUID

import msgspec
from msgspec import Struct

from sqlstreams.model import (
    UnreadVersion,
)
from sqlstreams.statements.instance import Owned
from sqlstreams.statements.statement import (
    Columns,
    Family,
    Identified,
    Nothing,
    Statement,
    columns,
    first,
    nothing,
    of_family,
    of_system,
)


class Recorded(Struct, frozen=True):
    """An exception row, the state that it is in now, and in how many seconds it is due."""

    message_id: int
    state: str
    due_in: float


def claim(
    family: Family,
    *,
    group_id: int,
    instance_id: int,
    token: UUID,
    limit: int,
    settled: int,
    finished: list[UUID],
    gated: bool,
) -> Statement[Columns]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        "limit": limit,
        "settled": settled,
        "finished": finished,
        "gated": gated,
    }
    return of_family("claim", family, columns, parameters)


def claim_bound(
    family: Family,
    *,
    group_id: int,
    instance_id: int,
    token: UUID,
    limit: int,
    scan: int,
    settled: int,
    finished: list[UUID],
    gated: bool,
) -> Statement[Columns]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        "limit": limit,
        "scan": scan,
        "settled": settled,
        "finished": finished,
        "gated": gated,
    }
    return of_family("claim_bound", family, columns, parameters)


def finish(schema: str, *, instance_id: int, finished: list[UUID]) -> Statement[Owned]:
    return of_system("finish", schema, first(Owned, 1), {"instance_id": instance_id, "finished": finished})


def disown(schema: str, *, group_id: int, instance_id: int, known: list[UUID]) -> Statement[Owned]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "known": known}
    return of_system("disown", schema, first(Owned, 1), parameters)


def lock_loose_leases(schema: str, *, group_id: int, instance_id: int) -> Statement[Owned]:
    return of_system("lock_loose_leases", schema, Owned, {"group_id": group_id, "instance_id": instance_id})


def take_over(family: Family, *, group_id: int, instance_id: int, token: UUID, gated: bool) -> Statement[Columns]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "token": token, "gated": gated}
    return of_family("take_over", family, columns, parameters)


class Failures(Struct, frozen=True):
    """What became of deliveries that did not succeed, column by column. A pause is in seconds."""

    message_ids: list[int]
    outcomes: list[str]
    states: list[str]
    pauses: list[float]
    error_types: list[str]
    errors: list[str]


def record_exceptions(
    family: Family,
    *,
    group_id: int,
    instance_id: int,
    tokens: list[UUID],
    failures: Failures,
    schema_versions: list[int],
    message_keys: list[str | None],
    concurrencies: list[str | None],
) -> Statement[Recorded]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "tokens": tokens,
        "schema_versions": schema_versions,
        "message_keys": message_keys,
        "concurrencies": concurrencies,
        **msgspec.structs.asdict(failures),
    }
    return of_family("record_exceptions", family, Recorded, parameters)


def claim_exceptions(
    family: Family,
    *,
    group_id: int,
    instance_id: int,
    token: UUID,
    limit: int,
    waited: int,
    free: int,
    followers: int,
    versions: list[int],
) -> Statement[Columns]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        "limit": limit,
        "waited": waited,
        "free": free,
        "followers": followers,
        "versions": versions,
    }
    return of_family("claim_exceptions", family, columns, parameters)


def list_unread_versions(family: Family, *, group_id: int) -> Statement[UnreadVersion]:
    return of_family("list_unread_versions", family, UnreadVersion, {"group_id": group_id})


def complete_exceptions(
    family: Family, *, group_id: int, instance_id: int, token: UUID, message_ids: list[int]
) -> Statement[Identified]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "token": token, "message_ids": message_ids}
    return of_family("complete_exceptions", family, first(Identified, 1), parameters)


def record_successes(
    family: Family, *, group_id: int, instance_id: int, tokens: list[UUID], message_ids: list[int]
) -> Statement[Nothing]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "tokens": tokens, "message_ids": message_ids}
    return of_family("record_successes", family, nothing, parameters)


def complete_in_transaction(
    family: Family, *, instance_id: int, token: UUID, message_ids: list[int], resolved: int
) -> Statement[Nothing]:
    parameters = {"instance_id": instance_id, "token": token, "message_ids": message_ids, "resolved": resolved}
    return of_family("complete_in_transaction", family, nothing, parameters)


def complete_exceptions_in_transaction(
    family: Family, *, group_id: int, instance_id: int, token: UUID, message_ids: list[int]
) -> Statement[Nothing]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "token": token, "message_ids": message_ids}
    return of_family("complete_exceptions_in_transaction", family, nothing, parameters)


def return_exceptions(
    family: Family, *, group_id: int, instance_id: int, token: UUID, failures: Failures
) -> Statement[Recorded]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        **msgspec.structs.asdict(failures),
    }
    return of_family("return_exceptions", family, first(Recorded, 3), parameters)


def release_exceptions(family: Family, *, group_id: int, instance_id: int, known: list[UUID]) -> Statement[Identified]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "known": known}
    return of_family("release_exceptions", family, Identified, parameters)


def free_exceptions(family: Family, *, group_id: int, instance_id: int) -> Statement[Recorded]:
    return of_family("free_exceptions", family, Recorded, {"group_id": group_id, "instance_id": instance_id})


def start_exception(family: Family, *, group_id: int, token: UUID, message_id: int) -> Statement[Identified]:
    parameters = {"group_id": group_id, "token": token, "message_id": message_id}
    return of_family("start_exception", family, first(Identified, 1), parameters)


def note_running(
    schema: str, *, instance_id: int, token: UUID, message_id: int | None, resolved: int
) -> Statement[Owned]:
    parameters = {"instance_id": instance_id, "token": token, "message_id": message_id, "resolved": resolved}
    return of_system("note_running", schema, first(Owned, 1), parameters)
