"""What is asked of the database about schedules; firing them is in manager/firing.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from sqlstreams import statements
from sqlstreams.acts.schedule_log import log_schedule
from sqlstreams.acts.stream import check_destroy, get_stream, record_shape
from sqlstreams.codec import Codec, check_shape, fingerprint
from sqlstreams.errors import InvalidInput, NotFound
from sqlstreams.model import (
    GroupOutcome,
    ScheduledMessage,
    ScheduleEdit,
    ScheduleFire,
    ScheduleInfo,
    ScheduleSkip,
    ScheduleStatus,
    StreamInfo,
)
from sqlstreams.options import ScheduleOptions
from sqlstreams.slots import Rule
from sqlstreams.statements import Act, Declared, Family, Outcome, StoredSchedule, ask
from sqlstreams.zones import zone_data_version


class Registered(Struct, frozen=True):
    """What a declaration came to: whether it was written, and whether any group of the stream keeps successes."""

    is_new: bool
    keeps_successes: bool = True


def register_schedule(
    schema: str, *, name: str, stream: str, rule: Rule, payload: Any, codec: Codec[Any], options: ScheduleOptions
) -> Act[Registered]:
    """Declare a schedule: made when absent, changed when other, else nothing is written."""
    declared = yield from _declare(schema, stream=stream, rule=rule, payload=payload, codec=codec, options=options)
    known = yield from ask(statements.get_schedule(schema, name=name))
    if known and known[0].declared == declared:
        return Registered(is_new=False)
    if declared.options.concurrency != "parallel":
        # Before the first message that asks for it, so that no consumer meets one unprepared.
        yield from ask(statements.mark_keyed(schema, stream_id=declared.stream_id))
    created = [] if known else (yield from ask(statements.insert_schedule(schema, name=name, declared=declared)))
    if created:
        yield from _begin(schema, schedule_id=created[0].id, declared=declared)
        yield from _log(schema, name, "registered")
    elif not (yield from _change(schema, name, declared)):
        return Registered(is_new=False)
    logs = yield from ask(statements.list_group_logs(schema, stream_id=declared.stream_id))
    return Registered(is_new=True, keeps_successes=("all",) in logs)


def _declare(
    schema: str, *, stream: str, rule: Rule, payload: Any, codec: Codec[Any], options: ScheduleOptions
) -> Act[Declared]:
    info = yield from get_stream(schema, name=stream)
    yield from record_shape(schema, info, codec)
    encoded = codec.encode(payload)
    if len(encoded) > info.max_payload:
        raise InvalidInput("payload", f"must have at most {info.max_payload} bytes as JSON, got {len(encoded)}")
    digest = yield from _fingerprint(schema, info, codec, encoded)
    return Declared(info.id, rule, encoded, codec.schema_version, digest, options)


def _fingerprint(schema: str, stream: StreamInfo, codec: Codec[Any], payload: bytes) -> Act[str | None]:
    # A payload of no type of its own has to fit whatever shape the stream has on record, and is pinned to that.
    shape = codec.json_schema()
    if shape is not None:
        return fingerprint(shape)
    statement = statements.get_payload_schema(schema, stream_id=stream.id, schema_version=codec.schema_version)
    recorded = yield from ask(statement)
    if not recorded:
        return None
    check_shape(recorded[0].json_schema, payload)
    return recorded[0].fingerprint


def _begin(schema: str, *, schedule_id: int, declared: Declared) -> Act[None]:
    now = (yield from ask(statements.read_clock(schema)))[0]
    slot = declared.rule.next_after(now)
    due_at = _due_at(schedule_id, declared.rule, declared.options, slot)
    yield from ask(
        statements.insert_schedule_cursor(
            schema, schedule_id=schedule_id, next_slot=slot, due_at=due_at, zone_data=zone_data_version()
        )
    )


def _change(schema: str, name: str, declared: Declared) -> Act[bool]:
    locked = yield from _lock(schema, name)
    if locked.declared == declared:
        return False
    yield from ask(statements.update_schedule(schema, schedule_id=locked.info.id, declared=declared))
    slot = locked.info.next_slot
    if declared.rule != locked.rule:
        slot = yield from _pass_over(schema, locked, "suspended" if locked.info.suspended else "edited", declared.rule)
    yield from _set_cursor(schema, locked, declared, slot, suspended=locked.info.suspended)
    yield from _log(schema, name, "changed")
    return True


def suspend_schedule(schema: str, *, name: str) -> Act[None]:
    """Stop a schedule; nothing is written when it is stopped already."""
    locked = yield from _lock(schema, name)
    if not locked.info.suspended:
        yield from ask(statements.suspend_schedule(schema, schedule_id=locked.info.id, suspended=True))
        yield from _set_cursor(schema, locked, locked.declared, locked.info.next_slot, suspended=True)
        yield from _log(schema, name, "suspended")


def unsuspend_schedule(schema: str, *, name: str) -> Act[None]:
    """Let a schedule go on with the next slot; those that came due meanwhile are recorded as skipped."""
    locked = yield from _lock(schema, name)
    if locked.info.suspended:
        slot = yield from _pass_over(schema, locked, "suspended", locked.rule)
        yield from ask(statements.suspend_schedule(schema, schedule_id=locked.info.id, suspended=False))
        yield from _set_cursor(schema, locked, locked.declared, slot, suspended=False)
        yield from _log(schema, name, "unsuspended")


def _pass_over(schema: str, locked: StoredSchedule, reason: str, rule: Rule) -> Act[datetime | None]:
    # Skip what is due by the old rule, and return the next slot of the new one.
    now = (yield from ask(statements.read_clock(schema)))[0]
    first, old = locked.info.next_slot, locked.rule
    if first is not None and first <= now:
        yield from ask(
            statements.insert_skips(
                schema,
                schedule_ids=[locked.info.id],
                first_slots=[first],
                last_slots=[old.newest(first, now) or first],
                counts=[1 + old.count(first, now)],
                reasons=[reason],
            )
        )
    return rule.next_after(now)


def _set_cursor(
    schema: str, locked: StoredSchedule, declared: Declared, slot: datetime | None, *, suspended: bool
) -> Act[None]:
    due_at = None if suspended else _due_at(locked.info.id, declared.rule, declared.options, slot)
    yield from ask(
        statements.set_schedule_cursor(
            schema, schedule_id=locked.info.id, next_slot=slot, due_at=due_at, zone_data=zone_data_version()
        )
    )


def _due_at(schedule_id: int, rule: Rule, options: ScheduleOptions, slot: datetime | None) -> datetime | None:
    return None if slot is None else rule.delayed(schedule_id, slot, jitter=options.jitter)


def destroy_schedule(schema: str, *, name: str, allowed: bool) -> Act[None]:
    """Remove a schedule with its cursor and its history; its messages stay."""
    check_destroy(allowed, "schedule", name)
    locked = yield from _lock(schema, name)
    yield from ask(statements.delete_schedule(schema, schedule_id=locked.info.id))
    yield from log_schedule(schema, locked.info, "destroyed")


def get_schedule(schema: str, *, name: str) -> Act[StoredSchedule]:
    """Read one schedule; raise `NotFound` when it is absent."""
    found = yield from ask(statements.get_schedule(schema, name=name))
    if not found:
        raise NotFound("schedule", name)
    return found[0]


def list_schedules(schema: str, *, stream: str | None) -> Act[list[ScheduleInfo]]:
    """Read every schedule, or those of one stream."""
    stream_id = None if stream is None else (yield from get_stream(schema, name=stream)).id
    found = yield from ask(statements.list_schedules(schema, stream_id=stream_id))
    return [each.info for each in found]


def schedule_status(schema: str, *, name: str) -> Act[ScheduleStatus]:
    """Read where a schedule stands, and what became of its last message."""
    found = yield from ask(statements.get_schedule_status(schema, name=name))
    if not found:
        raise NotFound("schedule", name)
    row = found[0]
    ids = [] if row.last_message_id is None else [row.last_message_id]
    outcomes = yield from ask(statements.list_outcomes(Family(schema, row.stream_id), message_ids=ids))
    shown = {field: getattr(row, field) for field in row.__struct_fields__ if field != "stream_id"}
    return ScheduleStatus(**shown, groups=tuple(each.of_group for each in outcomes))


def list_scheduled_messages(schema: str, *, name: str, limit: int) -> Act[list[ScheduledMessage]]:
    """Read the last messages of a schedule, and what became of each in every group."""
    known = yield from get_schedule(schema, name=name)
    fires = yield from ask(statements.list_fires(schema, schedule_id=known.info.id, limit=limit))
    ids = [fire.message_id for fire in fires]
    outcomes = yield from ask(statements.list_outcomes(Family(schema, known.stream_id), message_ids=ids))
    return [
        ScheduledMessage(fire.message_id, fire.scheduled_for, fire.fired_at, fire.kind, _of(fire.message_id, outcomes))
        for fire in fires
    ]


def _of(message_id: int, outcomes: Sequence[Outcome]) -> tuple[GroupOutcome, ...]:
    return tuple(each.of_group for each in outcomes if each.message_id == message_id)


def list_fires(schema: str, *, name: str, limit: int) -> Act[list[ScheduleFire]]:
    """Read what a schedule fired, the latest slot first."""
    known = yield from get_schedule(schema, name=name)
    return (yield from ask(statements.list_fires(schema, schedule_id=known.info.id, limit=limit)))


def list_skips(schema: str, *, name: str, limit: int) -> Act[list[ScheduleSkip]]:
    """Read the slots of a schedule that were not fired, the latest range first."""
    known = yield from get_schedule(schema, name=name)
    return (yield from ask(statements.list_skips(schema, schedule_id=known.info.id, limit=limit)))


def list_schedule_edits(schema: str, *, name: str, limit: int) -> Act[list[ScheduleEdit]]:
    """Read the changes of a schedule, the latest first; also of one that was destroyed."""
    return (yield from ask(statements.list_schedule_edits(schema, name=name, limit=limit)))


def next_slots(schema: str, *, name: str, count: int) -> Act[list[datetime]]:
    """Return the slots of a schedule after now, whether it is suspended or not."""
    known = yield from get_schedule(schema, name=name)
    at = (yield from ask(statements.read_clock(schema)))[0]
    slots: list[datetime] = []
    while len(slots) < count and (slot := known.rule.next_after(at)) is not None:
        slots.append(slot)
        at = slot
    return slots


def _lock(schema: str, name: str) -> Act[StoredSchedule]:
    found = yield from ask(statements.lock_schedule(schema, name=name))
    if not found:
        raise NotFound("schedule", name)
    return found[0]


def _log(schema: str, name: str, action: str) -> Act[None]:
    yield from log_schedule(schema, (yield from get_schedule(schema, name=name)).info, action)
