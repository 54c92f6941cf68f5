"""Statements of schedules: sql/schedule.sql."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from sqlstreams.model import GroupOutcome, RawPayload, ScheduleEdit, ScheduleFire, ScheduleInfo, ScheduleSkip
from sqlstreams.options import ScheduleOptions
from sqlstreams.slots import Rule
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

_MICROSECOND: Final = timedelta(microseconds=1)


class Declared(Struct, frozen=True):
    """Everything a schedule says: what to produce, where and when."""

    stream_id: int
    rule: Rule
    payload: bytes
    schema_version: int
    fingerprint: str | None
    options: ScheduleOptions


class StoredSchedule(Struct, frozen=True):
    """A schedule as it is on record."""

    info: ScheduleInfo
    stream_id: int

    @property
    def rule(self) -> Rule:
        """When it is due."""
        info = self.info
        return Rule(info.expression, info.timezone, info.start_at, info.end_at)

    @property
    def declared(self) -> Declared:
        """What was declared of it."""
        options = ScheduleOptions(**{name: getattr(self.info, name) for name in ScheduleOptions.__struct_fields__})
        info = self.info
        return Declared(self.stream_id, self.rule, bytes(info.payload), info.schema_version, info.fingerprint, options)


class DueSchedule(Struct, frozen=True):
    """A schedule that is due, and all that is needed to say which slots are to fire. `size` is of its payload.

    `failures` counts the tries that failed since its last fire.
    """

    id: int
    name: str
    revision: int
    stream_id: int
    schema_version: int
    rule: Rule
    jitter: timedelta | None
    catch_up: str
    catch_up_window: timedelta
    concurrency: str
    timeout: timedelta
    compaction: bool
    next_slot: datetime
    due_at: datetime
    size: int
    failures: int


class DueSchedules(Struct, frozen=True):
    """What is due soon, the first one first, and in how many seconds the next is; by the clock of the database."""

    now: datetime
    due_in: float | None
    schedules: tuple[DueSchedule, ...]


class FiringSchedule(Struct, frozen=True):
    """A schedule that is locked for a fire. `recorded` is the fingerprint that its stream has for the version."""

    id: int
    name: str
    revision: int
    next_slot: datetime | None
    stream_id: int
    schema_version: int
    payload: bytes
    concurrency: str
    timeout: timedelta
    compaction: bool
    fingerprint: str | None
    recorded: str | None
    max_payload: int


class SlotToFire(Struct, frozen=True):
    """A slot, its message, and where its schedule goes on. `options` are those of the message as they are stored."""

    schedule_id: int
    revision: int
    slot: datetime
    kind: str
    idempotency_key: str
    options: msgspec.Raw
    rank: int | None
    next_slot: datetime | None
    due_at: datetime | None


class OutdatedSchedule(Struct, frozen=True):
    """A schedule whose next slot was computed with other zone data."""

    id: int
    rule: Rule
    jitter: timedelta | None
    revision: int
    next_slot: datetime | None
    last_slot: datetime | None
    suspended: bool
    now: datetime


class Fired(Struct, frozen=True):
    """A slot that has fired, and its message."""

    schedule_id: int
    slot: datetime
    message_id: int


class Failed(Struct, frozen=True):
    """A schedule that was charged with a failure, and how many it has now."""

    schedule_id: int
    failures: int


class StatusRow(Struct, frozen=True):
    """Where a schedule stands, without what became of its messages."""

    name: str
    id: int
    stream: str
    stream_id: int
    suspended: bool
    next_slot: datetime | None
    due_at: datetime | None
    last_slot: datetime | None
    last_fired_at: datetime | None
    last_message_id: int | None
    consecutive_failures: int
    last_error: str | None
    failed_at: datetime | None
    fires: int
    skipped_slots: int


class Outcome(Struct, frozen=True):
    """What became of one message in one group."""

    message_id: int
    of_group: GroupOutcome


def _schedule(
    schedule_id: int,
    name: str,
    stream: str,
    stream_id: int,
    expression: str,
    timezone: str,
    payload: bytes,
    schema_version: int,
    fingerprint: str | None,
    concurrency: str,
    timeout_ns: int,
    *rest: Any,
) -> StoredSchedule:
    info = ScheduleInfo(
        schedule_id,
        name,
        stream,
        expression,
        timezone,
        RawPayload(payload),
        schema_version,
        fingerprint,
        concurrency,
        _timeout(timeout_ns),
        *rest,
    )
    return StoredSchedule(info, stream_id)


def _due(
    now: datetime,
    due_in: float | None,
    schedule_id: int | None,
    name: str,
    revision: int,
    stream_id: int,
    schema_version: int,
    expression: str,
    timezone: str,
    start_at: datetime | None,
    end_at: datetime | None,
    jitter: timedelta | None,
    catch_up: str,
    catch_up_window: timedelta,
    concurrency: str,
    timeout_ns: int,
    *rest: Any,
) -> DueSchedules:
    if schedule_id is None:
        return DueSchedules(now, due_in, ())
    schedule = DueSchedule(
        schedule_id,
        name,
        revision,
        stream_id,
        schema_version,
        Rule(expression, timezone, start_at, end_at),
        jitter,
        catch_up,
        catch_up_window,
        concurrency,
        _timeout(timeout_ns),
        *rest,
    )
    return DueSchedules(now, due_in, (schedule,))


def due_schedules(rows: Sequence[DueSchedules]) -> DueSchedules:
    """Put the rows of `list_due_schedules` together."""
    return DueSchedules(rows[0].now, rows[0].due_in, tuple(schedule for row in rows for schedule in row.schedules))


def _firing(*columns: Any) -> FiringSchedule:
    firing = FiringSchedule(*columns)
    nanoseconds: Any = firing.timeout  # as it is stored so far
    return msgspec.structs.replace(firing, timeout=_timeout(nanoseconds))


def _coming(
    expression: str, timezone: str, start_at: datetime | None, end_at: datetime | None, slot: datetime
) -> tuple[Rule, datetime]:
    return Rule(expression, timezone, start_at, end_at), slot


def _outdated(
    schedule_id: int,
    expression: str,
    timezone: str,
    start_at: datetime | None,
    end_at: datetime | None,
    *rest: Any,
) -> OutdatedSchedule:
    return OutdatedSchedule(schedule_id, Rule(expression, timezone, start_at, end_at), *rest)


def _outcome(message_id: int, *columns: Any) -> Outcome:
    return Outcome(message_id, GroupOutcome(*columns))


def _edit(schedule_id: int, action: str, config: str, *rest: Any) -> ScheduleEdit:
    return ScheduleEdit(schedule_id, action, msgspec.json.decode(config), *rest)


def _timeout(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=nanoseconds // 1_000)


def insert_schedule(schema: str, *, name: str, declared: Declared) -> Statement[Identified]:
    return of_system("insert_schedule", schema, Identified, {"name": name, **_settings(declared)})


def update_schedule(schema: str, *, schedule_id: int, declared: Declared) -> Statement[Nothing]:
    return of_system("update_schedule", schema, nothing, {"schedule_id": schedule_id, **_settings(declared)})


def _settings(declared: Declared) -> Mapping[str, object]:
    options = msgspec.structs.asdict(declared.options)
    return {
        **msgspec.structs.asdict(declared.rule),
        "stream_id": declared.stream_id,
        "payload": declared.payload.decode(),
        "schema_version": declared.schema_version,
        "fingerprint": declared.fingerprint,
        "timeout_ns": options.pop("timeout") // _MICROSECOND * 1_000,
        **options,
    }


def read_clock(schema: str) -> Statement[datetime]:
    return of_system("read_clock", schema, lambda now: now)


def insert_schedule_cursor(
    schema: str, *, schedule_id: int, next_slot: datetime | None, due_at: datetime | None, zone_data: str
) -> Statement[Nothing]:
    parameters = {"schedule_id": schedule_id, "next_slot": next_slot, "due_at": due_at, "zone_data": zone_data}
    return of_system("insert_schedule_cursor", schema, nothing, parameters)


def suspend_schedule(schema: str, *, schedule_id: int, suspended: bool) -> Statement[Nothing]:
    return of_system("suspend_schedule", schema, nothing, {"schedule_id": schedule_id, "suspended": suspended})


def set_schedule_cursor(
    schema: str, *, schedule_id: int, next_slot: datetime | None, due_at: datetime | None, zone_data: str
) -> Statement[Nothing]:
    parameters = {"schedule_id": schedule_id, "next_slot": next_slot, "due_at": due_at, "zone_data": zone_data}
    return of_system("set_schedule_cursor", schema, nothing, parameters)


def get_schedule(schema: str, *, name: str) -> Statement[StoredSchedule]:
    return of_system("get_schedule", schema, _schedule, {"name": name})


def list_schedules(schema: str, *, stream_id: int | None) -> Statement[StoredSchedule]:
    return of_system("list_schedules", schema, _schedule, {"stream_id": stream_id})


def lock_schedule(schema: str, *, name: str) -> Statement[StoredSchedule]:
    return of_system("lock_schedule", schema, _schedule, {"name": name})


def lock_schedules_of_stream(schema: str, *, stream_id: int) -> Statement[StoredSchedule]:
    return of_system("lock_schedules_of_stream", schema, _schedule, {"stream_id": stream_id})


def delete_schedule(schema: str, *, schedule_id: int) -> Statement[Nothing]:
    return of_system("delete_schedule", schema, nothing, {"schedule_id": schedule_id})


def log_schedule(schema: str, *, schedule_id: int, name: str, action: str, config: bytes) -> Statement[Nothing]:
    parameters = {"schedule_id": schedule_id, "name": name, "action": action, "config": config.decode()}
    return of_system("log_schedule", schema, nothing, parameters)


def list_schedule_edits(schema: str, *, name: str, limit: int) -> Statement[ScheduleEdit]:
    return of_system("list_schedule_edits", schema, _edit, {"name": name, "limit": limit})


def announce_schedules(schema: str, *, channel: str) -> Statement[Nothing]:
    return of_system("announce_schedules", schema, nothing, {"channel": channel})


def get_schedule_status(schema: str, *, name: str) -> Statement[StatusRow]:
    return of_system("get_schedule_status", schema, StatusRow, {"name": name})


def list_fires(schema: str, *, schedule_id: int, limit: int) -> Statement[ScheduleFire]:
    return of_system("list_fires", schema, ScheduleFire, {"schedule_id": schedule_id, "limit": limit})


def list_skips(schema: str, *, schedule_id: int, limit: int) -> Statement[ScheduleSkip]:
    return of_system("list_skips", schema, ScheduleSkip, {"schedule_id": schedule_id, "limit": limit})


def list_due_schedules(schema: str, *, within: float, limit: int) -> Statement[DueSchedules]:
    return of_system("list_due_schedules", schema, _due, {"within": within, "limit": limit})


def list_coming_schedules(schema: str, *, within: float, limit: int) -> Statement[tuple[Rule, datetime]]:
    return of_system("list_coming_schedules", schema, _coming, {"within": within, "limit": limit})


def wait_briefly(schema: str) -> Statement[Nothing]:
    return of_system("wait_briefly", schema, nothing)


def fire_slots(family: Family, *, slots: Sequence[SlotToFire], zone_data: str, fired_by: str) -> Statement[int]:
    # As JSON, which is ten times as fast as the driver's arrays of timestamps.
    parameters = {"slots": msgspec.json.encode(slots).decode(), "zone_data": zone_data, "fired_by": fired_by}
    return of_family("fire_slots", family, int, parameters)


def lock_due_schedules(schema: str, *, schedule_ids: list[int]) -> Statement[FiringSchedule]:
    return of_system("lock_due_schedules", schema, _firing, {"schedule_ids": schedule_ids})


def lock_schedule_to_fire(schema: str, *, schedule_id: int) -> Statement[FiringSchedule]:
    return of_system("lock_schedule_to_fire", schema, _firing, {"schedule_id": schedule_id})


def list_fired(schema: str, *, schedule_ids: list[int], slots: list[datetime]) -> Statement[Fired]:
    return of_system("list_fired", schema, Fired, {"schedule_ids": schedule_ids, "slots": slots})


def insert_fires(
    schema: str,
    *,
    schedule_ids: list[int],
    slots: list[datetime],
    kinds: list[str],
    message_ids: list[int],
    fired_by: str,
) -> Statement[Nothing]:
    parameters = {
        "schedule_ids": schedule_ids,
        "slots": slots,
        "kinds": kinds,
        "message_ids": message_ids,
        "fired_by": fired_by,
    }
    return of_system("insert_fires", schema, nothing, parameters)


def insert_skips(
    schema: str,
    *,
    schedule_ids: list[int],
    first_slots: list[datetime],
    last_slots: list[datetime],
    counts: list[int],
    reasons: list[str],
) -> Statement[Nothing]:
    parameters = {
        "schedule_ids": schedule_ids,
        "first_slots": first_slots,
        "last_slots": last_slots,
        "counts": counts,
        "reasons": reasons,
    }
    return of_system("insert_skips", schema, nothing, parameters)


def move_schedule_cursors(
    schema: str,
    *,
    schedule_ids: list[int],
    next_slots: list[datetime | None],
    due_ats: list[datetime | None],
    last_slots: list[datetime | None],
    message_ids: list[int | None],
    zone_data: str,
) -> Statement[Nothing]:
    parameters = {
        "schedule_ids": schedule_ids,
        "next_slots": next_slots,
        "due_ats": due_ats,
        "last_slots": last_slots,
        "message_ids": message_ids,
        "zone_data": zone_data,
    }
    return of_system("move_schedule_cursors", schema, nothing, parameters)


def note_message(schema: str, *, schedule_id: int, message_id: int) -> Statement[Nothing]:
    return of_system("note_message", schema, nothing, {"schedule_id": schedule_id, "message_id": message_id})


def fail_schedules(
    schema: str, *, schedule_ids: list[int], revisions: list[int], slots: list[datetime], errors: list[str]
) -> Statement[Failed]:
    parameters = {"schedule_ids": schedule_ids, "revisions": revisions, "slots": slots, "errors": errors}
    return of_system("fail_schedules", schema, Failed, parameters)


def list_zone_data(schema: str) -> Statement[str]:
    return of_system("list_zone_data", schema, str)


def list_outdated_schedules(schema: str, *, zone_data: str, limit: int) -> Statement[OutdatedSchedule]:
    return of_system("list_outdated_schedules", schema, _outdated, {"zone_data": zone_data, "limit": limit})


def retime_schedules(
    schema: str,
    *,
    schedule_ids: list[int],
    revisions: list[int],
    known_slots: list[datetime | None],
    next_slots: list[datetime | None],
    due_ats: list[datetime | None],
    retimed: list[bool],
    zone_data: str,
) -> Statement[Nothing]:
    parameters = {
        "schedule_ids": schedule_ids,
        "revisions": revisions,
        "known_slots": known_slots,
        "next_slots": next_slots,
        "due_ats": due_ats,
        "retimed": retimed,
        "zone_data": zone_data,
    }
    return of_system("retime_schedules", schema, nothing, parameters)


def list_outcomes(family: Family, *, message_ids: list[int]) -> Statement[Outcome]:
    return of_family("list_outcomes", family, _outcome, {"message_ids": message_ids})


def list_group_logs(schema: str, *, stream_id: int) -> Statement[Columns]:
    return of_system("list_group_logs", schema, columns, {"stream_id": stream_id})
