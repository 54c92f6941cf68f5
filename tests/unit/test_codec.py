"""Payloads to JSON and back: what comes out is what went in, and what could not come out is refused."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sqlstreams import InvalidInput, RawPayload
from sqlstreams.codec import Codec, DecodeFailed, decode_headers, describe_change, encode_options, fingerprint


class AsStruct(Struct, frozen=True):
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


@dataclasses.dataclass(frozen=True)
class AsDataclass:
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


@dataclasses.dataclass(frozen=True, slots=True)
class AsSlots:
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


@attrs.frozen
class AsAttrs:
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


class AsPydantic(pydantic.BaseModel):
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


class AsTypedDict(TypedDict):
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


class AsNamedTuple(NamedTuple):
    text: str
    number: int
    ratio: float | None
    tags: list[str]
    more: dict[str, bool]


TYPES = [AsStruct, AsDataclass, AsSlots, AsAttrs, AsPydantic, AsTypedDict, AsNamedTuple]
every_type = pytest.mark.parametrize("payload_type", TYPES, ids=lambda each: each.__name__)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
finite = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**64 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | integers | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
fields = st.fixed_dictionaries(
    {
        "text": texts,
        "number": st.integers(-(2**63), 2**63 - 1),
        "ratio": st.none() | finite,
        "tags": st.lists(texts, max_size=3),
        "more": st.dictionaries(texts, st.booleans(), max_size=3),
    }
)


@every_type
@given(fields)
def test_a_payload_comes_back_as_it_was(payload_type: Any, values: dict[str, Any]) -> None:
    codec: Codec[Any] = Codec(payload_type)
    payload = payload_type(**values)
    assert codec.decode(codec.encode(payload)) == payload


@given(json_values)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    codec: Codec[Any] = Codec(object)
    assert codec.decode(codec.encode(value)) == value


@given(st.dictionaries(texts, json_values, max_size=5))
def test_a_dict_comes_back_as_it_was(value: dict[str, Any]) -> None:
    codec = Codec(dict)
    assert codec.decode(codec.encode(value)) == value


@given(json_values)
def test_raw_json_is_stored_byte_by_byte(value: Any) -> None:
    codec = Codec(RawPayload)
    raw = RawPayload(msgspec.json.format(msgspec.json.encode(value), indent=3))
    assert codec.encode(raw) == raw
    assert codec.decode(raw) == raw


WRONG = [
    ({"ratio": float("nan")}, "payload.ratio", "must be a finite number"),
    ({"ratio": float("inf")}, "payload.ratio", "must be a finite number"),
    ({"ratio": float("-inf")}, "payload.ratio", "must be a finite number"),
    ({"text": "a\x00b"}, "payload.text", "must not contain the character NUL"),
    ({"tags": ["fine", "\x00"]}, "payload.tags[1]", "must not contain the character NUL"),
    ({"more": {"\x00": True}}, "payload.more key", "must not contain the character NUL"),
    ({"text": "\ud800"}, "payload.text", "must not contain a lone surrogate"),
    ({"tags": ["fine", "a\udfff"]}, "payload.tags[1]", "must not contain a lone surrogate"),
    ({"more": {"\ud800": True}}, "payload.more key", "must not contain a lone surrogate"),
]


@pytest.mark.parametrize("payload_type", [AsStruct, AsDataclass, AsSlots, AsAttrs, AsTypedDict])
@pytest.mark.parametrize(("values", "field", "problem"), WRONG, ids=[ascii(each[0]) for each in WRONG])
def test_what_json_or_postgresql_cannot_hold_is_refused_where_it_is(
    payload_type: Any, values: dict[str, Any], field: str, problem: str
) -> None:
    right: dict[str, Any] = {"text": "", "number": 0, "ratio": None, "tags": [], "more": {}}
    payload = payload_type(**right | values)
    with pytest.raises(InvalidInput) as refused:
        Codec(payload_type).encode(payload)
    assert refused.value.field == field
    assert refused.value.problem == problem


@pytest.mark.parametrize(
    ("values", "field"), [({"ratio": float("nan")}, "payload.ratio"), ({"text": "\x00"}, "payload.text")]
)
def test_a_pydantic_model_is_checked_as_well(values: dict[str, Any], field: str) -> None:
    payload = AsPydantic.model_validate({"text": "", "number": 0, "ratio": None, "tags": [], "more": {}} | values)
    with pytest.raises(InvalidInput) as refused:
        Codec(AsPydantic).encode(payload)
    assert refused.value.field == field


def test_the_path_into_nested_values_is_whole() -> None:
    with pytest.raises(InvalidInput) as refused:
        Codec(dict).encode({"rows": [{}, {"sums": (1.0, float("nan"))}]})
    assert refused.value.field == "payload.rows[1].sums[1]"


def test_the_first_wrong_value_is_named() -> None:
    with pytest.raises(InvalidInput) as refused:
        Codec(dict).encode({"a": 1.0, "b": float("nan"), "c": float("nan")})
    assert refused.value.field == "payload.b"


def test_a_backslash_before_u0000_is_no_nul() -> None:
    codec = Codec(dict)
    assert codec.decode(codec.encode({"a": "\\u0000", "b": None})) == {"a": "\\u0000", "b": None}


class Colour(enum.Enum):
    RED = "red"


class Painted(Struct):
    colour: Colour
    note: str | None = None


def test_an_enum_beside_a_null_is_no_trouble() -> None:
    codec = Codec(Painted)
    assert codec.decode(codec.encode(Painted(Colour.RED))) == Painted(Colour.RED)


def _nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["lists", "dicts"])
def test_nesting_is_stored_or_refused_whatever_its_depth(wrap: Callable[[Any], Any]) -> None:
    codec: Codec[Any] = Codec(object)
    deep = _nested(300, wrap)
    assert codec.decode(codec.encode(deep)) == deep
    for depth in (500, 900, 990, 1_100, 5_000, 100_000):
        try:
            codec.encode(_nested(depth, wrap))
        except InvalidInput as refused:
            assert refused.field == "payload"  # noqa: PT017  # either is right, but nothing else


def test_a_payload_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match="payload cannot be written as JSON"):
        Codec(list).encode(endless)


class Numbered(Struct):
    number: int


def test_an_int_of_any_size_is_stored_or_refused() -> None:
    codec = Codec(Numbered)
    for number in (2**63 - 1, -(2**63), 2**64 - 1):
        assert codec.decode(codec.encode(Numbered(number))).number == number
    for number in (2**64, 10**30, -(10**30)):
        try:
            assert codec.decode(codec.encode(Numbered(number))).number == number
        except InvalidInput as refused:
            assert refused.field == "payload"  # noqa: PT017  # either is right, but nothing else
    with pytest.raises(InvalidInput):
        codec.encode(Numbered(10**5_000))


class Moment(Struct):
    at: datetime
    price: Decimal


def test_times_and_decimals_come_back_as_they_were() -> None:
    codec = Codec(Moment)
    for at in (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2026, 1, 2)):  # noqa: DTZ001  # naive is allowed
        payload = Moment(at, Decimal("0.10"))
        assert codec.decode(codec.encode(payload)) == payload


@pytest.mark.parametrize("payload", ["not a struct", {"number": "one"}, None, 5, object(), Numbered])
def test_a_payload_of_another_type_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^payload"):
        Codec(Numbered).encode(payload)


def test_a_struct_whose_field_has_the_wrong_type_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"payload is no Numbered: Expected `int`, got `str` - at `\$\.number`"):
        Codec(Numbered).encode(Numbered("one"))  # type: ignore[arg-type]


NO_JSON = [
    b"",
    b" ",
    b"nope",
    b"NaN",
    b"Infinity",
    b"1e400",
    b"01",
    b"1.",
    b"1 2",
    b"[1,]",
    b"{'a':1}",
    b'"\x01"',
    b'"\t"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\\ud800"',
    b'"\\u0000"',
    b'{"\\u0000":1}',
    b"\xef\xbb\xbf1",
    b"\x00",
    b"[" * 100_000,
]


@pytest.mark.parametrize("raw", NO_JSON, ids=lambda raw: repr(raw[:12]))
def test_bytes_that_are_no_json_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^payload") as refused:
        Codec(RawPayload).encode(RawPayload(raw))
    assert "payload" not in refused.value.problem


def test_raw_payload_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidInput, match="payload must be JSON as bytes, got dict"):
        Codec(RawPayload).encode({})  # type: ignore[arg-type]


@given(st.binary(max_size=40))
def test_decoding_fails_in_one_way_only(stored: bytes) -> None:
    for payload_type in (AsStruct, AsPydantic, AsTypedDict, dict):
        codec: Codec[Any] = Codec(payload_type)
        try:
            codec.decode(stored)
        except DecodeFailed:
            continue
        assert payload_type is dict


@pytest.mark.parametrize("payload_type", [complex, Callable[[], int], set[complex]], ids=str)
def test_a_type_that_cannot_be_a_payload_is_refused(payload_type: Any) -> None:
    try:
        codec: Codec[Any] = Codec(payload_type)
    except InvalidInput as refused:
        assert refused.field == "payload_type"  # noqa: PT017  # some types are only found out later
        return
    with pytest.raises(InvalidInput, match=r"^payload"):
        codec.encode(complex(1))


@pytest.mark.parametrize("version", [0, -1, 2**31, "1", 1.0, True, None])
def test_a_version_that_is_no_version_is_refused(version: Any) -> None:
    with pytest.raises(InvalidInput, match="schema_version of Odd must be an int of 1 or more"):
        Codec(type("Odd", (Struct,), {"schema_version": version, "__annotations__": {"schema_version": ClassVar[Any]}}))


def test_the_version_is_1_unless_the_type_says_otherwise() -> None:
    class Second(Struct):
        schema_version: ClassVar[int] = 2

    assert Codec(Numbered).schema_version == 1
    assert Codec(Second).schema_version == 2


# Shapes


def _digest(payload_type: Any) -> str:
    schema = Codec(payload_type).json_schema()
    assert schema is not None
    return fingerprint(schema)


def test_equal_shapes_have_one_fingerprint_whatever_they_are_made_of() -> None:
    assert len({_digest(each) for each in (AsStruct, AsDataclass, AsSlots, AsAttrs, AsTypedDict)}) == 1


def test_docs_names_of_classes_and_the_order_of_fields_are_no_shape() -> None:
    assert _digest(One) == _digest(Two)


class Inner(Struct):
    title: str


class One(Struct):
    """About one."""

    inner: Inner
    both: int | str
    others: list[Inner] = []


class Within(Struct):
    """About the inner one."""

    title: str


class Two(Struct, kw_only=True):
    others: list[Within] = []
    both: str | int
    inner: Within


def test_another_shape_has_another_fingerprint() -> None:
    inner = msgspec.defstruct("Inner", [("a", int)])
    other = msgspec.defstruct("Inner", [("a", str)])
    shapes = [
        msgspec.defstruct("T", [("x", int)]),
        msgspec.defstruct("T", [("y", int)]),
        msgspec.defstruct("T", [("x", str)]),
        msgspec.defstruct("T", [("x", int | None)]),
        msgspec.defstruct("T", [("x", int, 0)]),
        msgspec.defstruct("T", [("x", list[int])]),
        msgspec.defstruct("T", [("x", int), ("y", int)]),
        msgspec.defstruct("T", [("x", inner)]),
        msgspec.defstruct("T", [("x", other)]),
        msgspec.defstruct("T", [("title", int)]),
        msgspec.defstruct("T", [("description", int)]),
    ]
    assert len({_digest(shape) for shape in shapes}) == len(shapes)


def test_a_type_that_refers_to_itself_has_a_fingerprint() -> None:
    assert _digest(Tree) == _digest(Tree)


class Tree(Struct):
    branches: list[Tree]


@pytest.mark.parametrize("payload_type", [RawPayload, Any, object, dict, list])
def test_a_type_that_takes_any_json_has_no_shape(payload_type: Any) -> None:
    assert Codec(payload_type).json_schema() is None


# Called so that a type may be made on the spot.
LIST: Any = list
DICT: Any = dict


def _line(**fields: type) -> Any:
    return msgspec.defstruct("Line", list(fields.items()))


def _change(old: list[Any], new: list[Any]) -> str:
    schemas = [Codec(msgspec.defstruct("T", each)).json_schema() for each in (old, new)]
    assert schemas[0] is not None
    assert schemas[1] is not None
    return describe_change(*schemas)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([("a", int)], [("a", int), ("b", str)], "'b' was added"),
        ([("a", int), ("b", str)], [("a", int)], "'b' was removed"),
        ([("a", int)], [("a", str)], "'a' was integer, is string"),
        ([("a", int)], [("a", int | None)], "'a' was integer, is integer or null"),
        ([("a", int)], [("a", int, 0)], "'a' was integer, is optional integer"),
        ([("a", date)], [("a", str)], "'a' was date, is string"),
        ([("a", int), ("z", int)], [("b", int), ("z", str)], "'b' was added; 'a' was removed; 'z' was integer, is str"),
        ([("a", Numbered)], [("a", Painted)], "'a' was Numbered, is Painted"),
        ([("a", _line(b=int))], [("a", _line(b=str))], "'a.b' was integer, is string"),
        ([("a", LIST[_line(b=int)])], [("a", LIST[_line(b=int, c=int)])], "'a[].c' was added"),
        ([("a", DICT[str, _line(b=int, c=int)])], [("a", DICT[str, _line(c=int)])], "'a{}.b' was removed"),
        ([("a", _line(b=int) | None)], [("a", _line(b=int, c=int) | None)], "'a.c' was added"),
        ([], [("a", _line(b=int))], "'a' was added"),
    ],
)
def test_a_change_is_told_in_words(old: list[Any], new: list[Any], words: str) -> None:
    assert _change(old, new).startswith(words)


# Headers


@given(st.dictionaries(texts, texts, min_size=1, max_size=5))
def test_headers_come_back_as_they_were(headers: dict[str, str]) -> None:
    assert decode_headers(encode_options(headers=headers)) == headers


def test_no_headers_take_no_room() -> None:
    assert encode_options(headers=None) is encode_options(headers={}) is None
    assert decode_headers(None) == {}


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"a": 1}, "must map str to str, got"),
        ({1: "a"}, "must map str to str"),
        ({"a": None}, "must map str to str"),
        ({"a": "\x00"}, "must not contain the character NUL"),
        ({"\x00": "a"}, "must not contain the character NUL"),
        ({"a": "\ud800"}, "must not contain a lone surrogate"),
        ({"a": "x" * 16_384}, "must have at most 16384 bytes together, got 16392"),
        ("text", "must map str to str, got str"),
        ([("a", "b")], "must map str to str, got list"),
        (7, "must map str to str, got int"),
    ],
)
def test_headers_that_cannot_be_stored_are_refused(headers: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        encode_options(headers=headers)
    assert refused.value.field == "headers"
    assert refused.value.problem.startswith(problem)
