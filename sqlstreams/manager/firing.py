"""Producing what schedules say: every slot once, and together with the record of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Final

from msgspec import Raw, Struct

from sqlstreams import statements
from sqlstreams.codec import encode_options
from sqlstreams.errors import IdempotencyConflict, InvalidInput, NotFound
from sqlstreams.manager.catch_up import Plan, PlannedFire
from sqlstreams.model import Backfilled, Receipt
from sqlstreams.names import clean_text
from sqlstreams.options import DeliveryOptions
from sqlstreams.produce.batch import Encoded, append_messages
from sqlstreams.produce.idempotency import KeyedBatch
from sqlstreams.slots import Rule
from sqlstreams.statements import Act, DueSchedule, Family, FiringSchedule, SlotToFire, Statement, ask
from sqlstreams.zones import zone_data_version

_INSTANT: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Refusal(Struct, frozen=True):
    """Why a schedule that is due cannot produce."""

    schedule_id: int
    revision: int
    slot: datetime
    error: str


class Outcome(Struct, frozen=True):
    """What came of plans: the streams that have news, how many fires, what was refused, and who was not to be had."""

    stream_ids: frozenset[int]
    fires: int
    refusals: tuple[Refusal, ...]
    left: frozenset[int]


class _Fire(Struct, frozen=True):
    firing: FiringSchedule
    planned: PlannedFire


def fired_by() -> str:
    """Return what the history of fires calls this process."""
    return clean_text(f"{socket.gethostname()} {os.getpid()}", limit=200)


def fire_singles(family: Family, plans: Sequence[Plan]) -> Statement[int]:
    """Return what fires plans of one slot each, all of one stream, and says of which schedules it did.

    It leaves out or fails as a whole whatever is not as usual: that is for `fire_plans`.
    """
    return statements.fire_slots(
        family, slots=[_slot_to_fire(plan) for plan in plans], zone_data=zone_data_version(), fired_by=fired_by()
    )


def _slot_to_fire(plan: Plan) -> SlotToFire:
    schedule, (fire,) = plan.schedule, plan.fires
    return SlotToFire(
        schedule.id,
        schedule.revision,
        fire.slot,
        fire.kind,
        _key(schedule, fire),
        Raw(_options(schedule, fire)),
        _rank(schedule, fire),
        plan.next_slot,
        plan.due_at,
    )


def fire_plans(schema: str, plans: Sequence[Plan]) -> Act[Outcome]:
    """Carry out plans, each as far as its schedule is still what it was when it was planned."""
    yield from ask(statements.wait_briefly(schema))
    ids = sorted(plan.schedule.id for plan in plans)
    locked = {each.id: each for each in (yield from ask(statements.lock_due_schedules(schema, schedule_ids=ids)))}
    current = [plan for plan in plans if _is_current(plan, locked.get(plan.schedule.id))]
    refused = {plan.schedule.id: reason for plan in current if (reason := _refusal(locked[plan.schedule.id]))}
    carried = [plan for plan in current if plan.schedule.id not in refused]
    wanted = [_Fire(locked[plan.schedule.id], fire) for plan in carried for fire in plan.fires]
    produced = yield from _produce(schema, wanted)
    yield from _record_skips(schema, carried)
    yield from _move(schema, carried, produced)
    refusals = [refuse(plan, refused[plan.schedule.id]) for plan in current if plan.schedule.id in refused]
    return Outcome(
        frozenset(fire.firing.stream_id for fire, _ in produced),
        len(produced),
        tuple(refusals),
        frozenset(ids) - {plan.schedule.id for plan in current},
    )


def charge(schema: str, refusals: Sequence[Refusal]) -> Act[None]:
    """Note that schedules could not be fired, and have them tried again after a while."""
    if refusals:
        yield from ask(
            statements.fail_schedules(
                schema,
                schedule_ids=[each.schedule_id for each in refusals],
                revisions=[each.revision for each in refusals],
                slots=[each.slot for each in refusals],
                errors=[clean_text(each.error) for each in refusals],
            )
        )


def refuse(plan: Plan, error: str) -> Refusal:
    """Return what to charge the schedule of a plan with."""
    return Refusal(plan.schedule.id, plan.schedule.revision, plan.schedule.next_slot, error)


def fire_by_hand(schema: str, *, name: str) -> Act[Receipt]:
    """Produce the message of a schedule now, beside its slots."""
    firing = yield from _lock(schema, name)
    now = (yield from ask(statements.read_clock(schema)))[0]
    # Slots are whole seconds, so that this is none of them.
    at = now if now.microsecond else now + _INSTANT
    ((_, message_id),) = yield from _produce(schema, [_Fire(firing, PlannedFire(at, "manual"))])
    yield from ask(statements.note_message(schema, schedule_id=firing.id, message_id=message_id))
    return Receipt(message_id)


def past_slots(rule: Rule, start: datetime, until: datetime, *, now: datetime) -> Iterator[datetime]:
    """Return the slots from one time up to and with another; refuse what lies ahead."""
    if until > now:
        raise InvalidInput("until", f"must not lie ahead of the database's clock, got {until.isoformat()}")
    if until < start:
        raise InvalidInput("until", f"must not be before start, got {until.isoformat()}")
    return rule.between(start - _INSTANT, until)


def fire_past(schema: str, *, name: str, slots: Sequence[datetime]) -> Act[Backfilled]:
    """Fire slots that have not fired."""
    firing = yield from _lock(schema, name)
    produced = yield from _produce(schema, [_Fire(firing, PlannedFire(slot, "backfill")) for slot in slots])
    return Backfilled(fired=len(produced), already_fired=len(slots) - len(produced))


def _lock(schema: str, name: str) -> Act[FiringSchedule]:
    known = yield from ask(statements.get_schedule(schema, name=name))
    found = yield from ask(statements.lock_schedule_to_fire(schema, schedule_id=known[0].info.id)) if known else ()
    if not found:
        raise NotFound("schedule", name)
    if reason := _refusal(found[0]):
        raise InvalidInput("payload", f"cannot be produced: {reason}")
    return found[0]


def _is_current(plan: Plan, locked: FiringSchedule | None) -> bool:
    return (
        locked is not None and locked.revision == plan.schedule.revision and locked.next_slot == plan.schedule.next_slot
    )


def _refusal(firing: FiringSchedule) -> str | None:
    if firing.fingerprint is not None and firing.recorded != firing.fingerprint:
        return (
            f"the shape of version {firing.schema_version} on the stream is not the one that the payload was "
            "registered with: register the schedule again"
        )
    if len(firing.payload) > firing.max_payload:
        return f"the payload has {len(firing.payload)} bytes as JSON, and the stream takes {firing.max_payload}"
    return None


def _produce(schema: str, wanted: Sequence[_Fire]) -> Act[list[tuple[_Fire, int]]]:
    """Append a message for each fire that has none yet, and record it; the schedules are locked."""
    fresh = yield from _without_fired(schema, wanted)
    fresh.sort(key=_log_of)  # every process locks the streams in this order
    produced: list[tuple[_Fire, int]] = []
    for (stream_id, schema_version), group in groupby(fresh, key=_log_of):
        fires = list(group)
        batch = KeyedBatch(
            Family(schema, stream_id), list(map(_encode, fires)), schema_version=schema_version, together=False
        )
        appended = yield from append_messages(batch)
        produced += zip(fires, map(_message_id, appended.answers), strict=True)
    if produced:
        yield from ask(_record(schema, produced))
    return produced


def _without_fired(schema: str, wanted: Sequence[_Fire]) -> Act[list[_Fire]]:
    if not wanted:
        return []
    schedule_ids, slots = [fire.firing.id for fire in wanted], [fire.planned.slot for fire in wanted]
    rows = yield from ask(statements.list_fired(schema, schedule_ids=schedule_ids, slots=slots))
    fired = {(each.schedule_id, each.slot) for each in rows}
    return [fire for fire in wanted if (fire.firing.id, fire.planned.slot) not in fired]


def _log_of(fire: _Fire) -> tuple[int, int]:
    return fire.firing.stream_id, fire.firing.schema_version


def _message_id(answer: Receipt | IdempotencyConflict) -> int:
    # Whatever is there under the key of a slot, and whoever put it there, is the message of that slot.
    assert answer.id is not None
    return answer.id


def _encode(fire: _Fire) -> Encoded:
    firing = fire.firing
    return Encoded(
        firing.payload,
        firing.name,
        None,
        _options(firing, fire.planned),
        asks_for_keys=firing.concurrency != "parallel",
        compaction_rank=_rank(firing, fire.planned),
        idempotency_key=_key(firing, fire.planned),
    )


def _options(schedule: DueSchedule | FiringSchedule, fire: PlannedFire) -> bytes:
    # The one place where a message learns its slot.
    return _encode_options(schedule.concurrency, schedule.timeout, fire.slot)


@lru_cache(1_000)
def _encode_options(concurrency: str, timeout: timedelta, slot: datetime) -> bytes:
    delivery = DeliveryOptions(concurrency=None if concurrency == "parallel" else concurrency, timeout=timeout)
    encoded = encode_options(headers=None, delivery=delivery, scheduled_at=slot)
    assert encoded is not None
    return encoded


def _rank(schedule: DueSchedule | FiringSchedule, fire: PlannedFire) -> int | None:
    # The latest slot is the head of the key, whichever is produced last.
    return (fire.slot - _EPOCH) // _INSTANT if schedule.compaction and fire.gives_way else None


def _key(schedule: DueSchedule | FiringSchedule, fire: PlannedFire) -> str:
    return f"schedule:{schedule.id}:{fire.slot.astimezone(UTC).isoformat()}"


def _record(schema: str, produced: Sequence[tuple[_Fire, int]]) -> Statement[statements.Nothing]:
    return statements.insert_fires(
        schema,
        schedule_ids=[fire.firing.id for fire, _ in produced],
        slots=[fire.planned.slot for fire, _ in produced],
        kinds=[fire.planned.kind for fire, _ in produced],
        message_ids=[message_id for _, message_id in produced],
        fired_by=fired_by(),
    )


def _record_skips(schema: str, plans: Iterable[Plan]) -> Act[None]:
    skips = [(plan.schedule.id, skip) for plan in plans for skip in plan.skips]
    if skips:
        yield from ask(
            statements.insert_skips(
                schema,
                schedule_ids=[schedule_id for schedule_id, _ in skips],
                first_slots=[skip.first_slot for _, skip in skips],
                last_slots=[skip.last_slot for _, skip in skips],
                counts=[skip.slots for _, skip in skips],
                reasons=[skip.reason for _, skip in skips],
            )
        )


def _move(schema: str, plans: Sequence[Plan], produced: Iterable[tuple[_Fire, int]]) -> Act[None]:
    # Of several fires of a schedule the last one stands.
    last = {fire.firing.id: (fire.planned.slot, message_id) for fire, message_id in produced}
    if plans:
        lasts = [last.get(plan.schedule.id, (None, None)) for plan in plans]
        yield from ask(
            statements.move_schedule_cursors(
                schema,
                schedule_ids=[plan.schedule.id for plan in plans],
                next_slots=[plan.next_slot for plan in plans],
                due_ats=[plan.due_at for plan in plans],
                last_slots=[slot for slot, _ in lasts],
                message_ids=[message_id for _, message_id in lasts],
                zone_data=zone_data_version(),
            )
        )
