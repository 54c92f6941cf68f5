"""Messages ready for the wire: checked, encoded and cut into statements."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

from sqlstreams.codec import ASKS_NOTHING, Codec, encode_options
from sqlstreams.errors import IdempotencyConflict, InvalidInput
from sqlstreams.model import Message, Receipt
from sqlstreams.names import check_key
from sqlstreams.options import DeliveryOptions, check_due, check_rank
from sqlstreams.statements import Act, Family, Nothing, Statement, ask, move_heads, produce_many
from sqlstreams.tracing import current_trace

PayloadT = TypeVar("PayloadT")
ValueT = TypeVar("ValueT")

# Larger arrays spill over work_mem on the server and are slower (benchmarks/produce.py).
_CHUNK_ROWS: Final = 1_000
_FIRST_ROWS: Final = 100
_CHUNK_BYTES: Final = 2_000_000
_DELIVERY_FIELDS: Final = DeliveryOptions.__struct_fields__

_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)
_JSON_OID: Final = 114
_JSON_ARRAY_OID: Final = 199


class PayloadTooLarge(InvalidInput):
    """A payload is larger than its stream takes, as far as this client knows the stream."""


class Encoded(Struct, frozen=True):
    """A message as it is sent: everything checked, nothing left that the database could refuse."""

    payload: bytes
    key: str | None
    routing_key: str | None
    options: bytes | None
    asks_for_keys: bool = False
    compaction_rank: int | None = None
    idempotency_key: str | None = None
    is_for_later: bool = False


class Appended(Struct, frozen=True):
    """What came of a batch: an answer for each message, and the ids of those that were appended."""

    answers: list[Receipt | IdempotencyConflict]
    ids: list[int]

    @property
    def receipts(self) -> list[Receipt]:
        """The answers of a batch whose messages were produced together: there is no conflict among them."""
        return cast("list[Receipt]", self.answers)


class JsonArray:
    """Values for a json[] parameter, sent as they are: no escaping, no copy per element."""

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.values = values


class _JsonArrayDumper(Dumper):
    format = Format.BINARY
    oid = _JSON_ARRAY_OID

    def dump(self, obj: JsonArray) -> bytes:
        has_null = any(value is None for value in obj.values)
        parts = [struct.pack(">iiIii", 1, has_null, _JSON_OID, len(obj.values), 1)]
        for value in obj.values:
            parts += (_NULL,) if value is None else (_LENGTH(len(value)), value)
        return b"".join(parts)


def prepare_adapters(adapters: AdaptersMap) -> None:
    """Teach a connection, ours or a user's, to send our json arrays; nothing else of it changes."""
    adapters.register_dumper(JsonArray, _JsonArrayDumper)


class Encoder(Generic[PayloadT]):
    """Turns what users hand to a producer into messages for the wire, or refuses it."""

    def __init__(self, codec: Codec[PayloadT], *, defaults: DeliveryOptions, delay: timedelta | None = None) -> None:
        self._codec = codec
        self._defaults = defaults if defaults != ASKS_NOTHING else ASKS_NOTHING
        # What messages without a key may do beside each other is no question.
        keyless = msgspec.structs.replace(defaults, concurrency=None)
        self._keyless_defaults = keyless if keyless != ASKS_NOTHING else ASKS_NOTHING
        _, self._delay = check_due(None, delay)
        self._plain_options = self._encode_plain(None)

    def one(self, message: Message[PayloadT], *, max_payload: int) -> Encoded:
        """Encode one message; raise `InvalidInput` naming the field that cannot be stored."""
        return self._one(message, max_payload, current_trace())

    def _one(self, message: Message[PayloadT], max_payload: int, trace: Mapping[str, str]) -> Encoded:
        encoded = self._payload(message.payload, max_payload)
        delivery = self._delivery(message)
        deliver_at, delay = self._due(message)
        return Encoded(
            payload=encoded,
            key=check_key("key", message.key),
            routing_key=check_key("routing_key", message.routing_key),
            options=encode_options(
                headers=message.headers, trace=trace, delivery=delivery, deliver_at=deliver_at, delay=delay
            ),
            asks_for_keys=delivery.concurrency in ("exclusive", "ordered"),
            compaction_rank=_rank(message),
            is_for_later=deliver_at is not None or bool(delay),
            idempotency_key=check_key("idempotency_key", message.idempotency_key),
        )

    def ask_for_keys(self, items: Iterable[PayloadT | Message[PayloadT]]) -> bool:
        """Say whether any of some items has a concurrency of its own, or may have the producer's."""
        return self._defaults.concurrency is not None or any(
            isinstance(item, Message) and item.concurrency is not None for item in items
        )

    def have_idempotency_keys(self, items: Iterable[PayloadT | Message[PayloadT]]) -> bool:
        """Say whether any of some items has an idempotency key."""
        return any(isinstance(item, Message) and item.idempotency_key is not None for item in items)

    def _delivery(self, message: Message[PayloadT]) -> DeliveryOptions:
        defaults = self._keyless_defaults if message.key is None else self._defaults
        asked = {name: value for name in _DELIVERY_FIELDS if (value := getattr(message, name)) is not None}
        if not asked:
            return defaults
        delivery = DeliveryOptions(**{**msgspec.structs.asdict(defaults), **asked})
        if message.key is None and delivery.concurrency in ("exclusive", "ordered"):
            raise InvalidInput("concurrency", f"of {delivery.concurrency!r} needs a key")
        return delivery

    def _due(self, message: Message[PayloadT]) -> tuple[datetime | None, timedelta | None]:
        deliver_at, delay = check_due(message.deliver_at, message.delay)
        return deliver_at, self._delay if deliver_at is None and delay is None else delay

    def each(self, items: Iterable[PayloadT | Message[PayloadT]], *, max_payload: int) -> Iterator[Encoded]:
        """Encode one message after the other; the field of a refusal says which one it was."""
        trace = current_trace()
        plain = self._plain_options if not trace else self._encode_plain(trace)
        for position, item in enumerate(items):
            try:
                yield self._item(item, max_payload, trace, plain)
            except InvalidInput as error:
                raise type(error)(f"messages[{position}].{error.field}", error.problem) from None

    def _encode_plain(self, trace: Mapping[str, str] | None) -> bytes | None:
        return encode_options(headers=None, trace=trace, delivery=self._keyless_defaults, delay=self._delay)

    def _item(
        self, item: PayloadT | Message[PayloadT], max_payload: int, trace: Mapping[str, str], plain: bytes | None
    ) -> Encoded:
        if not isinstance(item, Message):
            return Encoded(self._payload(item, max_payload), None, None, plain)
        message: Message[PayloadT] = item
        return self._one(message, max_payload, trace)

    def _payload(self, payload: PayloadT, max_payload: int) -> bytes:
        encoded = self._codec.encode(payload)
        if len(encoded) > max_payload:
            raise PayloadTooLarge("payload", f"must have at most {max_payload} bytes as JSON, got {len(encoded)}")
        return encoded


class Appendable(Protocol):
    """Messages as what is asked to append them: statements, and then what follows from all their rows."""

    size: int
    needs_savepoint: bool

    def __iter__(self) -> Iterator[Statement[Any]]:
        """Return the statements, in their order."""

    def finish(self, rows: list[Any]) -> Act[Appended]:
        """Ask the rest, once the rows of the statements are known."""


def append_messages(batch: Appendable) -> Act[Appended]:
    """Append a batch within whatever transaction the act is driven in."""
    rows: list[Any] = []
    for statement in batch:
        rows += yield from ask(statement)
    return (yield from batch.finish(rows))


class Batch:
    """Messages on their way into a log, as the statements that append them in order.

    With `eager=False` each statement is encoded when it is asked for, so that the server appends one part while the
    next is encoded; the parts begin small, because it waits for the first (benchmarks/produce.py).
    """

    needs_savepoint = False

    def __init__(
        self, family: Family, messages: Iterable[Encoded], *, size: int, schema_version: int, eager: bool
    ) -> None:
        self.size = size
        self._family = family
        self._schema_version = schema_version
        self._ranked: list[tuple[int, str, int]] = []
        self._cut = 0
        self._parts = _parts(messages, first=_CHUNK_ROWS if eager else _FIRST_ROWS)
        self._made: list[Statement[int]] = []
        if eager:
            list(self)

    def __iter__(self) -> Iterator[Statement[int]]:
        yield from list(self._made)
        for part in self._parts:
            self._made.append(self._statement(part))
            yield self._made[-1]

    def finish(self, ids: list[int]) -> Act[Appended]:
        """Ask the rest, once the messages have their ids."""
        if self._ranked:
            yield from ask(self._move_heads(ids))
        return Appended([Receipt(message_id) for message_id in ids], ids)

    def _move_heads(self, ids: Sequence[int]) -> Statement[Nothing]:
        # One statement for the whole batch, so that its keys are locked in order.
        greatest: dict[str, tuple[int, int]] = {}
        for position, key, rank in self._ranked:
            greatest[key] = max(greatest.get(key, (rank, 0)), (rank, ids[position]))
        ranks, head_ids = zip(*greatest.values(), strict=True)
        return move_heads(
            self._family,
            schema_version=self._schema_version,
            keys=list(greatest),
            ranks=list(ranks),
            ids=list(head_ids),
        )

    def _statement(self, part: Sequence[Encoded]) -> Statement[int]:
        ranks = _column([message.compaction_rank for message in part])
        if ranks is not None:
            self._note_ranks(part)
        self._cut += len(part)
        return produce_many(
            self._family,
            schema_version=self._schema_version,
            payloads=JsonArray([message.payload for message in part]),
            routing_keys=_column([message.routing_key for message in part]),
            message_keys=_column([message.key for message in part]),
            options=_json_column([message.options for message in part]),
            compaction_ranks=ranks,
        )

    def _note_ranks(self, part: Sequence[Encoded]) -> None:
        for position, message in enumerate(part, start=self._cut):
            # What is for later supersedes nothing before it is delivered: see consume/heads.py.
            if message.compaction_rank is not None and message.key is not None and not message.is_for_later:
                self._ranked.append((position, message.key, message.compaction_rank))


def _rank(message: Message[PayloadT]) -> int | None:
    rank = check_rank("compaction_rank", message.compaction_rank)
    if rank is not None and message.key is None:
        raise InvalidInput("compaction_rank", "needs a key")
    return rank


def _parts(messages: Iterable[Encoded], *, first: int) -> Iterator[list[Encoded]]:
    part: list[Encoded] = []
    rows, size = first, 0
    for message in messages:
        if part and (len(part) == rows or size + len(message.payload) > _CHUNK_BYTES):
            yield part
            part, size, rows = [], 0, min(2 * rows, _CHUNK_ROWS)
        part.append(message)
        size += len(message.payload)
    if part:
        yield part


def _column(values: list[ValueT | None]) -> list[ValueT | None] | None:
    return values if any(value is not None for value in values) else None


def _json_column(values: list[bytes | None]) -> JsonArray | None:
    return JsonArray(values) if any(value is not None for value in values) else None
