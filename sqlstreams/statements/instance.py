"""Statements of consuming processes: sql/instance.sql."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from sqlstreams.model import (
    Instance,
)
from sqlstreams.statements.statement import (
    Columns,
    Identified,
    Nothing,
    Statement,
    columns,
    first,
    nothing,
    of_streams,
    of_system,
)


class Polled(Struct, frozen=True):
    """What there is to do for one group. `due_in` is in seconds until the next retry.

    `gated` says whether keys matter to its claims, `bound` whether bindings do; `updated_at` when its settings changed
    last, `unread` which versions wait for a process that can read them, `unheld` whether bindings wait that nobody
    keeps from being put in force.
    """

    group_id: int
    updated_at: datetime
    gated: bool
    bound: bool
    fresh: bool
    loose: bool
    orphaned: bool
    keys_left: bool
    due_in: float | None
    unread: list[int]
    unheld: bool


class Owned(Struct, frozen=True):
    """A lease that is still ours."""

    token: UUID


def insert_instance(
    schema: str, *, token: UUID, hostname: str, pid: int, library: str, ttl: float
) -> Statement[Identified]:
    parameters = {"token": token, "hostname": hostname, "pid": pid, "library": library, "ttl": ttl}
    return of_system("insert_instance", schema, Identified, parameters)


def delete_forgotten_instances(schema: str) -> Statement[Nothing]:
    return of_system("delete_forgotten_instances", schema, nothing)


def renew_instance(schema: str, *, instance_id: int, token: UUID, ttl: float) -> Statement[Columns]:
    return of_system("renew_instance", schema, columns, {"id": instance_id, "token": token, "ttl": ttl})


def checkpoint(
    schema: str, *, instance_id: int, tokens: list[UUID], resolved: list[int], done: list[list[int]]
) -> Statement[Owned]:
    parameters = _progress(instance_id, tokens, resolved, done)
    return of_system("checkpoint", schema, first(Owned, 1), parameters)


def release_leases(
    schema: str, *, instance_id: int, tokens: list[UUID], resolved: list[int], done: list[list[int]]
) -> Statement[Owned]:
    return of_system("release_leases", schema, Owned, _progress(instance_id, tokens, resolved, done))


def _progress(instance_id: int, tokens: list[UUID], resolved: list[int], done: list[list[int]]) -> Mapping[str, object]:
    # Arrays of arrays must be of one length, so the inner ones travel as text.
    literals = ["{" + ",".join(map(str, ids)) + "}" for ids in done]
    return {"instance_id": instance_id, "tokens": tokens, "resolved": resolved, "done": literals}


def delete_instance(schema: str, *, instance_id: int, token: UUID) -> Statement[Nothing]:
    return of_system("delete_instance", schema, nothing, {"id": instance_id, "token": token})


def list_instances(schema: str, *, group_id: int) -> Statement[Instance]:
    return of_system("list_instances", schema, Instance, {"group_id": group_id})


def poll(schema: str, *, groups: Mapping[int, list[int]]) -> Statement[Polled]:
    """One statement for every group: `groups` maps a stream's id to the ids of its groups."""
    parameters = {f"group_ids_{stream}": group_ids for stream, group_ids in groups.items()}
    return of_streams("poll", schema, groups, Polled, parameters)
