"""Statements of streams: sql/stream.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from sqlstreams import model
from sqlstreams.codec import decode_headers
from sqlstreams.model import (
    Holder,
    RoutingKeyUse,
    StoredMessage,
    StreamInfo,
    StreamStatus,
)
from sqlstreams.options import StreamOptions
from sqlstreams.statements.statement import (
    Columns,
    Family,
    Identified,
    Nothing,
    Statement,
    columns,
    nothing,
    of_family,
    of_system,
)


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


class SettledHead(Struct, frozen=True):
    """The visible head of a log and the transactions that held it a moment later."""

    head: int
    holders: tuple[Holder, ...]


def stored_message(
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


def _holder(head: int | None, transaction: str | None, pid: int | None, *rest: Any) -> tuple[int, Holder | None]:
    return head or 0, None if transaction is None else Holder(transaction, pid, *rest)


def insert_stream(schema: str, *, name: str, options: StreamOptions) -> Statement[StreamInfo]:
    return of_system("insert_stream", schema, StreamInfo, {"name": name, **msgspec.structs.asdict(options)})


def get_stream(schema: str, *, name: str) -> Statement[StreamInfo]:
    return of_system("get_stream", schema, StreamInfo, {"name": name})


def lock_stream(schema: str, *, name: str) -> Statement[StreamInfo]:
    return of_system("lock_stream", schema, StreamInfo, {"name": name})


def update_stream(schema: str, *, stream_id: int, options: StreamOptions) -> Statement[StreamInfo]:
    return of_system("update_stream", schema, StreamInfo, {"id": stream_id, **msgspec.structs.asdict(options)})


def rename_stream(schema: str, *, stream_id: int, new_name: str) -> Statement[StreamInfo]:
    return of_system("rename_stream", schema, StreamInfo, {"id": stream_id, "new_name": new_name})


def delete_stream(schema: str, *, stream_id: int) -> Statement[Nothing]:
    return of_system("delete_stream", schema, nothing, {"id": stream_id})


def drop_family(family: Family) -> Statement[Nothing]:
    return of_family("drop_family", family, nothing)


def forget_family(schema: str, *, stream_id: int) -> Statement[Nothing]:
    return of_system("forget_family", schema, nothing, {"stream_id": stream_id})


def log_stream(schema: str, *, stream_id: int, action: str, config: bytes) -> Statement[Nothing]:
    parameters = {"stream_id": stream_id, "action": action, "config": config.decode()}
    return of_system("log_stream", schema, nothing, parameters)


def list_streams(schema: str) -> Statement[StreamInfo]:
    return of_system("list_streams", schema, StreamInfo)


def get_stream_status(schema: str, *, name: str) -> Statement[StreamStatus]:
    return of_system("get_stream_status", schema, StreamStatus, {"name": name})


def insert_payload_schema(
    schema: str, *, stream_id: int, schema_version: int, fingerprint: str, json_schema: bytes
) -> Statement[Columns]:
    parameters = {
        "stream_id": stream_id,
        "schema_version": schema_version,
        "fingerprint": fingerprint,
        "json_schema": json_schema.decode(),
    }
    return of_system("insert_payload_schema", schema, columns, parameters)


def get_payload_schema(schema: str, *, stream_id: int, schema_version: int) -> Statement[PayloadShape]:
    parameters = {"stream_id": stream_id, "schema_version": schema_version}
    return of_system("get_payload_schema", schema, PayloadShape, parameters)


def preview_bindings(family: Family, *, patterns: list[str] | None, last: int) -> Statement[RoutingKeyUse]:
    return of_family("preview_bindings", family, RoutingKeyUse, {"patterns": patterns, "last": last})


def list_versions(family: Family) -> Statement[VersionRow]:
    return of_family("list_versions", family, VersionRow, {"stream_id": family.stream})


def read_messages(family: Family, *, from_id: int, limit: int) -> Statement[StoredMessage]:
    return of_family("read_messages", family, stored_message, {"from_id": from_id, "limit": limit})


def read_last_messages(family: Family, *, limit: int) -> Statement[StoredMessage]:
    return of_family("read_last_messages", family, stored_message, {"limit": limit})


def read_settled_head(family: Family) -> Statement[tuple[int, Holder | None]]:
    return of_family("read_settled_head", family, _holder)


def settled_head(rows: Sequence[tuple[int, Holder | None]]) -> SettledHead:
    """Put the rows of `read_settled_head` together."""
    return SettledHead(head=rows[0][0], holders=tuple(holder for _, holder in rows if holder is not None))


def find_position(
    family: Family, *, at: datetime | None, head: int, held_for: timedelta | None
) -> Statement[Identified]:
    return of_family("find_position", family, Identified, {"at": at, "head": head, "held_for": held_for})
