"""Messages ready for the wire: checked, encoded and cut into statements."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

from sqlstreams.codec import Codec, encode_headers
from sqlstreams.errors import InvalidInput
from sqlstreams.model import Message
from sqlstreams.names import check_key
from sqlstreams.statements import Appended, Family, Statement, produce_many

PayloadT = TypeVar("PayloadT")

# Larger arrays spill over work_mem on the server and are slower (benchmarks/produce.py).
CHUNK_ROWS: Final = 1_000
_CHUNK_BYTES: Final = 2_000_000

_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)
_JSON_OID: Final = 114
_JSON_ARRAY_OID: Final = 199


class Encoded(Struct, frozen=True):
    """A message as it is sent: everything checked, nothing left that the database could refuse."""

    payload: bytes
    key: str | None
    routing_key: str | None
    options: bytes | None


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

    def __init__(self, codec: Codec[PayloadT]) -> None:
        self._codec = codec

    def one(
        self,
        payload: PayloadT,
        *,
        max_payload: int,
        key: str | None = None,
        routing_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Encoded:
        """Encode one message; raise `InvalidInput` naming the field that cannot be stored."""
        encoded = self._codec.encode(payload)
        if len(encoded) > max_payload:
            raise InvalidInput("payload", f"must have at most {max_payload} bytes as JSON, got {len(encoded)}")
        return Encoded(
            payload=encoded,
            key=check_key("key", key),
            routing_key=check_key("routing_key", routing_key),
            options=encode_headers(headers),
        )

    def many(self, items: Iterable[PayloadT | Message[PayloadT]], *, max_payload: int) -> list[Encoded]:
        """Encode all messages or none; the field of a refusal says which one it was."""
        encoded = []
        for position, item in enumerate(items):
            message: Message[Any] = item if isinstance(item, Message) else Message(item)
            try:
                encoded.append(
                    self.one(
                        message.payload,
                        max_payload=max_payload,
                        key=message.key,
                        routing_key=message.routing_key,
                        headers=message.headers,
                    )
                )
            except InvalidInput as error:
                raise InvalidInput(f"messages[{position}].{error.field}", error.problem) from None
        return encoded


def statements(family: Family, messages: Sequence[Encoded], *, schema_version: int) -> list[Statement[Appended]]:
    """Cut messages into the statements that append them, in order."""
    return [
        produce_many(
            family,
            schema_version=schema_version,
            payloads=JsonArray([message.payload for message in chunk]),
            routing_keys=_column([message.routing_key for message in chunk]),
            message_keys=_column([message.key for message in chunk]),
            options=_json_column([message.options for message in chunk]),
        )
        for chunk in _chunks(messages)
    ]


def _chunks(messages: Sequence[Encoded]) -> Iterator[Sequence[Encoded]]:
    start, size = 0, 0
    for end, message in enumerate(messages):
        if end > start and (end - start == CHUNK_ROWS or size + len(message.payload) > _CHUNK_BYTES):
            yield messages[start:end]
            start, size = end, 0
        size += len(message.payload)
    yield messages[start:]


def _column(values: list[str | None]) -> list[str | None] | None:
    return values if any(value is not None for value in values) else None


def _json_column(values: list[bytes | None]) -> JsonArray | None:
    return JsonArray(values) if any(value is not None for value in values) else None
