"""Producing lines of JSON in batches, so that it is known at any moment how many were produced."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO

import msgspec
import typer
from msgspec import Struct

from sqlstreams import Message, RawPayload, Receipt, Stream
from sqlstreams.errors import InvalidInput, NotFound, ProduceUncertain
from sqlstreams_cli.connect import talk
from sqlstreams_cli.lines import Line, LineTooLong, read_batches
from sqlstreams_cli.values import parse_time

_BATCH_BYTES = 8_000_000
_ROOM_FOR_SPACE = 65_536
_PROGRESS_EVERY = 0.2
_PLACE = re.compile(r"messages\[(\d+)\]\.(.*)", re.DOTALL)


class LineRefused(InvalidInput):
    """A line of the input cannot be produced."""

    def __init__(self, number: int, field: str, problem: str) -> None:
        super().__init__(f"line {number}: {field}", problem)
        self.number = number


class Keys(Struct, frozen=True):
    """Where the keys of a message come from: the same text for all, or a field of each payload.

    `compaction_rank` is the rank of every message among those of its key, `deliver_at` when all are due.
    """

    key: str | None
    key_field: str | None
    routing_key: str | None
    routing_key_field: str | None
    idempotency_key: str | None
    idempotency_key_field: str | None
    compaction_rank: int | None
    deliver_at: datetime | None

    @classmethod
    def checked(
        cls,
        *,
        key: str | None,
        key_field: str | None,
        routing_key: str | None,
        routing_key_field: str | None,
        idempotency_key: str | None,
        idempotency_key_field: str | None,
        compaction_rank: int | None,
        deliver_at: str | None,
    ) -> Keys:
        """Return the keys; refuse a text and a field for the same one."""
        if key is not None and key_field is not None:
            raise typer.BadParameter("goes without --key-field", param_hint="--key")
        if routing_key is not None and routing_key_field is not None:
            raise typer.BadParameter("goes without --routing-key-field", param_hint="--routing-key")
        if idempotency_key is not None and idempotency_key_field is not None:
            raise typer.BadParameter("goes without --idempotency-key-field", param_hint="--idempotency-key")
        return cls(
            key=key,
            key_field=key_field,
            routing_key=routing_key,
            routing_key_field=routing_key_field,
            idempotency_key=idempotency_key,
            idempotency_key_field=idempotency_key_field,
            compaction_rank=compaction_rank,
            deliver_at=None if deliver_at is None else parse_time(deliver_at, option="--deliver-at"),
        )

    def message(self, payload: bytes) -> Message[RawPayload]:
        """Return a payload with its keys."""
        fields = (self.key_field, self.routing_key_field, self.idempotency_key_field)
        members = {} if fields == (None, None, None) else _members(payload)
        return Message(
            RawPayload(payload),
            key=_value(members, self.key_field, self.key),
            routing_key=_value(members, self.routing_key_field, self.routing_key),
            compaction_rank=self.compaction_rank,
            idempotency_key=_value(members, self.idempotency_key_field, self.idempotency_key),
            deliver_at=self.deliver_at,
        )


class Summary(Struct):
    """What was produced so far: `lines` is the number of the last line that needs no second run.

    `duplicates` were in the stream already, by their idempotency keys; they count as produced, with the ids they have.
    """

    produced: int = 0
    duplicates: int = 0
    first_id: int | None = None
    last_id: int | None = None
    lines: int = 0
    seconds: float = 0.0


class Feed:
    """One run of `stream produce`."""

    def __init__(self, stream: Stream[RawPayload], keys: Keys, delivery: Mapping[str, Any]) -> None:
        info = stream.get()
        if info is None:
            raise NotFound("stream", stream.name)
        self.summary = Summary()
        self.uncertain: list[Line] = []
        self._producer = stream.producer(**delivery)
        self._max_payload = info.max_payload
        self._keys = keys
        self._busy = self._asked_to_stop = False
        self._began = time.monotonic()
        self._shown_at = 0.0

    def produce_one(self, payload: bytes) -> None:
        """Produce a single message."""
        message = self._keys.message(payload)
        receipt = self._producer.produce(
            message.payload,
            key=message.key,
            routing_key=message.routing_key,
            compaction_rank=message.compaction_rank,
            deliver_at=message.deliver_at,
            idempotency_key=message.idempotency_key,
        )
        self._count([receipt], line=0)

    def produce_lines(self, source: BinaryIO, *, batch: int, skip: int) -> None:
        """Produce every line behind the first `skip`; stop at one that is refused, or between batches at Ctrl-C."""
        self.summary.lines = skip
        longest = self._max_payload + _ROOM_FOR_SPACE
        if sys.stdin is not None and sys.stdin.isatty() and source is sys.stdin.buffer:
            talk("reading a message a line; Ctrl-D ends")
        try:
            with self._stopping_between_batches():
                for lines in read_batches(source, rows=batch, size=_BATCH_BYTES, longest=longest, skip=skip):
                    self._produce(lines)
        except LineTooLong as error:
            problem = f"must have at most {self._max_payload} bytes as JSON, got more than {longest}"
            raise LineRefused(error.number, "payload", problem) from None
        finally:
            self._show_progress(ended=True)

    def describe(self) -> str:
        """Say what was produced."""
        done = self.summary
        if not done.produced:
            return "produced nothing"
        rate = f" ({done.produced / done.seconds:,.0f}/s)" if done.produced > 1 else ""
        ids = f"ids {done.first_id} to {done.last_id}" if done.produced > 1 else f"id {done.last_id}"
        count = f"{done.produced:,} message{'s' if done.produced > 1 else ''}"
        duplicates = f"; {done.duplicates:,} of them were there before" if done.duplicates else ""
        return f"produced {count} in {done.seconds:.1f} s{rate}, {ids}{duplicates}"

    def how_to_go_on(self) -> str:
        """Say where a run that ended early can be taken up again."""
        done = self.summary
        if self.uncertain:
            first, last = self.uncertain[0].number, self.uncertain[-1].number
            return (
                f"lines {first} to {last} were sent and it is not known whether they were committed: look at the end "
                f"of the stream, then go on with --skip {first - 1} if they are not there and --skip {last} if they are"
            )
        return f"nothing behind line {done.lines} was produced; go on with --skip {done.lines}"

    def _produce(self, lines: list[Line]) -> None:
        messages = [self._message(line) for line in lines]
        self._busy = True
        try:
            receipts = self._producer.produce_many(messages)
        except InvalidInput as error:
            raise _of_line(error, lines) from None
        except (ProduceUncertain, KeyboardInterrupt):
            self.uncertain = lines
            raise
        finally:
            self._busy = False
        self._count(receipts, line=lines[-1].number)
        self._show_progress()
        if self._asked_to_stop:
            raise KeyboardInterrupt

    def _message(self, line: Line) -> Message[RawPayload]:
        try:
            return self._keys.message(line.text)
        except InvalidInput as error:
            raise LineRefused(line.number, error.field, error.problem) from None

    def _count(self, receipts: list[Receipt], *, line: int) -> None:
        self.summary.produced += len(receipts)
        self.summary.duplicates += sum(receipt.duplicate for receipt in receipts)
        self.summary.first_id = receipts[0].id if self.summary.first_id is None else self.summary.first_id
        self.summary.last_id = receipts[-1].id
        self.summary.lines = line
        self.summary.seconds = time.monotonic() - self._began

    def _show_progress(self, *, ended: bool = False) -> None:
        if not sys.stderr.isatty():
            return
        now = time.monotonic()
        if ended:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        elif now > self._shown_at + _PROGRESS_EVERY:
            self._shown_at = now
            rate = self.summary.produced / (now - self._began)
            print(f"\r{self.summary.produced:,} produced, {rate:,.0f}/s\x1b[K", end="", file=sys.stderr, flush=True)

    @contextmanager
    def _stopping_between_batches(self) -> Iterator[None]:
        """Let Ctrl-C wait for the batch under way, so that the count is exact; a second one does not wait."""

        def stop(*_: object) -> None:
            if not self._busy or self._asked_to_stop:
                raise KeyboardInterrupt
            self._asked_to_stop = True

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _of_line(error: InvalidInput, lines: list[Line]) -> InvalidInput:
    place = _PLACE.fullmatch(error.field)
    if place is None:
        return error
    return LineRefused(lines[int(place[1])].number, place[2], error.problem)


def _members(payload: bytes) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput("payload", f"must be a JSON object, to have a field for a key: {error}") from None
    return members


def _value(members: dict[str, Any], field: str | None, otherwise: str | None) -> str | None:
    if field is None:
        return otherwise
    if field not in members:
        raise InvalidInput("payload", f"has no field {field!r} for the key")
    try:
        return str(msgspec.json.decode(members[field], type=str | int))
    except msgspec.MsgspecError:
        raise InvalidInput(f"payload.{field}", "must be a text or a whole number to be a key") from None
