"""What each verb asks of the database, step by step: written once, driven by the blocking and the async client."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from sqlstreams import migration, statements
from sqlstreams.codec import Codec, describe_change, fingerprint
from sqlstreams.errors import DestroyRefused, InvalidInput, NotFound, NotInstalled, PayloadShapeChanged
from sqlstreams.model import (
    BindingPreview,
    BlockedKey,
    DeadLetter,
    DeadLetterDetail,
    DeliveryRecord,
    GroupInfo,
    GroupStatus,
    Holder,
    Instance,
    MigrationStep,
    PositionChange,
    Reclaim,
    Redriven,
    Rewind,
    ServerStatus,
    Skip,
    StoredMessage,
    StreamInfo,
    StreamStatus,
    StreamVersion,
    SystemStatus,
    UnreadVersion,
    VersionUse,
)
from sqlstreams.options import MAX_ID, DeadFilter, GroupOptions, Start, StreamOptions
from sqlstreams.routing import like_patterns
from sqlstreams.statements import Act, Applied, Family, NamedStream, SettledHead, ask

_UNSEEN: Final = timedelta(days=1)

# The installation


def is_installed(schema: str) -> Act[bool]:
    """Say whether the schema holds an installation."""
    return (yield from ask(statements.is_installed(schema)))[0].installed


def check_installation(schema: str) -> Act[None]:
    """Refuse a schema without an installation, or with one that this library cannot work with."""
    if not (yield from is_installed(schema)):
        raise NotInstalled(f"schema {schema!r} holds no sqlstreams installation")
    if lacking := (yield from _lacking(schema)):
        # A stream registered by another between the two statements lacks nothing at a second look.
        still = yield from _lacking(schema)
        lacking = [step for step in lacking if step in still]
    if lacking:
        first = lacking[0].describe()
        where = f"stream {first.stream!r}" if first.stream else "the system"
        raise NotInstalled(f"schema {schema!r} lacks migration {first.version:04} ({first.name}) of {where}")


def _lacking(schema: str) -> Act[list[migration.Step]]:
    applied = yield from ask(statements.list_applied(schema))
    migration.verify(migration.shipped(), applied)
    streams = yield from ask(statements.list_stream_ids(schema)) if applied else _no_streams()
    return migration.pending(migration.shipped(), applied, streams)


def migrate_next(schema: str) -> Act[list[MigrationStep]]:
    """Apply the next step that the schema needs, or return nothing when there is none left.

    On an empty schema that is every step of the system, so that nobody ever meets half an installation.
    Runs in a transaction of its own. The lock makes other starters wait, and the record that is written first makes
    them find the step done.
    """
    yield from ask(statements.lock_schema(schema))
    is_fresh = not (yield from is_installed(schema))
    if is_fresh:
        yield from ask(statements.create_schema(schema))
        yield from ask(statements.create_migration_log(schema))
    applied = []
    for step in (yield from _lacking(schema)):
        if (yield from _apply(schema, step)):
            applied.append(step.describe())
            if not is_fresh:
                break
    return applied


def show_system(schema: str, *, through_pooler: bool) -> Act[SystemStatus]:
    """Read what an installation consists of; works on an empty database too."""
    server = (yield from ask(statements.show_server(schema)))[0]
    installed = yield from is_installed(schema)
    applied = (yield from ask(statements.list_applied(schema))) if installed else []
    streams = (yield from ask(statements.list_stream_ids(schema))) if applied else []
    names = {stream.id: stream.name for stream in streams}
    return SystemStatus(
        schema=schema,
        installed=installed,
        server_version=server.version,
        through_pooler=through_pooler,
        library=migration.library_version(),
        applied=tuple(_describe_applied(each, names) for each in applied),
        pending=tuple(step.describe() for step in migration.pending(migration.shipped(), applied, streams)),
    )


def show_server(schema: str) -> Act[ServerStatus]:
    """Read what the server says of itself; works on an empty database too."""
    settings = (yield from ask(statements.show_server(schema)))[0]
    installed = yield from is_installed(schema)
    privileges = (yield from ask(statements.show_privileges(schema)))[0] if installed else None
    prepared = yield from ask(statements.list_prepared(schema))
    return ServerStatus(settings=settings, privileges=privileges, prepared=tuple(prepared))


def _no_streams() -> Act[list[NamedStream]]:
    return []
    yield  # a generator, so that it can stand where a statement is asked


def _apply(schema: str, step: migration.Step) -> Act[bool]:
    recorded = yield from ask(
        statements.record_migration(
            schema,
            scope=step.migration.scope,
            stream_id=step.stream.id,
            version=step.migration.version,
            name=step.migration.name,
            checksum=step.migration.checksum,
            breaking=step.migration.breaking,
            library=migration.library_version(),
        )
    )
    if recorded:
        yield from ask(statements.run_migration(step.migration.text, schema=schema, stream=step.stream.id or None))
    return bool(recorded)


def _describe_applied(applied: Applied, streams: dict[int, str]) -> MigrationStep:
    return MigrationStep(
        scope=applied.scope,
        stream=streams.get(applied.stream_id),
        version=applied.version,
        name=applied.name,
        breaking=applied.breaking,
        library=applied.library,
        applied_at=applied.applied_at,
    )


# Streams


def register_stream(schema: str, *, name: str, options: StreamOptions, codec: Codec[Any]) -> Act[StreamInfo]:
    """Declare a stream and the shape of its payload: made when absent, changed when other, else nothing is written."""
    created = yield from ask(statements.insert_stream(schema, name=name, options=options))
    if created:
        info = created[0]
        for step in migration.pending(migration.shipped(), [], [NamedStream(info.id, name)]):
            if step.migration.scope == "stream":
                yield from _apply(schema, step)
        yield from _log_stream(schema, info, "registered")
    else:
        info = yield from _update_stream(schema, name=name, options=options)
    yield from record_shape(schema, info, codec)
    return info


def _update_stream(schema: str, *, name: str, options: StreamOptions) -> Act[StreamInfo]:
    info = yield from get_stream(schema, name=name)
    if _settings(info, StreamOptions) == options:
        return info
    info = (yield from ask(statements.update_stream(schema, stream_id=info.id, options=options)))[0]
    yield from _log_stream(schema, info, "changed")
    return info


def record_shape(schema: str, stream: StreamInfo, codec: Codec[Any]) -> Act[None]:
    """Record the shape of a payload type under its version, or refuse it when another one is on record."""
    shape = codec.json_schema()
    if shape is None:
        return
    version, digest = codec.schema_version, fingerprint(shape)
    recorded = yield from ask(statements.get_payload_schema(schema, stream_id=stream.id, schema_version=version))
    if not recorded:
        encoded = msgspec.json.encode(shape, order="sorted")
        yield from ask(
            statements.insert_payload_schema(
                schema, stream_id=stream.id, schema_version=version, fingerprint=digest, json_schema=encoded
            )
        )
        recorded = yield from ask(statements.get_payload_schema(schema, stream_id=stream.id, schema_version=version))
    if recorded[0].fingerprint != digest:
        changes = describe_change(recorded[0].json_schema, shape)
        raise PayloadShapeChanged(
            "payload_type", f"differs from the shape of version {version} on stream {stream.name!r}: {changes}"
        )


def get_stream(schema: str, *, name: str) -> Act[StreamInfo]:
    """Read one stream; raise `NotFound` when it is absent."""
    found = yield from ask(statements.get_stream(schema, name=name))
    if not found:
        raise NotFound("stream", name)
    return found[0]


def list_streams(schema: str) -> Act[list[StreamInfo]]:
    """Read every stream by name."""
    return (yield from ask(statements.list_streams(schema)))


def stream_status(schema: str, *, name: str) -> Act[StreamStatus]:
    """Read what a stream's log holds."""
    found = yield from ask(statements.get_stream_status(schema, name=name))
    if not found:
        raise NotFound("stream", name)
    return found[0]


def rename_stream(schema: str, *, name: str, new_name: str) -> Act[StreamInfo]:
    """Give a stream another name."""
    info = yield from _lock_stream(schema, name)
    renamed = yield from ask(statements.rename_stream(schema, stream_id=info.id, new_name=new_name))
    if not renamed:
        raise InvalidInput("new_name", f"is taken: there is a stream named {new_name!r}")
    yield from _log_stream(schema, renamed[0], "renamed")
    return renamed[0]


def destroy_stream(schema: str, *, name: str, allowed: bool) -> Act[None]:
    """Remove a stream with its messages, its groups and everything known of them."""
    _check_destroy(allowed, "stream", name)
    info = yield from _lock_stream(schema, name)
    yield from ask(statements.drop_family(Family(schema, info.id)))
    yield from ask(statements.delete_stream(schema, stream_id=info.id))
    yield from ask(statements.forget_family(schema, stream_id=info.id))
    yield from _log_stream(schema, info, "destroyed")


def read_messages(schema: str, *, name: str, from_id: int, limit: int) -> Act[list[StoredMessage]]:
    """Read messages of a stream in the order of their ids."""
    info = yield from get_stream(schema, name=name)
    return (yield from ask(statements.read_messages(Family(schema, info.id), from_id=from_id, limit=limit)))


def read_last_messages(schema: str, *, name: str, limit: int) -> Act[list[StoredMessage]]:
    """Read the last visible messages of a stream, in the order of their ids."""
    info = yield from get_stream(schema, name=name)
    return list(reversed((yield from ask(statements.read_last_messages(Family(schema, info.id), limit=limit)))))


def list_versions(schema: str, *, name: str) -> Act[list[StreamVersion]]:
    """Read the schema versions of a stream, and which groups have messages of them left."""
    info = yield from get_stream(schema, name=name)
    rows = yield from ask(statements.list_versions(Family(schema, info.id)))
    versions: dict[int, StreamVersion] = {}
    for row in rows:
        known = versions.get(row.schema_version) or StreamVersion(row.schema_version, row.registered_at, ())
        use = () if row.group is None else (VersionUse(row.group, row.waiting, row.unread, row.dead),)
        versions[row.schema_version] = msgspec.structs.replace(known, groups=known.groups + use)
    return list(versions.values())


def find_position(schema: str, *, name: str, start: Start) -> Act[int]:
    """Return the id behind which a position lies: the last one that counts as read there."""
    info = yield from get_stream(schema, name=name)
    return (yield from _position(Family(schema, info.id), start))


def _position(family: Family, start: Start) -> Act[int]:
    if start == "beginning":
        return 0
    if isinstance(start, int):
        return start
    at = start if isinstance(start, datetime) else None
    # Who holds the log is asked first: whoever ends after that is visible to the statement that finds the place.
    seen = yield from read_settled_head(family)
    found = statements.find_position(family, at=at, head=seen.head, held_for=_held_for(seen.holders))
    return (yield from ask(found))[0].id


def _held_for(holders: Sequence[Holder]) -> timedelta | None:
    # A prepared transaction says since when it is prepared, others may be hidden from our role: each counts a day more.
    ages = (
        (holder.age or timedelta(0)) + (_UNSEEN if holder.prepared or holder.age is None else timedelta(0))
        for holder in holders
    )
    return max(ages, default=None)


def _lock_stream(schema: str, name: str) -> Act[StreamInfo]:
    found = yield from ask(statements.lock_stream(schema, name=name))
    if not found:
        raise NotFound("stream", name)
    return found[0]


def _log_stream(schema: str, info: StreamInfo, action: str) -> Act[None]:
    yield from ask(statements.log_stream(schema, stream_id=info.id, action=action, config=msgspec.json.encode(info)))


def _check_destroy(allowed: bool, kind: str, name: str) -> None:
    if not allowed:
        raise DestroyRefused(f"{kind} {name!r} was not destroyed: the client was opened without allow_destroy=True")


# Consumer groups


def register_group(schema: str, *, stream: str, name: str, start: Start, options: GroupOptions) -> Act[GroupInfo]:
    """Declare a consumer group: made when absent (only then does `start` count), changed when other."""
    info = yield from get_stream(schema, name=stream)
    created = yield from ask(
        statements.insert_group(schema, stream_id=info.id, name=name, start_at=_describe_start(start), options=options)
    )
    if created:
        claimed = yield from _position(Family(schema, info.id), start)
        patterns = like_patterns(options.bindings)
        yield from ask(statements.insert_cursor(schema, group_id=created[0].id, claimed=claimed, patterns=patterns))
        group = yield from _get_group(schema, info, name)
        yield from _log_group(schema, info, group, "registered")
        return group
    group = yield from _get_group(schema, info, name)
    if _settings(group, GroupOptions) != options:
        yield from ask(statements.update_group(schema, group_id=group.id, options=options))
        yield from ask(statements.bind_group(schema, group_id=group.id, patterns=like_patterns(options.bindings)))
        group = yield from _get_group(schema, info, name)
        yield from _log_group(schema, info, group, "changed")
    return group


def get_group(schema: str, *, stream: str, name: str) -> Act[GroupInfo]:
    """Read one consumer group; raise `NotFound` when it or its stream is absent."""
    info = yield from get_stream(schema, name=stream)
    return (yield from _get_group(schema, info, name))


def list_groups(schema: str, *, stream: str | None) -> Act[list[GroupInfo]]:
    """Read every consumer group, or those of one stream."""
    stream_id = None if stream is None else (yield from get_stream(schema, name=stream)).id
    return (yield from ask(statements.list_groups(schema, stream_id=stream_id)))


def group_status(schema: str, *, stream: str, name: str) -> Act[GroupStatus]:
    """Read where a group stands, and which open transactions hold back its next claim."""
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
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
    group = yield from _get_group(schema, info, name)
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
    group = yield from _get_group(schema, info, name)
    return (yield from ask(statements.list_unread_versions(Family(schema, info.id), group_id=group.id)))


def list_reclaims(schema: str, *, stream: str, name: str, limit: int) -> Act[list[Reclaim]]:
    """Read what was taken over from dead processes of a group, the latest first."""
    group = yield from get_group(schema, stream=stream, name=name)
    return (yield from ask(statements.list_reclaims(schema, group_id=group.id, limit=limit)))


def rename_group(schema: str, *, stream: str, name: str, new_name: str) -> Act[GroupInfo]:
    """Give a consumer group another name."""
    info = yield from _lock_stream(schema, stream)
    group = yield from _get_group(schema, info, name)
    if not (yield from ask(statements.rename_group(schema, stream_id=info.id, group_id=group.id, new_name=new_name))):
        raise InvalidInput("new_name", f"is taken: there is a consumer group named {new_name!r} on {stream!r}")
    renamed = yield from _get_group(schema, info, new_name)
    yield from _log_group(schema, info, renamed, "renamed")
    return renamed


def destroy_group(schema: str, *, stream: str, name: str, allowed: bool) -> Act[None]:
    """Remove a consumer group with its cursor, leases and exception rows; the log stays."""
    _check_destroy(allowed, "consumer group", name)
    info = yield from _lock_stream(schema, stream)
    group = yield from _get_group(schema, info, name)
    yield from ask(statements.delete_group(schema, group_id=group.id))
    yield from ask(statements.delete_exceptions(Family(schema, info.id), group_id=group.id))
    yield from ask(statements.delete_deliveries(Family(schema, info.id), group_id=group.id))
    yield from _log_group(schema, info, group, "destroyed")


def preview_rewind(schema: str, *, stream: str, name: str, to: Start) -> Act[Rewind]:
    """Say what a rewind of a group would do now."""
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
    return (yield from _preview_rewind(Family(schema, info.id), group.id, to))


def rewind_group(schema: str, *, stream: str, name: str, to: Start) -> Act[Rewind]:
    """Have a group go back to a position: what is behind it is taken from its processes and claimed afresh."""
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
    family = Family(schema, info.id)
    yield from ask(statements.lock_position(schema, group_id=group.id))
    yield from ask(statements.lock_leases(schema, group_id=group.id))
    done = yield from _preview_rewind(family, group.id, to)
    if done.position < done.claimed:
        yield from ask(statements.delete_leases_above(schema, group_id=group.id, position=done.position))
        yield from ask(statements.delete_exceptions_above(family, group_id=group.id, position=done.position))
        yield from ask(statements.move_cursor(schema, group_id=group.id, position=done.position))
        yield from ask(
            statements.log_position(
                schema,
                group_id=group.id,
                action="rewound",
                claimed=done.claimed,
                position=done.position,
                messages=done.messages,
                leases=done.leases,
                exceptions=done.exceptions,
            )
        )
    return done


def free_waiting(schema: str, *, stream: str, name: str) -> Act[None]:
    """Let messages go on that waited for the key of one that a rewind removed.

    In a transaction behind that of the rewind, so that of two who free a key at least one sees both.
    """
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
    family = Family(schema, info.id)
    freed = yield from ask(statements.free_keys(family, group_id=group.id))
    if freed:
        yield from ask(statements.promote(family, group_id=group.id, keys=sorted(each.key for each in freed)))


def preview_skip(schema: str, *, stream: str, name: str, to: Start) -> Act[Skip]:
    """Say what a skip of a group would do now."""
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
    return (yield from _preview_skip(Family(schema, info.id), group.id, to))


def skip_group(schema: str, *, stream: str, name: str, to: Start) -> Act[Skip]:
    """Have a group go on at a position without what lies before it. What was handed out already goes its way."""
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
    yield from ask(statements.lock_position(schema, group_id=group.id))
    done = yield from _preview_skip(Family(schema, info.id), group.id, to)
    if done.position > done.claimed:
        yield from ask(statements.move_cursor(schema, group_id=group.id, position=done.position))
        yield from ask(
            statements.log_position(
                schema,
                group_id=group.id,
                action="skipped",
                claimed=done.claimed,
                position=done.position,
                messages=done.messages,
            )
        )
    return done


def list_positions(schema: str, *, stream: str, name: str, limit: int) -> Act[list[PositionChange]]:
    """Read how a group was moved, the latest move first."""
    group = yield from get_group(schema, stream=stream, name=name)
    return (yield from ask(statements.list_positions(schema, group_id=group.id, limit=limit)))


def _preview_rewind(family: Family, group_id: int, to: Start) -> Act[Rewind]:
    schema = family.schema
    claimed = (yield from ask(statements.get_claimed(schema, group_id=group_id)))[0].id
    asked = min(claimed, (yield from _position(family, to)))
    taken = yield from ask(statements.list_leases_above(schema, group_id=group_id, position=asked))
    # A range that the position falls into is delivered as a whole, else its other messages would be lost.
    position = min([asked, *(each.resolved for each in taken if each.low <= asked)])
    if position == claimed:
        taken = []
    measured = (yield from ask(statements.measure_messages(family, above=position, through=claimed)))[0]
    counted = statements.count_exceptions_above(family, group_id=group_id, position=position)
    exceptions = (yield from ask(counted))[0]
    return Rewind(
        claimed=claimed,
        position=position,
        leases=len(taken),
        **msgspec.structs.asdict(measured),
        **msgspec.structs.asdict(exceptions),
    )


def _preview_skip(family: Family, group_id: int, to: Start) -> Act[Skip]:
    claimed = (yield from ask(statements.get_claimed(family.schema, group_id=group_id)))[0].id
    asked = yield from _position(family, to)
    if isinstance(to, int):
        head = (yield from read_settled_head(family)).head
        if asked > max(head, claimed):
            raise InvalidInput("to", f"must not lie ahead of the last message, which is {head}, got {asked}")
    position = max(claimed, asked)
    measured = (yield from ask(statements.measure_messages(family, above=claimed, through=position)))[0]
    return Skip(claimed=claimed, position=position, **msgspec.structs.asdict(measured))


def read_settled_head(family: Family) -> Act[SettledHead]:
    """Read a log's visible head and the transactions that may still fill a hole below it."""
    return statements.settled_head((yield from ask(statements.read_settled_head(family))))


def _waiting_for(family: Family, claimed: int) -> Act[tuple[Any, ...]]:
    next_messages = yield from ask(statements.read_messages(family, from_id=claimed + 1, limit=1))
    if not next_messages or next_messages[0].id == claimed + 1:
        return ()
    return (yield from read_settled_head(family)).holders


def _get_group(schema: str, stream: StreamInfo, name: str) -> Act[GroupInfo]:
    found = yield from ask(statements.get_group(schema, stream_id=stream.id, name=name))
    if not found:
        raise NotFound("consumer group", f"{name} on {stream.name}")
    return found[0]


def _log_group(schema: str, stream: StreamInfo, group: GroupInfo, action: str) -> Act[None]:
    yield from ask(
        statements.log_group(
            schema, stream_id=stream.id, group_id=group.id, action=action, config=msgspec.json.encode(group)
        )
    )


def _describe_start(start: Start) -> str:
    return start.isoformat() if isinstance(start, datetime) else str(start)


def _settings(info: object, options: type[Any]) -> Any:
    return options(**{name: getattr(info, name) for name in options.__struct_fields__})


# Dead letters

_DEAD_AT_A_TIME: Final = 1_000


class Moved(Struct, frozen=True):
    """How many dead letters one batch moved, and the id behind which the next begins (None: it was the last)."""

    messages: int
    next_after: int | None
    first_due: datetime | None = None
    last_due: datetime | None = None

    def behind(self, earlier: Redriven) -> Redriven:
        """Return what this batch and the earlier ones are together."""
        return Redriven(
            messages=earlier.messages + self.messages,
            first_due=earlier.first_due or self.first_due,
            last_due=self.last_due or earlier.last_due,
        )


def list_dead_letters(
    schema: str, *, stream: str, name: str, meant: DeadFilter, after: int, limit: int
) -> Act[list[DeadLetter]]:
    """Read dead letters of a group in the order of their ids, from behind one id on."""
    family, group_id = yield from _find_group(schema, stream, name)
    found = yield from ask(
        statements.find_dead_letters(family, group_id=group_id, meant=meant, after=after, limit=limit)
    )
    ids = [each.id for each in found]
    return (yield from ask(statements.read_dead_letters(family, group_id=group_id, message_ids=ids)))


def get_dead_letter(schema: str, *, stream: str, name: str, message_id: int) -> Act[DeadLetterDetail | None]:
    """Read one dead letter with its message and its deliveries."""
    family, group_id = yield from _find_group(schema, stream, name)
    letters = yield from ask(statements.read_dead_letters(family, group_id=group_id, message_ids=[message_id]))
    if not letters:
        return None
    messages = yield from ask(statements.read_messages(family, from_id=message_id, limit=1))
    deliveries = yield from ask(
        statements.list_deliveries(family, group_id=group_id, message_id=message_id, limit=MAX_ID)
    )
    message = messages[0] if messages and messages[0].id == message_id else None
    return DeadLetterDetail(letter=letters[0], message=message, deliveries=tuple(deliveries))


def list_deliveries(schema: str, *, stream: str, name: str, message_id: int, limit: int) -> Act[list[DeliveryRecord]]:
    """Read what the history of a group has of one message."""
    family, group_id = yield from _find_group(schema, stream, name)
    return (yield from ask(statements.list_deliveries(family, group_id=group_id, message_id=message_id, limit=limit)))


def redrive_dead_letters(
    schema: str, *, stream: str, name: str, meant: DeadFilter, after: int, rate: float | None
) -> Act[Moved]:
    """Have the next batch of dead letters delivered again."""
    family, group_id = yield from _find_group(schema, stream, name)
    ids, next_after = yield from _next_dead(family, group_id, meant, after)
    redriven = yield from ask(statements.redrive_dead_letters(family, group_id=group_id, message_ids=ids, rate=rate))
    return Moved(redriven[0].messages, next_after, redriven[0].first_due, redriven[0].last_due)


def discard_dead_letters(
    schema: str, *, stream: str, name: str, meant: DeadFilter, after: int, reason: str
) -> Act[Moved]:
    """Give up the next batch of dead letters."""
    family, group_id = yield from _find_group(schema, stream, name)
    ids, next_after = yield from _next_dead(family, group_id, meant, after)
    discarded = yield from ask(
        statements.discard_dead_letters(family, group_id=group_id, message_ids=ids, reason=reason)
    )
    return Moved(len(discarded), next_after)


def _next_dead(family: Family, group_id: int, meant: DeadFilter, after: int) -> Act[tuple[list[int], int | None]]:
    # Ids only grow from batch to batch, so what dies again meanwhile is not met a second time.
    found = yield from ask(
        statements.find_dead_letters(family, group_id=group_id, meant=meant, after=after, limit=_DEAD_AT_A_TIME)
    )
    ids = [each.id for each in found]
    asked_for = meant.ids_behind(after, limit=_DEAD_AT_A_TIME)
    if asked_for is None:
        return ids, ids[-1] if len(ids) == _DEAD_AT_A_TIME else None
    return ids, asked_for[-1] if len(asked_for) == _DEAD_AT_A_TIME else None


def _find_group(schema: str, stream: str, name: str) -> Act[tuple[Family, int]]:
    info = yield from get_stream(schema, name=stream)
    group = yield from _get_group(schema, info, name)
    return Family(schema, info.id), group.id
