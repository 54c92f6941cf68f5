"""Statements of retention: sql/retention.sql."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from sqlstreams.model import (
    Holder,
)
from sqlstreams.statements.statement import (
    Family,
    Identified,
    Nothing,
    Statement,
    nothing,
    of_family,
    of_system,
)


class Kept(Struct, frozen=True):
    """The first id that is kept; what was removed is older than `expired_before`, what may be than `expires_before`."""

    kept_from: int
    expired_before: datetime | None
    expires_before: datetime | None


class Partition(Struct, frozen=True):
    """A partition of a log: `first_id` up to `edge` (exclusive); `taken` is the last id that was taken of the log."""

    first_id: int
    edge: int
    detaching: bool
    written: bool
    taken: int


class Unread(Struct, frozen=True):
    """The first id that a group has not done."""

    group_id: int
    group: str
    first_id: int
    reason: str


class LowestHead(Struct, frozen=True):
    """The lowest message that counts for its key."""

    id: int
    key: str


class Lost(Struct, frozen=True):
    """What a group has not done of messages that go, `waiting` of it in its exception queue."""

    claimed: int
    messages: int
    waiting: int
    first_id: int | None
    last_id: int | None


class Expired(Struct, frozen=True):
    """How much of a stream is below the first id that is kept."""

    messages: int
    exceptions: int
    deliveries: int


class Deleted(Struct, frozen=True):
    """How many rows one batch removed, and whether more remain."""

    rows: int
    remain: bool


class Named(Struct, frozen=True):
    """A row that names something."""

    name: str


class Dropped(Struct, frozen=True):
    """How many tables were removed."""

    tables: int


def bound_waiting(schema: str) -> Statement[Nothing]:
    return of_system("bound_waiting", schema, nothing)


def get_kept(schema: str, *, stream_id: int) -> Statement[Kept]:
    return of_system("get_kept", schema, Kept, {"stream_id": stream_id})


def hold_kept(schema: str, *, stream_id: int) -> Statement[Identified]:
    return of_system("hold_kept", schema, Identified, {"stream_id": stream_id})


def move_kept(schema: str, *, stream_id: int, kept_from: int, expired_before: datetime | None) -> Statement[Nothing]:
    parameters = {"stream_id": stream_id, "kept_from": kept_from, "expired_before": expired_before}
    return of_system("move_kept", schema, nothing, parameters)


def list_expiring(schema: str) -> Statement[Named]:
    return of_system("list_expiring", schema, Named)


def list_partitions(family: Family) -> Statement[Partition]:
    return of_family("list_partitions", family, Partition)


def lock_cursors(schema: str, *, stream_id: int) -> Statement[Identified]:
    return of_system("lock_cursors", schema, Identified, {"stream_id": stream_id})


def list_unread(family: Family) -> Statement[Unread]:
    return of_family("list_unread", family, Unread)


def find_lowest_head(family: Family) -> Statement[LowestHead]:
    return of_family("find_lowest_head", family, LowestHead)


def measure_lost(family: Family, *, group_id: int, kept_from: int) -> Statement[Lost]:
    return of_family("measure_lost", family, Lost, {"group_id": group_id, "kept_from": kept_from})


def delete_leases_through(schema: str, *, group_id: int, position: int) -> Statement[Nothing]:
    return of_system("delete_leases_through", schema, nothing, {"group_id": group_id, "position": position})


def resolve_leases_through(schema: str, *, group_id: int, position: int) -> Statement[Nothing]:
    return of_system("resolve_leases_through", schema, nothing, {"group_id": group_id, "position": position})


def measure_expired(family: Family, *, first_id: int, kept_from: int) -> Statement[Expired]:
    return of_family("measure_expired", family, Expired, {"first_id": first_id, "kept_from": kept_from})


def delete_expired_exceptions(family: Family, *, kept_from: int, limit: int) -> Statement[Deleted]:
    return of_family("delete_expired_exceptions", family, Deleted, {"kept_from": kept_from, "limit": limit})


def delete_expired_deliveries(family: Family, *, kept_from: int, limit: int) -> Statement[Deleted]:
    return of_family("delete_expired_deliveries", family, Deleted, {"kept_from": kept_from, "limit": limit})


def delete_expired_messages(family: Family, *, first_id: int, kept_from: int, limit: int) -> Statement[Deleted]:
    parameters = {"first_id": first_id, "kept_from": kept_from, "limit": limit}
    return of_family("delete_expired_messages", family, Deleted, parameters)


def detach_partition(family: Family, *, first_id: int) -> Statement[Nothing]:
    return _of_partition("detach_partition", family, first_id)


def finish_detaching(family: Family, *, first_id: int) -> Statement[Nothing]:
    return _of_partition("finish_detaching", family, first_id)


def _of_partition(name: str, family: Family, first_id: int) -> Statement[Nothing]:
    # A command on a table takes no parameters; the number completes the last name of the text.
    statement = of_family(name, family, nothing)
    before, _, after = statement.query.rpartition(b"{first_id}")
    return msgspec.structs.replace(statement, query=b"%b%d%b" % (before, first_id, after))


def drop_detached(family: Family, *, below: int) -> Statement[Dropped]:
    return of_family("drop_detached", family, Dropped, {"below": below})


def list_log_users(family: Family) -> Statement[Holder]:
    return of_family("list_log_users", family, Holder)
