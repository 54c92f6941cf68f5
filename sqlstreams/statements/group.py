"""Statements of consumer groups: sql/group.sql."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sqlstreams.model import (
    GroupInfo,
    GroupStatus,
    Reclaim,
)
from sqlstreams.options import DeliveryLimits, GroupOptions
from sqlstreams.statements.statement import (
    Family,
    Identified,
    Nothing,
    Statement,
    nothing,
    of_family,
    of_system,
)


def _group(*columns: Any) -> GroupInfo:
    group = GroupInfo(*columns)
    limits: Any = group.limits  # as JSON so far
    decoded = msgspec.json.decode(limits, type=DeliveryLimits)
    return msgspec.structs.replace(group, limits=decoded, bindings=tuple(group.bindings))


def _reclaim(group_id: int, low: int, high: int, resolved: int, done: list[int], *rest: Any) -> Reclaim:
    return Reclaim(group_id, low, high, resolved, tuple(done), *rest)


def insert_group(
    schema: str, *, stream_id: int, name: str, start_at: str, options: GroupOptions
) -> Statement[Identified]:
    parameters = {"stream_id": stream_id, "name": name, "start_at": start_at, **_settings(options)}
    return of_system("insert_group", schema, Identified, parameters)


def insert_cursor(schema: str, *, group_id: int, claimed: int, patterns: list[str] | None) -> Statement[Nothing]:
    parameters = {"group_id": group_id, "claimed": claimed, "patterns": patterns}
    return of_system("insert_cursor", schema, nothing, parameters)


def update_group(schema: str, *, group_id: int, options: GroupOptions) -> Statement[Nothing]:
    settings = {name: value for name, value in _settings(options).items() if name != "bindings"}
    return of_system("update_group", schema, nothing, {"id": group_id, **settings})


def _settings(options: GroupOptions) -> Mapping[str, object]:
    limits = msgspec.json.encode(options.limits).decode()
    return {**msgspec.structs.asdict(options), "limits": limits, "bindings": list(options.bindings)}


def get_group(schema: str, *, stream_id: int, name: str) -> Statement[GroupInfo]:
    return of_system("get_group", schema, _group, {"stream_id": stream_id, "name": name})


def reread_group(schema: str, *, group_id: int) -> Statement[GroupInfo]:
    return of_system("reread_group", schema, _group, {"group_id": group_id})


def list_groups(schema: str, *, stream_id: int | None) -> Statement[GroupInfo]:
    return of_system("list_groups", schema, _group, {"stream_id": stream_id})


def rename_group(schema: str, *, stream_id: int, group_id: int, new_name: str) -> Statement[Identified]:
    parameters = {"id": group_id, "stream_id": stream_id, "new_name": new_name}
    return of_system("rename_group", schema, Identified, parameters)


def delete_group(schema: str, *, group_id: int) -> Statement[Nothing]:
    return of_system("delete_group", schema, nothing, {"id": group_id})


def delete_exceptions(family: Family, *, group_id: int) -> Statement[Nothing]:
    return of_family("delete_exceptions", family, nothing, {"group_id": group_id})


def delete_deliveries(family: Family, *, group_id: int) -> Statement[Nothing]:
    return of_family("delete_deliveries", family, nothing, {"group_id": group_id})


def log_group(schema: str, *, stream_id: int, group_id: int, action: str, config: bytes) -> Statement[Nothing]:
    parameters = {"stream_id": stream_id, "group_id": group_id, "action": action, "config": config.decode()}
    return of_system("log_group", schema, nothing, parameters)


def get_group_status(schema: str, *, group_id: int) -> Statement[GroupStatus]:
    return of_system("get_group_status", schema, GroupStatus, {"group_id": group_id})


def list_reclaims(schema: str, *, group_id: int, limit: int) -> Statement[Reclaim]:
    return of_system("list_reclaims", schema, _reclaim, {"group_id": group_id, "limit": limit})
