"""JSON without a type of its own beside the recorded shape of a stream."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sqlstreams import InvalidInput
from sqlstreams.codec import Codec, check_shape


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(Struct, frozen=True):
    sku: str
    quantity: int = 1


class Order(Struct, frozen=True):
    number: int
    lines: list[Line]
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    note: str | None = None
    rates: dict[str, float] = {}
    pair: tuple[int, str] | None = None
    price: Decimal | None = None


SHAPE = Codec(Order).json_schema() or {}


def check(value: Any) -> None:
    check_shape(SHAPE, msgspec.json.encode(value))


def test_what_fits_is_let_through() -> None:
    check({"number": 1, "lines": []})
    check({"number": 1.0, "lines": [{"sku": "x"}], "note": None, "rates": {"a": 1, "b": 0.5}, "pair": [1, "x"]})
    check({"number": 1, "lines": [], "colour": "blue", "kind": "b", "unknown": {"to": "us"}})
    check({"number": 1, "lines": [], "price": 1.25})
    check({"number": 1, "lines": [], "price": "1.25"})


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "payload"),
        ({}, "payload.number"),
        ({"number": 1}, "payload.lines"),
        ({"number": "1", "lines": []}, "payload.number"),
        ({"number": True, "lines": []}, "payload.number"),
        ({"number": 1.5, "lines": []}, "payload.number"),
        ({"number": 1, "lines": {}}, "payload.lines"),
        ({"number": 1, "lines": [{"sku": "x"}, {"quantity": 1}]}, "payload.lines[1].sku"),
        ({"number": 1, "lines": [], "colour": "green"}, "payload.colour"),
        ({"number": 1, "lines": [], "kind": "c"}, "payload.kind"),
        ({"number": 1, "lines": [], "note": 5}, "payload.note"),
        ({"number": 1, "lines": [], "rates": {"a": "x"}}, "payload.rates.a"),
        ({"number": 1, "lines": [], "pair": [1, 2]}, "payload.pair[1]"),
    ],
)
def test_what_does_not_is_refused_with_its_place(value: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(value)
    assert refused.value.field == field


orders = st.builds(
    Order,
    number=st.integers(-(2**53), 2**53),
    lines=st.lists(st.builds(Line, sku=st.text(max_size=5), quantity=st.integers(0, 9)), max_size=3),
    colour=st.sampled_from(Colour),
    note=st.none() | st.text(max_size=5),
    rates=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    pair=st.none() | st.tuples(st.integers(0, 9), st.text(max_size=3)),
)


@settings(max_examples=100, deadline=None)
@given(orders)
def test_nothing_that_the_type_writes_is_refused(order: Order) -> None:
    check(order)
