"""Moving rows that are due, and producing a message for each, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final
from uuid import uuid4

from msgspec import Struct

from sqlstreams import statements
from sqlstreams.acts import find_problem, get_deadline
from sqlstreams.codec import Codec, check_shape, encode_options
from sqlstreams.errors import InvalidInput, SqlstreamsError
from sqlstreams.model import RawPayload, Replayed
from sqlstreams.names import check_required_key
from sqlstreams.produce.batch import Batch, Encoded, append_messages
from sqlstreams.statements import Act, ClaimedRow, DueRow, Family, MovedRow, RunningDeadline, Statement, ask

_ANY_JSON: Final = Codec(RawPayload)
REPLAY_HEADER: Final = "sqlstreams-replay"


class Culprit(Struct, frozen=True):
    """A row that cannot be moved, and why."""

    key: str
    error: str


class Misfits(Exception):
    """Rows that would become messages which no consumer can read. Nothing was written."""

    def __init__(self, culprits: Sequence[Culprit]) -> None:
        super().__init__(culprits[0].error)
        self.culprits = culprits


class CannotMove(SqlstreamsError):
    """The rows of a deadline do not become messages."""

    code = "SQL0142"


def move_rows(
    schema: str, deadline: RunningDeadline, *, keys: Sequence[str] | None, limit: int, claimed: list[str]
) -> Act[int]:
    """Move rows that are due, those named or the longest due, and return how many; `claimed` tells which were tried.

    A deadline that has been changed meanwhile moves nothing. Raises `Misfits`.
    """
    yield from ask(statements.bound_moving(schema))
    held = yield from ask(statements.hold_deadline(schema, deadline_id=deadline.id, revision=deadline.revision))
    if not held:
        return 0
    due = yield from ask(_claim(schema, deadline, keys, limit))
    claimed[:] = [row.key for row in due]
    if not due:
        return 0
    moved = yield from ask(statements.move_due_rows(schema, deadline.rows, keys=claimed))
    yield from _produce(Family(schema, deadline.stream_id), deadline, _together(due, moved))
    yield from ask(statements.note_moved(schema, deadline_id=deadline.id, count=len(claimed)))
    return len(claimed)


def _claim(schema: str, deadline: RunningDeadline, keys: Sequence[str] | None, limit: int) -> Statement[ClaimedRow]:
    if keys is None:
        return statements.claim_due_rows(schema, deadline.rows, deadline_id=deadline.id, limit=limit)
    return statements.claim_named_rows(schema, deadline.rows, keys=keys)


def _together(claimed: Sequence[ClaimedRow], moved: Sequence[MovedRow]) -> list[DueRow]:
    by_key = {row.key: row for row in moved if row.moved}
    stopped = [
        Culprit(row.key, "a trigger or a rule of the table kept the row from getting its new state")
        for row in claimed
        if row.key not in by_key
    ]
    if stopped:
        raise Misfits(stopped)
    # The deadline is the one that came: a trigger may have taken it away.
    return [DueRow(row.key, row.deadline, by_key[row.key].payload) for row in claimed]


def _produce(
    family: Family, deadline: RunningDeadline, rows: Sequence[DueRow], *, replay: str | None = None
) -> Act[None]:
    messages = list(_encode(deadline, rows, replay))
    batch = Batch(family, messages, size=len(messages), schema_version=deadline.schema_version, eager=True)
    yield from append_messages(batch)


def _encode(deadline: RunningDeadline, rows: Sequence[DueRow], replay: str | None) -> Iterator[Encoded]:
    headers = None if replay is None else {REPLAY_HEADER: replay}
    culprits = []
    for row in rows:
        try:
            check_payload(deadline, row.payload)
            key = check_required_key("key", row.key)
        except InvalidInput as error:
            culprits.append(Culprit(row.key, str(error)))
            continue
        options = encode_options(headers=headers, scheduled_at=_instant(row.deadline))
        yield Encoded(row.payload, key, None, options)
    if culprits:
        raise Misfits(culprits)


def check_payload(deadline: RunningDeadline, payload: bytes) -> None:
    """Refuse a row as JSON that is too large, or not what the stream has on record."""
    if len(payload) > deadline.max_payload:
        raise InvalidInput("payload", f"must have at most {deadline.max_payload} bytes as JSON, got {len(payload)}")
    _ANY_JSON.encode(RawPayload(payload))
    if deadline.json_schema is not None:
        check_shape(deadline.json_schema, payload)


def _instant(text: str | None) -> datetime | None:
    # PostgreSQL has times before the first and after the last that Python has.
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def replay_rows(schema: str, *, name: str, start: datetime, until: datetime, limit: int) -> Act[Replayed]:
    """Produce the messages of moved rows again, all of them in one transaction."""
    stored = yield from get_deadline(schema, name=name)
    if problem := (yield from find_problem(schema, stored.rows)):
        raise InvalidInput("deadline", f"{name!r} cannot be replayed: {problem}")
    found = yield from ask(statements.get_producing_deadline(schema, name=name))
    deadline = found[0]
    rows = yield from ask(statements.read_moved_rows(schema, deadline.rows, start=start, until=until, limit=limit + 1))
    if len(rows) > limit:
        raise InvalidInput("until", f"must be nearer: more than {limit} rows were due from start to then")
    replay = uuid4().hex
    try:
        yield from _produce(Family(schema, deadline.stream_id), deadline, rows, replay=replay)
    except Misfits as misfits:
        raise InvalidInput("deadline", f"{name!r} has a row that cannot be produced again: {misfits}") from None
    yield from ask(statements.note_replayed(schema, deadline_id=deadline.id, count=len(rows)))
    return Replayed(len(rows), replay)
