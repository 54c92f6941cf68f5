"""What is asked of the database about consumer groups."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from sqlstreams import statements
from sqlstreams.acts.stream import check_destroy, declared, find_place, get_stream, lock_stream, read_settled_head
from sqlstreams.errors import InvalidInput, NotFound
from sqlstreams.model import (
    BindingPreview,
    BlockedKey,
    GroupInfo,
    GroupStatus,
    Instance,
    Reclaim,
    StreamInfo,
    UnreadVersion,
)
from sqlstreams.options import GroupOptions, Start
from sqlstreams.routing import like_patterns
from sqlstreams.statements import Act, Family, ask


def register_group(schema: str, *, stream: str, name: str, start: Start, options: GroupOptions) -> Act[bool]:
    """Declare a consumer group: made when absent (only then does `start` count), its settings changed when other.

    Return whether it was made. The bindings of one that was there are left to `declare_bindings`.
    """
    info = yield from get_stream(schema, name=stream)
    created = yield from ask(
        statements.insert_group(schema, stream_id=info.id, name=name, start_at=_describe_start(start), options=options)
    )
    if created:
        claimed = yield from find_place(Family(schema, info.id), start)
        patterns = like_patterns(options.bindings)
        yield from ask(statements.insert_cursor(schema, group_id=created[0].id, claimed=claimed, patterns=patterns))
        group = yield from read_group(schema, info, name)
        yield from log_group(schema, info.id, group, "registered")
        return True
    group = yield from read_group(schema, info, name)
    if declared(group, GroupOptions) != msgspec.structs.replace(options, bindings=group.bindings):
        yield from ask(statements.update_group(schema, group_id=group.id, options=options))
        group = yield from read_group(schema, info, name)
        yield from log_group(schema, info.id, group, "changed")
    return False


def get_group(schema: str, *, stream: str, name: str) -> Act[GroupInfo]:
    """Read one consumer group; raise `NotFound` when it or its stream is absent."""
    info = yield from get_stream(schema, name=stream)
    return (yield from read_group(schema, info, name))


def list_groups(schema: str, *, stream: str | None) -> Act[list[GroupInfo]]:
    """Read every consumer group, or those of one stream."""
    stream_id = None if stream is None else (yield from get_stream(schema, name=stream)).id
    return (yield from ask(statements.list_groups(schema, stream_id=stream_id)))


def group_status(schema: str, *, stream: str, name: str) -> Act[GroupStatus]:
    """Read where a group stands, and which open transactions hold back its next claim."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    status = (yield from ask(statements.get_group_status(schema, group_id=group.id)))[0]
    waiting = yield from _waiting_for(Family(schema, info.id), status.claimed)
    return msgspec.structs.replace(status, holders=waiting)


def list_instances(schema: str, *, stream: str, name: str) -> Act[list[Instance]]:
    """Read the processes that hold work of a group."""
    group = yield from get_group(schema, stream=stream, name=name)
    return (yield from ask(statements.list_instances(schema, group_id=group.id)))


def list_blocked_keys(schema: str, *, stream: str, name: str, limit: int) -> Act[list[BlockedKey]]:
    """Read the keys of a group whose messages wait for each other, and what blocks them."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    return (yield from ask(statements.list_blocked_keys(Family(schema, info.id), group_id=group.id, limit=limit)))


def preview_bindings(schema: str, *, stream: str, bindings: tuple[str, ...], last: int) -> Act[BindingPreview]:
    """Read what bindings would take of the last messages of a stream."""
    info = yield from get_stream(schema, name=stream)
    statement = statements.preview_bindings(Family(schema, info.id), patterns=like_patterns(bindings), last=last)
    uses = yield from ask(statement)
    return BindingPreview(
        looked_at=sum(use.messages for use in uses),
        matching=sum(use.messages for use in uses if use.matches),
        routing_keys=tuple(uses),
    )


def list_unread_versions(schema: str, *, stream: str, name: str) -> Act[list[UnreadVersion]]:
    """Read of which schema versions messages wait for a process of the group that can read them."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    return (yield from ask(statements.list_unread_versions(Family(schema, info.id), group_id=group.id)))


def list_reclaims(schema: str, *, stream: str, name: str, limit: int) -> Act[list[Reclaim]]:
    """Read what was taken over from dead processes of a group, the latest first."""
    group = yield from get_group(schema, stream=stream, name=name)
    return (yield from ask(statements.list_reclaims(schema, group_id=group.id, limit=limit)))


def rename_group(schema: str, *, stream: str, name: str, new_name: str) -> Act[GroupInfo]:
    """Give a consumer group another name."""
    info = yield from lock_stream(schema, stream)
    group = yield from read_group(schema, info, name)
    if not (yield from ask(statements.rename_group(schema, stream_id=info.id, group_id=group.id, new_name=new_name))):
        raise InvalidInput("new_name", f"is taken: there is a consumer group named {new_name!r} on {stream!r}")
    renamed = yield from read_group(schema, info, new_name)
    yield from log_group(schema, info.id, renamed, "renamed")
    return renamed


def destroy_group(schema: str, *, stream: str, name: str, allowed: bool) -> Act[None]:
    """Remove a consumer group with its cursor, leases and exception rows; the log stays."""
    check_destroy(allowed, "consumer group", name)
    info = yield from lock_stream(schema, stream)
    group = yield from read_group(schema, info, name)
    # Before its settings: a claim under way has the cursor, and its lease refers to them.
    yield from ask(statements.lock_position(schema, group_id=group.id))
    yield from ask(statements.delete_group(schema, group_id=group.id))
    yield from ask(statements.delete_exceptions(Family(schema, info.id), group_id=group.id))
    yield from ask(statements.delete_deliveries(Family(schema, info.id), group_id=group.id))
    yield from log_group(schema, info.id, group, "destroyed")


def read_group(schema: str, stream: StreamInfo, name: str) -> Act[GroupInfo]:
    """Read one group of a stream; raise `NotFound` when it is absent."""
    found = yield from ask(statements.get_group(schema, stream_id=stream.id, name=name))
    if not found:
        raise NotFound("consumer group", f"{name} on {stream.name}")
    return found[0]


def log_group(schema: str, stream_id: int, group: GroupInfo, action: str) -> Act[None]:
    """Keep what a group is now, and who made it so."""
    yield from ask(
        statements.log_group(
            schema, stream_id=stream_id, group_id=group.id, action=action, config=msgspec.json.encode(group)
        )
    )


def _describe_start(start: Start) -> str:
    return start.isoformat() if isinstance(start, datetime) else str(start)


def _waiting_for(family: Family, claimed: int) -> Act[tuple[Any, ...]]:
    next_messages = yield from ask(statements.read_messages(family, from_id=claimed + 1, limit=1))
    if not next_messages or next_messages[0].id == claimed + 1:
        return ()
    return (yield from read_settled_head(family)).holders


def find_group(schema: str, stream: str, name: str) -> Act[tuple[Family, int]]:
    """Read where a group's stream has its tables, and the group's id."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    return Family(schema, info.id), group.id
