"""Every statement as a value: the SQL of sql/*.sql filled in, its parameters, and what a row becomes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from sqlstreams import model, sql
from sqlstreams.codec import decode_headers
from sqlstreams.model import (
    BlockedKey,
    DeadLetter,
    DeliveryRecord,
    GroupInfo,
    GroupStatus,
    Holder,
    Instance,
    PositionChange,
    Privileges,
    Reclaim,
    Redriven,
    RoutingKeyUse,
    ServerSettings,
    StoredMessage,
    StreamInfo,
    StreamStatus,
    UnreadVersion,
)
from sqlstreams.options import MAX_ID, DeadFilter, DeliveryLimits, GroupOptions, StreamOptions

RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")


class Statement(Struct, Generic[RowT], frozen=True):
    """One question to the database. `row` is called with the columns of each row of the answer.

    `parameters` is None for a text of several commands, which PostgreSQL takes only without parameters.
    """

    name: str
    query: bytes
    parameters: Mapping[str, Any] | None
    row: Callable[..., RowT]


Act = Generator[Statement[Any], list[Any], ResultT]
"""Steps that ask one statement after the other in one transaction; whoever drives it may wait, it never does."""


def ask(statement: Statement[RowT]) -> Act[list[RowT]]:
    """Ask one statement within an act; return its rows."""
    rows: list[RowT] = yield statement
    return rows


class Family(Struct, frozen=True):
    """Where a stream's tables are: the schema and the stream's id."""

    schema: str
    stream: int


class Nothing(Struct, frozen=True):
    """The row of a statement that is asked for its effect."""


class Identified(Struct, frozen=True):
    """A row that names something by its id."""

    id: int


class Installed(Struct, frozen=True):
    """Whether the schema holds an installation."""

    installed: bool


class Applied(Struct, frozen=True):
    """A migration as the database remembers it. `stream_id` is 0 in the system scope."""

    scope: str
    stream_id: int
    version: int
    name: str
    checksum: str
    breaking: bool
    library: str
    applied_at: datetime


class NamedStream(Struct, frozen=True):
    """A stream's id and name."""

    id: int
    name: str


class PayloadShape(Struct, frozen=True):
    """The recorded shape of one version of a payload type."""

    fingerprint: str
    json_schema: dict[str, Any]


class VersionRow(Struct, frozen=True):
    """One version of a stream and what one group has left of it; without a group, nobody has any."""

    schema_version: int
    registered_at: datetime | None
    group: str | None
    waiting: int
    unread: int
    dead: int


class Edge(Struct, frozen=True):
    """The first id of a log that has no partition yet."""

    edge: int


class Fate(Struct, frozen=True):
    """What became of a transaction: committed, aborted, in progress, or None when too old to be known."""

    status: str | None


class SettledHead(Struct, frozen=True):
    """The visible head of a log and the transactions that held it a moment later."""

    head: int
    holders: tuple[Holder, ...]


class Polled(Struct, frozen=True):
    """What there is to do for one group. `due_in` is in seconds until the next retry.

    `gated` says whether keys matter to its claims, `bound` whether bindings do; `updated_at` when its settings changed
    last, `unread` which versions wait for a process that can read them.
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


class Owned(Struct, frozen=True):
    """A lease that is still ours."""

    token: UUID


class Recorded(Struct, frozen=True):
    """An exception row, the state that it is in now, and in how many seconds it is due."""

    message_id: int
    state: str
    due_in: float


Columns = tuple[Any, ...]


def _nothing(*_: object) -> Nothing:
    return Nothing()


def _columns(*columns: Any) -> Columns:
    return columns


def _first(row: Callable[..., RowT], count: int) -> Callable[..., RowT]:
    # The columns behind `count` are settings made by the statement on its way.
    return lambda *columns: row(*columns[:count])


def _stored_message(
    message_id: int,
    payload: bytes,
    key: str | None,
    routing_key: str | None,
    options: bytes | None,
    schema_version: int,
    created_at: datetime,
) -> StoredMessage:
    return StoredMessage(
        id=message_id,
        payload=model.RawPayload(payload),
        key=key,
        routing_key=routing_key,
        headers=decode_headers(options),
        schema_version=schema_version,
        created_at=created_at,
    )


def _group(*columns: Any) -> GroupInfo:
    group = GroupInfo(*columns)
    limits: Any = group.limits  # as JSON so far
    decoded = msgspec.json.decode(limits, type=DeliveryLimits)
    return msgspec.structs.replace(group, limits=decoded, bindings=tuple(group.bindings))


def _reclaim(group_id: int, low: int, high: int, resolved: int, done: list[int], *rest: Any) -> Reclaim:
    return Reclaim(group_id, low, high, resolved, tuple(done), *rest)


def _holder(head: int | None, transaction: str | None, pid: int | None, *rest: Any) -> tuple[int, Holder | None]:
    return head or 0, None if transaction is None else Holder(transaction, pid, *rest)


def _of_system(
    name: str, schema: str, row: Callable[..., RowT], parameters: Mapping[str, Any] | None = None
) -> Statement[RowT]:
    return Statement(name, sql.render(name, schema), parameters or {}, row)


def _of_family(
    name: str, family: Family, row: Callable[..., RowT], parameters: Mapping[str, Any] | None = None
) -> Statement[RowT]:
    return Statement(name, sql.render(name, family.schema, family.stream), parameters or {}, row)


# The installation


def create_schema(schema: str) -> Statement[Nothing]:
    return _of_system("create_schema", schema, _nothing)


def lock_schema(schema: str) -> Statement[Nothing]:
    return _of_system("lock_schema", schema, _nothing)


def create_migration_log(schema: str) -> Statement[Nothing]:
    return _of_system("create_migration_log", schema, _nothing)


def is_installed(schema: str) -> Statement[Installed]:
    return _of_system("is_installed", schema, Installed)


def list_applied(schema: str) -> Statement[Applied]:
    return _of_system("list_applied", schema, Applied)


def record_migration(
    schema: str, *, scope: str, stream_id: int, version: int, name: str, checksum: str, breaking: bool, library: str
) -> Statement[Columns]:
    return _of_system(
        "record_migration",
        schema,
        _columns,
        {
            "scope": scope,
            "stream_id": stream_id,
            "version": version,
            "name": name,
            "checksum": checksum,
            "breaking": breaking,
            "library": library,
        },
    )


def run_migration(text: str, *, schema: str, stream: int | None) -> Statement[Nothing]:
    """Send the text of a migration: several commands, so without parameters."""
    return Statement("run_migration", sql.fill(text, schema=schema, stream=stream).encode(), None, _nothing)


def list_stream_ids(schema: str) -> Statement[NamedStream]:
    return _of_system("list_stream_ids", schema, NamedStream)


def show_server(schema: str) -> Statement[ServerSettings]:
    return _of_system("show_server", schema, ServerSettings)


def list_prepared(schema: str) -> Statement[Holder]:
    return _of_system("list_prepared", schema, Holder)


def show_privileges(schema: str) -> Statement[Privileges]:
    return _of_system("show_privileges", schema, Privileges, {"schema": schema})


# Streams


def insert_stream(schema: str, *, name: str, options: StreamOptions) -> Statement[StreamInfo]:
    return _of_system("insert_stream", schema, StreamInfo, {"name": name, **msgspec.structs.asdict(options)})


def get_stream(schema: str, *, name: str) -> Statement[StreamInfo]:
    return _of_system("get_stream", schema, StreamInfo, {"name": name})


def lock_stream(schema: str, *, name: str) -> Statement[StreamInfo]:
    return _of_system("lock_stream", schema, StreamInfo, {"name": name})


def update_stream(schema: str, *, stream_id: int, options: StreamOptions) -> Statement[StreamInfo]:
    return _of_system("update_stream", schema, StreamInfo, {"id": stream_id, **msgspec.structs.asdict(options)})


def rename_stream(schema: str, *, stream_id: int, new_name: str) -> Statement[StreamInfo]:
    return _of_system("rename_stream", schema, StreamInfo, {"id": stream_id, "new_name": new_name})


def delete_stream(schema: str, *, stream_id: int) -> Statement[Nothing]:
    return _of_system("delete_stream", schema, _nothing, {"id": stream_id})


def drop_family(family: Family) -> Statement[Nothing]:
    return _of_family("drop_family", family, _nothing)


def forget_family(schema: str, *, stream_id: int) -> Statement[Nothing]:
    return _of_system("forget_family", schema, _nothing, {"stream_id": stream_id})


def log_stream(schema: str, *, stream_id: int, action: str, config: bytes) -> Statement[Nothing]:
    parameters = {"stream_id": stream_id, "action": action, "config": config.decode()}
    return _of_system("log_stream", schema, _nothing, parameters)


def list_streams(schema: str) -> Statement[StreamInfo]:
    return _of_system("list_streams", schema, StreamInfo)


def get_stream_status(schema: str, *, name: str) -> Statement[StreamStatus]:
    return _of_system("get_stream_status", schema, StreamStatus, {"name": name})


def insert_payload_schema(
    schema: str, *, stream_id: int, schema_version: int, fingerprint: str, json_schema: bytes
) -> Statement[Columns]:
    parameters = {
        "stream_id": stream_id,
        "schema_version": schema_version,
        "fingerprint": fingerprint,
        "json_schema": json_schema.decode(),
    }
    return _of_system("insert_payload_schema", schema, _columns, parameters)


def get_payload_schema(schema: str, *, stream_id: int, schema_version: int) -> Statement[PayloadShape]:
    parameters = {"stream_id": stream_id, "schema_version": schema_version}
    return _of_system("get_payload_schema", schema, PayloadShape, parameters)


def preview_bindings(family: Family, *, patterns: list[str] | None, last: int) -> Statement[RoutingKeyUse]:
    return _of_family("preview_bindings", family, RoutingKeyUse, {"patterns": patterns, "last": last})


def list_versions(family: Family) -> Statement[VersionRow]:
    return _of_family("list_versions", family, VersionRow, {"stream_id": family.stream})


def read_messages(family: Family, *, from_id: int, limit: int) -> Statement[StoredMessage]:
    return _of_family("read_messages", family, _stored_message, {"from_id": from_id, "limit": limit})


def read_last_messages(family: Family, *, limit: int) -> Statement[StoredMessage]:
    return _of_family("read_last_messages", family, _stored_message, {"limit": limit})


def read_settled_head(family: Family) -> Statement[tuple[int, Holder | None]]:
    return _of_family("read_settled_head", family, _holder)


def settled_head(rows: Sequence[tuple[int, Holder | None]]) -> SettledHead:
    """Put the rows of `read_settled_head` together."""
    return SettledHead(head=rows[0][0], holders=tuple(holder for _, holder in rows if holder is not None))


def find_position(
    family: Family, *, at: datetime | None, head: int, held_for: timedelta | None
) -> Statement[Identified]:
    return _of_family("find_position", family, Identified, {"at": at, "head": head, "held_for": held_for})


# Producing


def produce_many(
    family: Family,
    *,
    schema_version: int,
    payloads: object,
    routing_keys: list[str | None] | None,
    message_keys: list[str | None] | None,
    options: object,
) -> Statement[int]:
    parameters = {
        "schema_version": schema_version,
        "payloads": payloads,
        "routing_keys": routing_keys,
        "message_keys": message_keys,
        "options": options,
    }
    return _of_family("produce_many", family, int, parameters)


def extend_log(family: Family, *, ahead: int) -> Statement[Edge]:
    return _of_family("extend_log", family, Edge, {"ahead": ahead})


def read_xact(schema: str) -> Statement[int]:
    return _of_system("read_xact", schema, int)


def ask_commit(schema: str, *, xact: int) -> Statement[Fate]:
    return _of_system("ask_commit", schema, Fate, {"xact": xact})


def notify(schema: str, *, channel: str, stream_ids: list[int]) -> Statement[Nothing]:
    return _of_system("notify", schema, _nothing, {"channel": channel, "stream_ids": stream_ids})


# Consumer groups


def insert_group(
    schema: str, *, stream_id: int, name: str, start_at: str, options: GroupOptions
) -> Statement[Identified]:
    parameters = {"stream_id": stream_id, "name": name, "start_at": start_at, **_settings(options)}
    return _of_system("insert_group", schema, Identified, parameters)


def insert_cursor(schema: str, *, group_id: int, claimed: int, patterns: list[str] | None) -> Statement[Nothing]:
    parameters = {"group_id": group_id, "claimed": claimed, "patterns": patterns}
    return _of_system("insert_cursor", schema, _nothing, parameters)


def bind_group(schema: str, *, group_id: int, patterns: list[str] | None) -> Statement[Nothing]:
    return _of_system("bind_group", schema, _nothing, {"group_id": group_id, "patterns": patterns})


def update_group(schema: str, *, group_id: int, options: GroupOptions) -> Statement[Nothing]:
    return _of_system("update_group", schema, _nothing, {"id": group_id, **_settings(options)})


def _settings(options: GroupOptions) -> Mapping[str, object]:
    limits = msgspec.json.encode(options.limits).decode()
    return {**msgspec.structs.asdict(options), "limits": limits, "bindings": list(options.bindings)}


def get_group(schema: str, *, stream_id: int, name: str) -> Statement[GroupInfo]:
    return _of_system("get_group", schema, _group, {"stream_id": stream_id, "name": name})


def reread_group(schema: str, *, group_id: int) -> Statement[GroupInfo]:
    return _of_system("reread_group", schema, _group, {"group_id": group_id})


def list_groups(schema: str, *, stream_id: int | None) -> Statement[GroupInfo]:
    return _of_system("list_groups", schema, _group, {"stream_id": stream_id})


def rename_group(schema: str, *, stream_id: int, group_id: int, new_name: str) -> Statement[Identified]:
    parameters = {"id": group_id, "stream_id": stream_id, "new_name": new_name}
    return _of_system("rename_group", schema, Identified, parameters)


def delete_group(schema: str, *, group_id: int) -> Statement[Nothing]:
    return _of_system("delete_group", schema, _nothing, {"id": group_id})


def delete_exceptions(family: Family, *, group_id: int) -> Statement[Nothing]:
    return _of_family("delete_exceptions", family, _nothing, {"group_id": group_id})


def delete_deliveries(family: Family, *, group_id: int) -> Statement[Nothing]:
    return _of_family("delete_deliveries", family, _nothing, {"group_id": group_id})


def log_group(schema: str, *, stream_id: int, group_id: int, action: str, config: bytes) -> Statement[Nothing]:
    parameters = {"stream_id": stream_id, "group_id": group_id, "action": action, "config": config.decode()}
    return _of_system("log_group", schema, _nothing, parameters)


def get_group_status(schema: str, *, group_id: int) -> Statement[GroupStatus]:
    return _of_system("get_group_status", schema, GroupStatus, {"group_id": group_id})


def list_reclaims(schema: str, *, group_id: int, limit: int) -> Statement[Reclaim]:
    return _of_system("list_reclaims", schema, _reclaim, {"group_id": group_id, "limit": limit})


# Positions of groups


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

    ready: int
    deferred: int
    inflight: int
    unread: int
    dead: int


def lock_position(schema: str, *, group_id: int) -> Statement[Identified]:
    return _of_system("lock_position", schema, Identified, {"group_id": group_id})


def lock_leases(schema: str, *, group_id: int) -> Statement[Owned]:
    return _of_system("lock_leases", schema, Owned, {"group_id": group_id})


def get_claimed(schema: str, *, group_id: int) -> Statement[Identified]:
    return _of_system("get_claimed", schema, Identified, {"group_id": group_id})


def list_leases_above(schema: str, *, group_id: int, position: int) -> Statement[OpenRange]:
    return _of_system("list_leases_above", schema, OpenRange, {"group_id": group_id, "position": position})


def measure_messages(family: Family, *, above: int, through: int) -> Statement[Measured]:
    return _of_family("measure_messages", family, Measured, {"above": above, "through": through})


def count_exceptions_above(family: Family, *, group_id: int, position: int) -> Statement[ExceptionCounts]:
    parameters = {"group_id": group_id, "position": position}
    return _of_family("count_exceptions_above", family, ExceptionCounts, parameters)


def delete_leases_above(schema: str, *, group_id: int, position: int) -> Statement[Nothing]:
    return _of_system("delete_leases_above", schema, _nothing, {"group_id": group_id, "position": position})


def delete_exceptions_above(family: Family, *, group_id: int, position: int) -> Statement[Nothing]:
    return _of_family("delete_exceptions_above", family, _nothing, {"group_id": group_id, "position": position})


def move_cursor(schema: str, *, group_id: int, position: int) -> Statement[Nothing]:
    return _of_system("move_cursor", schema, _nothing, {"group_id": group_id, "position": position})


def log_position(
    schema: str,
    *,
    group_id: int,
    action: str,
    claimed: int,
    position: int,
    messages: int,
    leases: int = 0,
    exceptions: int = 0,
) -> Statement[Nothing]:
    parameters = {
        "group_id": group_id,
        "action": action,
        "claimed": claimed,
        "position": position,
        "messages": messages,
        "leases": leases,
        "exceptions": exceptions,
    }
    return _of_system("log_position", schema, _nothing, parameters)


def list_positions(schema: str, *, group_id: int, limit: int) -> Statement[PositionChange]:
    return _of_system("list_positions", schema, PositionChange, {"group_id": group_id, "limit": limit})


# Consuming processes


def insert_instance(
    schema: str, *, token: UUID, hostname: str, pid: int, library: str, ttl: float
) -> Statement[Identified]:
    parameters = {"token": token, "hostname": hostname, "pid": pid, "library": library, "ttl": ttl}
    return _of_system("insert_instance", schema, Identified, parameters)


def delete_forgotten_instances(schema: str) -> Statement[Nothing]:
    return _of_system("delete_forgotten_instances", schema, _nothing)


def renew_instance(schema: str, *, instance_id: int, token: UUID, ttl: float) -> Statement[Columns]:
    return _of_system("renew_instance", schema, _columns, {"id": instance_id, "token": token, "ttl": ttl})


def checkpoint(
    schema: str, *, instance_id: int, tokens: list[UUID], resolved: list[int], done: list[list[int]]
) -> Statement[Owned]:
    parameters = _progress(instance_id, tokens, resolved, done)
    return _of_system("checkpoint", schema, _first(Owned, 1), parameters)


def release_leases(
    schema: str, *, instance_id: int, tokens: list[UUID], resolved: list[int], done: list[list[int]]
) -> Statement[Owned]:
    return _of_system("release_leases", schema, Owned, _progress(instance_id, tokens, resolved, done))


def _progress(instance_id: int, tokens: list[UUID], resolved: list[int], done: list[list[int]]) -> Mapping[str, object]:
    # Arrays of arrays must be of one length, so the inner ones travel as text.
    literals = ["{" + ",".join(map(str, ids)) + "}" for ids in done]
    return {"instance_id": instance_id, "tokens": tokens, "resolved": resolved, "done": literals}


def delete_instance(schema: str, *, instance_id: int, token: UUID) -> Statement[Nothing]:
    return _of_system("delete_instance", schema, _nothing, {"id": instance_id, "token": token})


def list_instances(schema: str, *, group_id: int) -> Statement[Instance]:
    return _of_system("list_instances", schema, Instance, {"group_id": group_id})


def poll(schema: str, *, groups: Mapping[int, list[int]]) -> Statement[Polled]:
    """One statement for every group: `groups` maps a stream's id to the ids of its groups."""
    parts = [sql.render("poll", schema, stream) for stream in groups]
    parameters = {f"group_ids_{stream}": group_ids for stream, group_ids in groups.items()}
    return Statement("poll", b"\nunion all\n".join(parts), parameters, Polled)


# Claims


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
    return _of_family("claim", family, _columns, parameters)


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
    return _of_family("claim_bound", family, _columns, parameters)


def finish(schema: str, *, instance_id: int, finished: list[UUID]) -> Statement[Owned]:
    return _of_system("finish", schema, _first(Owned, 1), {"instance_id": instance_id, "finished": finished})


def disown(schema: str, *, group_id: int, instance_id: int, known: list[UUID]) -> Statement[Owned]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "known": known}
    return _of_system("disown", schema, _first(Owned, 1), parameters)


def take_over(family: Family, *, group_id: int, instance_id: int, token: UUID, gated: bool) -> Statement[Columns]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "token": token, "gated": gated}
    return _of_family("take_over", family, _columns, parameters)


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
    return _of_family("record_exceptions", family, Recorded, parameters)


def claim_exceptions(
    family: Family,
    *,
    group_id: int,
    instance_id: int,
    token: UUID,
    limit: int,
    free: int,
    followers: int,
    versions: list[int],
) -> Statement[Columns]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        "limit": limit,
        "free": free,
        "followers": followers,
        "versions": versions,
    }
    return _of_family("claim_exceptions", family, _columns, parameters)


def list_unread_versions(family: Family, *, group_id: int) -> Statement[UnreadVersion]:
    return _of_family("list_unread_versions", family, UnreadVersion, {"group_id": group_id})


def complete_exceptions(family: Family, *, group_id: int, token: UUID, message_ids: list[int]) -> Statement[Identified]:
    parameters = {"group_id": group_id, "token": token, "message_ids": message_ids}
    return _of_family("complete_exceptions", family, _first(Identified, 1), parameters)


def return_exceptions(
    family: Family, *, group_id: int, instance_id: int, token: UUID, failures: Failures
) -> Statement[Recorded]:
    parameters = {
        "group_id": group_id,
        "instance_id": instance_id,
        "token": token,
        **msgspec.structs.asdict(failures),
    }
    return _of_family("return_exceptions", family, _first(Recorded, 3), parameters)


def release_exceptions(family: Family, *, group_id: int, instance_id: int, known: list[UUID]) -> Statement[Identified]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "known": known}
    return _of_family("release_exceptions", family, Identified, parameters)


def free_exceptions(family: Family, *, group_id: int, instance_id: int) -> Statement[Recorded]:
    return _of_family("free_exceptions", family, Recorded, {"group_id": group_id, "instance_id": instance_id})


def start_exception(family: Family, *, group_id: int, token: UUID, message_id: int) -> Statement[Identified]:
    parameters = {"group_id": group_id, "token": token, "message_id": message_id}
    return _of_family("start_exception", family, _first(Identified, 1), parameters)


def note_running(
    schema: str, *, instance_id: int, token: UUID, message_id: int | None, resolved: int
) -> Statement[Owned]:
    parameters = {"instance_id": instance_id, "token": token, "message_id": message_id, "resolved": resolved}
    return _of_system("note_running", schema, _first(Owned, 1), parameters)


# Dead letters


def find_dead_letters(
    family: Family, *, group_id: int, meant: DeadFilter, after: int, limit: int
) -> Statement[Identified]:
    message_ids = meant.ids_behind(after, limit=limit)
    parameters = {
        **msgspec.structs.asdict(meant),
        "group_id": group_id,
        "message_ids": message_ids,
        # Ids that were named lie close together or not; either way the index is read between the first and the last.
        "after": max(after, message_ids[0] - 1) if message_ids else after,
        "through": message_ids[-1] if message_ids else MAX_ID,
        "limit": limit,
    }
    return _of_family("find_dead_letters", family, Identified, parameters)


def read_dead_letters(family: Family, *, group_id: int, message_ids: list[int]) -> Statement[DeadLetter]:
    parameters = {"group_id": group_id, "message_ids": message_ids}
    return _of_family("read_dead_letters", family, DeadLetter, parameters)


def list_deliveries(family: Family, *, group_id: int, message_id: int, limit: int) -> Statement[DeliveryRecord]:
    parameters = {"group_id": group_id, "message_id": message_id, "limit": limit}
    return _of_family("list_deliveries", family, DeliveryRecord, parameters)


def redrive_dead_letters(
    family: Family, *, group_id: int, message_ids: list[int], rate: float | None
) -> Statement[Redriven]:
    parameters = {"group_id": group_id, "message_ids": message_ids, "rate": rate}
    return _of_family("redrive_dead_letters", family, Redriven, parameters)


def discard_dead_letters(
    family: Family, *, group_id: int, message_ids: list[int], reason: str
) -> Statement[Identified]:
    parameters = {"group_id": group_id, "message_ids": message_ids, "reason": reason}
    return _of_family("discard_dead_letters", family, Identified, parameters)


# Keys


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
    return _of_system("lock_cursor", schema, _columns, {"group_id": group_id})


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
    return _of_family("gate", family, Gated, parameters)


def release_keys(schema: str, *, group_id: int, instance_id: int, keys: list[str]) -> Statement[Key]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "keys": keys}
    return _of_system("release_keys", schema, _first(Key, 1), parameters)


def disown_keys(schema: str, *, group_id: int, instance_id: int, known: list[str]) -> Statement[Key]:
    parameters = {"group_id": group_id, "instance_id": instance_id, "known": known}
    return _of_system("disown_keys", schema, _first(Key, 1), parameters)


def promote(family: Family, *, group_id: int, keys: list[str]) -> Statement[Identified]:
    return _of_family("promote", family, _first(Identified, 1), {"group_id": group_id, "keys": keys})


def free_keys(family: Family, *, group_id: int) -> Statement[Key]:
    return _of_family("free_keys", family, _first(Key, 1), {"group_id": group_id})


def list_blocked_keys(family: Family, *, group_id: int, limit: int) -> Statement[BlockedKey]:
    return _of_family("list_blocked_keys", family, BlockedKey, {"group_id": group_id, "limit": limit})


def mark_keyed(schema: str, *, stream_id: int) -> Statement[Identified]:
    return _of_system("mark_keyed", schema, Identified, {"stream_id": stream_id})
