"""Statements of positions of groups: sql/position.sql."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from sqlstreams.model import (
    PositionChange,
)
from sqlstreams.statements.instance import Owned
from sqlstreams.statements.statement import (
    Family,
    Identified,
    Nothing,
    Statement,
    nothing,
    of_family,
    of_system,
)


class OpenRange(Struct, frozen=True):
    """A leased range that is not finished: everything up to `resolved` is."""

    low: int
    high: int
    resolved: int


class Measured(Struct, frozen=True):
    """How many messages there are, which are the first and the last, and when those were produced."""

    messages: int
    first_id: int | None
    last_id: int | None
    first_at: datetime | None
    last_at: datetime | None


class ExceptionCounts(Struct, frozen=True):
    """Exception rows by their state."""

    waiting: int
    ready: int
    deferred: int
    inflight: int
    unread: int
    dead: int
    superseded: int


def lock_position(schema: str, *, group_id: int) -> Statement[Identified]:
    return of_system("lock_position", schema, Identified, {"group_id": group_id})


def lock_leases(schema: str, *, group_id: int) -> Statement[Owned]:
    return of_system("lock_leases", schema, Owned, {"group_id": group_id})


def get_claimed(schema: str, *, group_id: int) -> Statement[Identified]:
    return of_system("get_claimed", schema, Identified, {"group_id": group_id})


def list_leases_above(schema: str, *, group_id: int, position: int) -> Statement[OpenRange]:
    return of_system("list_leases_above", schema, OpenRange, {"group_id": group_id, "position": position})


def measure_messages(family: Family, *, above: int, through: int) -> Statement[Measured]:
    return of_family("measure_messages", family, Measured, {"above": above, "through": through})


def count_exceptions_above(family: Family, *, group_id: int, position: int) -> Statement[ExceptionCounts]:
    parameters = {"group_id": group_id, "position": position}
    return of_family("count_exceptions_above", family, ExceptionCounts, parameters)


def delete_leases_above(schema: str, *, group_id: int, position: int) -> Statement[Nothing]:
    return of_system("delete_leases_above", schema, nothing, {"group_id": group_id, "position": position})


def delete_exceptions_above(family: Family, *, group_id: int, position: int) -> Statement[Nothing]:
    return of_family("delete_exceptions_above", family, nothing, {"group_id": group_id, "position": position})


def move_cursor(schema: str, *, group_id: int, position: int) -> Statement[Nothing]:
    return of_system("move_cursor", schema, nothing, {"group_id": group_id, "position": position})


def log_position(
    schema: str,
    *,
    group_id: int,
    action: str,
    claimed: int,
    position: int,
    messages: int,
    first_id: int | None,
    last_id: int | None,
    leases: int = 0,
    exceptions: int = 0,
) -> Statement[Nothing]:
    parameters = {
        "group_id": group_id,
        "action": action,
        "claimed": claimed,
        "position": position,
        "messages": messages,
        "first_id": first_id,
        "last_id": last_id,
        "leases": leases,
        "exceptions": exceptions,
    }
    return of_system("log_position", schema, nothing, parameters)


def list_positions(schema: str, *, group_id: int, limit: int) -> Statement[PositionChange]:
    return of_system("list_positions", schema, PositionChange, {"group_id": group_id, "limit": limit})
