"""What is asked of the database about streams."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from sqlstreams import migration, statements
from sqlstreams.acts.deadline_log import end_deadlines
from sqlstreams.acts.schedule_log import end_schedules
from sqlstreams.acts.system import apply_step
from sqlstreams.codec import Codec, describe_change, fingerprint
from sqlstreams.errors import DestroyRefused, InvalidInput, NotFound, PayloadShapeChanged
from sqlstreams.model import (
    Holder,
    StoredMessage,
    StreamInfo,
    StreamStatus,
    StreamVersion,
    VersionUse,
)
from sqlstreams.options import MAX_ID, Start, StreamOptions
from sqlstreams.statements import Act, Family, Kept, NamedStream, SettledHead, ask

_UNSEEN: Final = timedelta(days=1)


def register_stream(schema: str, *, name: str, options: StreamOptions, codec: Codec[Any]) -> Act[StreamInfo]:
    """Declare a stream and the shape of its payload: made when absent, changed when other, else nothing is written."""
    created = yield from ask(statements.insert_stream(schema, name=name, options=options))
    if created:
        info = created[0]
        for step in migration.pending(migration.shipped(), [], [NamedStream(info.id, name)]):
            if step.migration.scope == "stream":
                yield from apply_step(schema, step)
        yield from ask(statements.grant_family(Family(schema, info.id)))
        yield from _log_stream(schema, info, "registered")
    else:
        info = yield from _update_stream(schema, name=name, options=options)
    yield from record_shape(schema, info, codec)
    return info


def _update_stream(schema: str, *, name: str, options: StreamOptions) -> Act[StreamInfo]:
    info = yield from get_stream(schema, name=name)
    if declared(info, StreamOptions) == options:
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
    info = yield from lock_stream(schema, name)
    renamed = yield from ask(statements.rename_stream(schema, stream_id=info.id, new_name=new_name))
    if not renamed:
        raise InvalidInput("new_name", f"is taken: there is a stream named {new_name!r}")
    yield from _log_stream(schema, renamed[0], "renamed")
    return renamed[0]


def destroy_stream(schema: str, *, name: str, allowed: bool) -> Act[None]:
    """Remove a stream with its messages, its groups and everything known of them."""
    check_destroy(allowed, "stream", name)
    info = yield from lock_stream(schema, name)
    yield from end_deadlines(schema, info)
    yield from end_schedules(schema, info)
    yield from ask(statements.drop_detached(Family(schema, info.id), below=MAX_ID))
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
    return (yield from find_place(Family(schema, info.id), start))


def read_kept(family: Family) -> Act[Kept]:
    """Read the first id that a stream keeps."""
    found = yield from ask(statements.get_kept(family.schema, stream_id=family.stream))
    if not found:
        raise NotFound("stream", f"with id {family.stream}")
    return found[0]


def find_place(family: Family, start: Start) -> Act[int]:
    """Return the id behind which a position lies in a log: none lies before the first message that is kept."""
    place = 0 if start == "beginning" else (yield from _find_place(family, start))
    return max(place, (yield from read_kept(family)).kept_from - 1)


def _find_place(family: Family, start: int | datetime | str) -> Act[int]:
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


def lock_stream(schema: str, name: str) -> Act[StreamInfo]:
    """Read one stream and keep it from being declared, renamed or destroyed until we commit."""
    found = yield from ask(statements.lock_stream(schema, name=name))
    if not found:
        raise NotFound("stream", name)
    return found[0]


def _log_stream(schema: str, info: StreamInfo, action: str) -> Act[None]:
    yield from ask(statements.log_stream(schema, stream_id=info.id, action=action, config=msgspec.json.encode(info)))


def check_destroy(allowed: bool, kind: str, name: str) -> None:
    """Refuse to destroy for a client that was not opened for it."""
    if not allowed:
        raise DestroyRefused(f"{kind} {name!r} was not destroyed: the client was opened without allow_destroy=True")


def declared(info: object, options: type[Any]) -> Any:
    """Return the options that are on record in `info`."""
    return options(**{name: getattr(info, name) for name in options.__struct_fields__})


def read_settled_head(family: Family) -> Act[SettledHead]:
    """Read a log's visible head and the transactions that may still fill a hole below it."""
    return statements.settled_head((yield from ask(statements.read_settled_head(family))))
