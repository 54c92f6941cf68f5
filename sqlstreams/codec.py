"""Payloads to JSON and back, checked so that what was produced can be consumed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from sqlstreams.errors import InvalidInput
from sqlstreams.model import JsonSchema, RawPayload
from sqlstreams.names import shorten
from sqlstreams.options import DeliveryOptions, check_integer

PayloadT = TypeVar("PayloadT")

ASKS_NOTHING: Final = DeliveryOptions()
_ENCODER = msgspec.json.Encoder()
_MOST_HEADER_BYTES: Final = 16_384
_UNTYPED = msgspec.json.Decoder()
_BACKSLASH = ord("\\")
_REFERENCE = "#/$defs/"
# What a schema says for people only: a change of words is no change of shape.
_WORDS = frozenset({"title", "description", "examples", "$comment"})


class DecodeFailed(ValueError):
    """Stored JSON does not fit the payload type; the text says where."""


class ConvertFailed(ValueError):
    """What a converter made of an old payload does not fit the payload type; the text says where."""


class Codec(Generic[PayloadT]):
    """Encodes and decodes one payload type.

    A msgspec Struct, dataclass, TypedDict, attrs class, pydantic model, a plain JSON type, or `RawPayload`.
    `schema_version` is the version of a type that takes any JSON; the others say theirs themselves.
    """

    def __init__(self, payload_type: type[PayloadT], *, schema_version: int | None = None) -> None:
        # Any JSON-able type, TypedDicts and unions among them, which `type` cannot say.
        self.payload_type = payload_type
        self.schema_version = _schema_version(payload_type)
        if schema_version is not None:
            self.schema_version = check_integer("schema_version", schema_version, low=1, high=2**31 - 1)
            if self.json_schema() is not None:
                raise InvalidInput("schema_version", f"is said by {_type_name(payload_type)} itself; leave it out")
        self._dump, self._load = _faces(payload_type)
        self.decode: Callable[[bytes], PayloadT] = self._load
        """Return the payload in stored JSON; raise `DecodeFailed` when it does not fit the type."""

    def encode(self, payload: PayloadT) -> bytes:
        """Return `payload` as JSON; raise `InvalidInput` with the path of what no consumer could read back."""
        try:
            encoded = self._dump(payload)
        except InvalidInput:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            if "surrogates not allowed" in str(error) and (path := _search(payload, _lone_surrogate)):
                raise InvalidInput(path, "must not contain a lone surrogate") from None
            raise InvalidInput("payload", f"cannot be written as JSON: {error}") from None
        # NaN and Infinity become null, and NUL an escape that PostgreSQL's text functions cannot read.
        if b"null" in encoded and (path := _search(payload, _not_finite)):
            raise InvalidInput(path, "must be a finite number")
        # Looking for one byte first is 20 times faster than looking for six.
        if _BACKSLASH in encoded and b"\\u0000" in encoded and (path := _search(_UNTYPED.decode(encoded), _nul)):
            raise InvalidInput(path, "must not contain the character NUL")
        try:
            self._load(encoded)
        except DecodeFailed as error:
            raise InvalidInput("payload", f"is no {_type_name(self.payload_type)}: {error}") from None
        return encoded

    def convert(self, stored: bytes, convert: Callable[[Any], object]) -> PayloadT:
        """Return what `convert` makes of an old payload; raise `ConvertFailed` when that does not fit the type."""
        try:
            old = _UNTYPED.decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DecodeFailed(str(error)) from None
        made = convert(old)
        dump = self._dump if hasattr(made, "model_dump_json") else _ENCODER.encode
        try:
            return self.decode(dump(made))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise ConvertFailed(f"the converter made no {_type_name(self.payload_type)}: {error}") from None

    @property
    def reads_every_version(self) -> bool:
        """Whether the type takes JSON of any shape, and with it messages of every version."""
        return self.json_schema() in (None, {"type": "object"}, {"type": "array"})

    def json_schema(self) -> JsonSchema | None:
        """Return the shape of the type as a JSON Schema without words, or None where any JSON will do."""
        payload_type: Any = self.payload_type
        if payload_type in (RawPayload, Any, object, dict, list):
            return None
        if hasattr(payload_type, "model_json_schema"):
            schema = payload_type.model_json_schema()
        else:
            schema = msgspec.json.schema(payload_type)
        wordless = _without_words(schema)
        if not isinstance(wordless, dict):
            raise AssertionError("a JSON Schema is an object")
        return wordless


def fingerprint(schema: JsonSchema) -> str:
    """Return a digest that is equal for equal shapes, whatever their classes are called and how fields are ordered."""
    return hashlib.sha256(msgspec.json.encode(_nameless(schema), order="sorted")).hexdigest()


def check_shape(schema: JsonSchema, payload: bytes) -> None:
    """Refuse JSON that does not fit a recorded shape: for payloads without a type of their own.

    What a schema says of the size of numbers and texts is left to the type that reads them.
    """
    if problem := _misfit(schema, _UNTYPED.decode(payload), schema.get("$defs", {})):
        path, what = problem
        raise InvalidInput(f"payload{path}", what)


def describe_change(recorded: JsonSchema, given: JsonSchema) -> str:
    """Say in words how the fields of two shapes differ: added, removed, retyped, newly required or optional."""
    old, new = _fields(recorded), _fields(given)
    added, removed = _outermost(new.keys() - old.keys()), _outermost(old.keys() - new.keys())
    retyped = [name for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    changes = [f"{name!r} was added" for name in added if not _is_inside(name, retyped)]
    changes += [f"{name!r} was removed" for name in removed if not _is_inside(name, retyped)]
    changes += [f"{name!r} was {old[name]}, is {new[name]}" for name in retyped]
    return "; ".join(changes) or "a nested type differs"


def encode_options(
    *,
    headers: Mapping[str, str] | None,
    trace: Mapping[str, str] | None = None,
    delivery: DeliveryOptions = ASKS_NOTHING,
    scheduled_at: datetime | None = None,
    deliver_at: datetime | None = None,
    delay: timedelta | None = None,
) -> bytes | None:
    """Return the stored form of a message's options, or None when there are none.

    `trace` are headers of ours: those of the caller come first, and leave them out when they leave no room.
    """
    options: dict[str, object] = {}
    checked = {} if headers is None else _check_headers(headers)
    if trace:
        checked = _join_trace(checked, trace)
    if checked:
        options["headers"] = checked
    if delivery is not ASKS_NOTHING:
        options |= msgspec.to_builtins(delivery)
    if scheduled_at is not None:
        options["scheduled_at"] = scheduled_at.astimezone(UTC)
    if deliver_at is not None:
        options["deliver_at"] = deliver_at
    if delay:
        options["delay"] = delay.total_seconds()
    return _ENCODER.encode(options) if options else None


def _check_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidInput("headers", f"must map str to str, got {type(headers).__name__}")
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidInput("headers", f"must map str to str, got {shorten(repr(name))}: {type(value).__name__}")
        if "\x00" in name or "\x00" in value:
            raise InvalidInput("headers", f"must not contain the character NUL, found in {shorten(name)}")
    try:
        encoded = _ENCODER.encode(dict(headers))
    except UnicodeEncodeError:
        raise InvalidInput("headers", "must not contain a lone surrogate") from None
    if len(encoded) > _MOST_HEADER_BYTES:
        raise InvalidInput("headers", f"must have at most {_MOST_HEADER_BYTES} bytes together, got {len(encoded)}")
    return dict(headers)


def _join_trace(headers: dict[str, str], trace: Mapping[str, str]) -> dict[str, str]:
    if any(name.lower() in trace for name in headers):
        return headers
    joined = {**headers, **trace}
    return joined if len(_ENCODER.encode(joined)) <= _MOST_HEADER_BYTES else headers


class _Options(Struct, frozen=True):
    headers: dict[str, str] = {}


class _Scheduled(Struct, frozen=True):
    scheduled_at: datetime | None = None


_SCHEDULED = msgspec.json.Decoder(_Scheduled)


def decode_scheduled_at(options: bytes | None) -> datetime | None:
    """Return the slot of the schedule that produced a message; None when no schedule did."""
    try:
        return _SCHEDULED.decode(options).scheduled_at if options else None
    except msgspec.DecodeError:  # none that this library wrote
        return None


_OPTIONS = msgspec.json.Decoder(_Options)


def decode_headers(options: bytes | None) -> Mapping[str, str]:
    """Return the headers in a message's stored options."""
    return _OPTIONS.decode(options).headers if options else {}


_DELIVERY = msgspec.json.Decoder(DeliveryOptions)


def decode_delivery(options: bytes) -> DeliveryOptions:
    """Return what a message's stored options ask for; nothing, when they are none that this library wrote."""
    try:
        return _DELIVERY.decode(options)
    except msgspec.DecodeError:
        return ASKS_NOTHING


def _schema_version(payload_type: Any) -> int:
    version = getattr(payload_type, "schema_version", 1)
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
        raise InvalidInput(
            "schema_version", f"of {_type_name(payload_type)} must be an int of 1 or more, got {version!r}"
        )
    return version


def _faces(payload_type: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if payload_type is RawPayload:
        return _dump_raw, RawPayload
    if hasattr(payload_type, "model_validate_json"):
        return _pydantic_faces(payload_type)
    try:
        decoder = msgspec.json.Decoder(payload_type)
    except TypeError as error:
        raise InvalidInput("payload_type", f"{_type_name(payload_type)} cannot be a payload: {error}") from None

    def load(stored: bytes) -> Any:
        try:
            return decoder.decode(stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DecodeFailed(str(error)) from None

    return _ENCODER.encode, load


def _pydantic_faces(model: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    def dump(payload: Any) -> bytes:
        if not isinstance(payload, model):
            raise InvalidInput("payload", f"must be a {model.__name__}, got {type(payload).__name__}")
        return bytes(payload.model_dump_json().encode())

    def load(stored: bytes) -> Any:
        try:
            return model.model_validate_json(stored)
        except ValueError as error:
            raise DecodeFailed(str(error)) from None

    return dump, load


def _dump_raw(payload: object) -> bytes:
    if not isinstance(payload, bytes):
        raise InvalidInput("payload", f"must be JSON as bytes, got {type(payload).__name__}")
    try:
        _UNTYPED.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput("payload", f"must be valid JSON: {error}") from None
    return payload


def _type_name(payload_type: object) -> str:
    return getattr(payload_type, "__name__", None) or repr(payload_type)


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _nul(value: object) -> bool:
    return isinstance(value, str) and "\x00" in value


def _lone_surrogate(value: object) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


def _search(payload: object, is_wrong: Callable[[object], bool]) -> str | None:
    found = [("payload", payload)]
    while found:
        path, value = found.pop()
        if is_wrong(value):
            return path
        found += [(f"{path}{name}", inner) for name, inner in reversed(_members(value))]
    return None


def _members(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        keys = [(" key", key) for key in value]
        return [*keys, *((f".{key}", inner) for key, inner in value.items())]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{position}]", inner) for position, inner in enumerate(value)]
    of_type: Any = type(value)
    return [(f".{name}", getattr(value, name, None)) for name in _field_names(of_type)]


@cache
def _field_names(of_type: Any) -> tuple[str, ...]:
    # Of a Struct, a dataclass, an attrs class or a pydantic model; a plain value has none.
    for names in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__"):
        if fields := getattr(of_type, names, None):
            return tuple(fields)
    return tuple(field.name for field in getattr(of_type, "__attrs_attrs__", ()))


def _without_words(schema: object) -> object:
    if isinstance(schema, dict):
        return {
            key: _each_without_words(inner) if key in ("properties", "$defs") else _without_words(inner)
            for key, inner in schema.items()
            if key not in _WORDS
        }
    if isinstance(schema, list):
        return [_without_words(inner) for inner in schema]
    return schema


def _each_without_words(schemas: Mapping[str, object]) -> dict[str, object]:
    # Here the keys are names of fields and types; a field may well be called "title".
    return {name: _without_words(schema) for name, schema in schemas.items()}


def _nameless(schema: JsonSchema) -> JsonSchema:
    # Types are numbered in the order in which they are met, so the list of them grows while we go through it.
    names: list[str] = []
    root = _renamed({key: value for key, value in schema.items() if key != "$defs"}, names)
    types = [_renamed(schema["$defs"][name], names) for name in names]
    return {"root": root, "types": types}


def _renamed(value: Any, names: list[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: sorted(_renamed(inner, names), key=repr)
            if key in ("required", "anyOf", "enum") and isinstance(inner, list)
            else _renamed(inner, names)
            for key, inner in sorted(value.items())
        }
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    if isinstance(value, str) and value.startswith(_REFERENCE):
        name = value.removeprefix(_REFERENCE)
        if name not in names:
            names.append(name)
        return names.index(name)
    return value


def _fields(schema: JsonSchema) -> dict[str, str]:
    # With those of nested types, by their paths; a type within itself is gone through once.
    types, found = schema.get("$defs", {}), dict[str, str]()
    shapes: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [("", schema, ())]
    while shapes:
        path, shape, within = shapes.pop()
        required = set(shape.get("required", ()))
        for name, field in shape.get("properties", {}).items():
            found[path + name] = ("" if name in required else "optional ") + _describe_type(field)
            shapes.append((f"{path}{name}.", field, within))
        for inner, mark in _parts(shape):
            shapes.append((path.removesuffix(".") + mark + "." if mark else path, inner, within))
        reference = str(shape.get("$ref", "")).rpartition("/")[2]
        if reference in types and reference not in within:
            shapes.append((path, types[reference], (*within, reference)))
    return found


def _parts(shape: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    parts = [(each, "") for each in shape.get("anyOf", ())]
    parts += [(each, f"[{position}]") for position, each in enumerate(shape.get("prefixItems", ()))]
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(inner := shape.get(word), Mapping):
            parts.append((inner, mark))
    return parts


_JSON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def _misfit(schema: Mapping[str, Any], value: Any, types: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return where a value does not fit a schema and why, or None."""
    if reference := str(schema.get("$ref", "")).rpartition("/")[2]:
        return _misfit(types[reference], value, types)
    if choices := schema.get("anyOf"):
        misfits = [_misfit(each, value, types) for each in choices]
        return None if None in misfits else min(misfits, key=lambda misfit: -len(misfit[0]) if misfit else 0)
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else list(wanted or _JSON_TYPES)
    if schema.get("format") == "decimal":
        names += ["number"]  # is read without loss as well
    if not any(_is_json_type(value, name) for name in names):
        return "", f"must be {' or '.join(names)}, got {repr(value)[:60]}"
    if value not in schema.get("enum", [schema.get("const", value)]):
        return "", f"must be {schema.get('enum') or schema.get('const')!r}, got {repr(value)[:60]}"
    return _misfit_within(schema, value, types)


def _is_json_type(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _JSON_TYPES[name])


def _misfit_within(schema: Mapping[str, Any], value: Any, types: Mapping[str, Any]) -> tuple[str, str] | None:
    members: list[tuple[str, Any, Any]] = []
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            return f".{missing[0]}", "is missing: the recorded shape of the stream requires it"
        members = [(f".{name}", properties.get(name, others), inner) for name, inner in value.items()]
    elif isinstance(value, list):
        firsts, others = schema.get("prefixItems", []), schema.get("items", True)
        inner_schemas = [*firsts, *[others] * len(value)]
        members = [(f"[{at}]", inner_schemas[at], inner) for at, inner in enumerate(value)]
    for path, inner_schema, inner in members:
        if inner_schema is False:
            return path, "is not in the recorded shape of the stream"
        if isinstance(inner_schema, Mapping) and (problem := _misfit(inner_schema, inner, types)):
            return path + problem[0], problem[1]
    return None


def _outermost(names: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for name in sorted(names):
        if not _is_inside(name, kept):
            kept.append(name)
    return kept


def _is_inside(name: str, others: list[str]) -> bool:
    return any(name.startswith((f"{other}.", f"{other}[", f"{other}{{")) for other in others)


def _describe_type(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_describe_type(each) for each in field["anyOf"])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("format") or field.get("type") or "anything")
