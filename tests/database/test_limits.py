"""Bad input is refused at the call with the field named: never half a batch, never an error of the database's."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, LiteralString

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json

from sqlstreams import AsyncClient, AsyncStream, Client, InvalidInput, Message, NotFound, RawPayload, Stream
from sqlstreams.codec import ASKS_NOTHING, decode_delivery
from sqlstreams.consume.ranges import asks_for_keys
from tests.database.databases import database_of_a_module
from tests.support import Note

ODD_KEYS: dict[str, Any] = {
    "nothing": "",
    "513 bytes": "k" * 513,
    "516 bytes": "🔑" * 129,
    "10 kB": "k" * 10_240,
    "NUL": "a\x00b",
    "a lone surrogate": "\ud800",
    "an int": 10**30,
    "bytes": b"k",
    "a Decimal": Decimal(1),
    "a time": datetime(2026, 1, 1, tzinfo=UTC),
}
ODD_PAYLOADS: dict[str, Any] = {
    "NaN": {"a": math.nan},
    "infinity": {"a": [math.inf]},
    "NUL": {"a": "\x00"},
    "a key with NUL": {"\x00": 1},
    "a lone surrogate": {"a": "\ud800"},
    "an object": {"a": object()},
    "too much": {"a": "x" * 1_048_576},
    "another type": "text",
    "none": None,
}
FINE_PAYLOADS: dict[str, Any] = {
    "empty": {},
    "a large int": {"a": 2**63 - 1},
    "a Decimal": {"a": Decimal("1.10")},
    "an aware time": {"a": datetime(2026, 1, 1, tzinfo=UTC)},
    "a naive time": {"a": datetime(2026, 1, 1)},  # noqa: DTZ001  # any JSON-able value will do
    "emoji": {"🔑": "🔒"},
    "a backslash": {"a": "\\u0000\\"},
    "quotes": {"a": "'\"$1%(a)s{}"},
    "all of it": {"a": "x" * (1_048_576 - 8)},
}


@pytest.fixture(scope="module")
def limits_url(server_url: str, template: str) -> Iterator[str]:
    """A database with the streams `limits` and `raw`, which this module only ever fails to write to."""
    for url in database_of_a_module(server_url, template, "limits"):
        with Client(url) as client:
            client.stream("limits", dict).register()
            client.stream("raw", RawPayload).register()
        yield url


@pytest.fixture
def stream(limits_url: str) -> Iterator[Stream[dict[str, Any]]]:
    with Client(limits_url) as client:
        yield client.stream("limits", dict)
        assert client.stream("limits", dict).read() == []


@pytest.mark.parametrize("option", ["key", "routing_key"])
@pytest.mark.parametrize("odd", ODD_KEYS)
def test_an_odd_key_is_refused(stream: Stream[dict[str, Any]], option: str, odd: str) -> None:
    options = {option: ODD_KEYS[odd]}
    with pytest.raises(InvalidInput) as refused:
        stream.producer().produce({}, **options)
    assert refused.value.field == option
    with pytest.raises(InvalidInput) as refused:
        stream.producer().produce_many([{}, Message({}, **options)])
    assert refused.value.field == f"messages[1].{option}"


@pytest.mark.parametrize("odd", ODD_PAYLOADS)
def test_an_odd_payload_is_refused(stream: Stream[dict[str, Any]], odd: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        stream.producer().produce(ODD_PAYLOADS[odd])
    assert refused.value.field.startswith("payload")
    with pytest.raises(InvalidInput) as refused:
        stream.producer().produce_many([{}, {}, ODD_PAYLOADS[odd]])
    assert refused.value.field.startswith("messages[2].payload")


@pytest.mark.parametrize(
    "headers", [{"a": "\x00"}, {"\ud800": ""}, {"a": "x" * 16_384}, {"a": 1}, {1: "a"}, ["a"], "a", 5], ids=ascii
)
def test_odd_headers_are_refused(stream: Stream[dict[str, Any]], headers: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        stream.producer().produce({}, headers=headers)
    assert refused.value.field == "headers"


async def test_the_async_client_refuses_the_same(limits_url: str) -> None:
    async with AsyncClient(limits_url) as client:
        stream: AsyncStream[dict[str, Any]] = client.stream("limits", dict)
        producer = stream.producer()
        odd = [producer.produce(payload) for payload in ODD_PAYLOADS.values()]
        odd += [producer.produce({}, key=key) for key in ODD_KEYS.values()]
        odd += [producer.produce({}, routing_key=key) for key in ODD_KEYS.values()]
        answers = await asyncio.gather(*odd, return_exceptions=True)
        assert all(isinstance(answer, InvalidInput) for answer in answers)
        with pytest.raises(InvalidInput):
            await producer.produce_many([{} for _ in range(999)] + [ODD_PAYLOADS["NUL"]])
        assert await stream.read() == []


@pytest.mark.parametrize("fine", FINE_PAYLOADS)
async def test_a_payload_within_the_limits_is_stored(database_url: str, fine: str) -> None:
    async with AsyncClient(database_url) as client:
        stream: AsyncStream[dict[str, Any]] = await client.stream("fine", dict).register()
        await stream.producer().produce(FINE_PAYLOADS[fine], key="🔑" * 128, routing_key="k" * 512)
        (stored,) = await stream.read()
    assert stored.payload == msgspec.json.encode(FINE_PAYLOADS[fine])
    assert (stored.key, stored.routing_key) == ("🔑" * 128, "k" * 512)


def test_max_payload_is_what_the_stream_says_now(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register(max_payload=20)
        assert len(msgspec.json.encode(Note("x" * 9))) == 20
        stream.producer().produce(Note("x" * 9))
        with pytest.raises(InvalidInput, match="payload must have at most 20 bytes as JSON, got 21"):
            stream.producer().produce(Note("x" * 10))
        stream.register(max_payload=30)
        stream.producer().produce(Note("x" * 10))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(st.data())
def test_whatever_raw_bytes_the_client_takes_the_server_takes(limits_url: str, data: st.DataObject) -> None:
    # One message that the server refused would take the whole shared commit with it.
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
        max_leaves=5,
    )
    text = json.dumps(data.draw(values), ensure_ascii=data.draw(st.booleans()))
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    if raw and data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with Client(limits_url) as client, psycopg.connect(limits_url) as connection:
        producer = client.stream("raw", RawPayload).producer()
        try:
            producer.produce(RawPayload(raw), connection=connection)
        except InvalidInput:
            return
        finally:
            connection.rollback()


NAMES: list[Any] = ["", "Upper", "with space", "a" * 101, "a\x00", "\ud800", "ä", "-a", None, 5]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_is_none_is_refused_wherever_one_is_given(limits_url: str, name: Any) -> None:
    with Client(limits_url) as client:
        stream = client.stream("limits", dict)
        calls: list[Callable[[Any], object]] = [
            client.stream,
            stream.consumer,
            stream.rename,
            stream.consumer("g").rename,
        ]
        for call in [*calls, client.list_consumers][: None if name is not None else len(calls)]:
            with pytest.raises(InvalidInput, match="must"):
                call(name)


@pytest.mark.parametrize("name", ["a", "0", "a" * 100, "a.b-c_d", "9..--__"])
async def test_a_name_of_the_pattern_is_taken_by_the_database_too(database_url: str, name: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream(name, Note).register()
        await stream.consumer(name).register()
        assert [info.name for info in await client.list_streams()] == [name]
        assert [group.name for group in await client.list_consumers(name)] == [name]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"start": -1}, "start"),
        ({"start": 2**63}, "start"),
        ({"start": datetime(2026, 1, 1)}, "start"),  # noqa: DTZ001  # that is what is wrong
        ({"start": "end"}, "start"),
        ({"limit": 0}, "limit"),
        ({"limit": 100_001}, "limit"),
        ({"limit": 1.0}, "limit"),
    ],
)
async def test_reading_out_of_range_is_refused(limits_url: str, options: dict[str, Any], field: str) -> None:
    with Client(limits_url) as client, pytest.raises(InvalidInput, match=f"^{field} must"):
        client.stream("limits", dict).read(**options)
    async with AsyncClient(limits_url) as aclient:
        with pytest.raises(InvalidInput, match=f"^{field} must"):
            await aclient.stream("limits", dict).read(**options)


@pytest.mark.parametrize("start", [2**63 - 1, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
async def test_a_position_at_the_very_end_is_no_trouble(database_url: str, start: Any) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce(Note("a"))
        assert len(await stream.read(start)) == (1 if start == datetime.min.replace(tzinfo=UTC) else 0)
        group = await stream.consumer("g").register(start=start)
        assert (await group.status()).holders == ()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 10_001}, "concurrency"),
        ({"concurrency": None}, "concurrency"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": 10_001}, "prefetch"),
        ({"grace": timedelta(-1)}, "grace"),
        ({"grace": 30}, "grace"),
        ({"grace": timedelta(days=2)}, "grace"),
    ],
)
async def test_consuming_out_of_range_is_refused(limits_url: str, options: dict[str, Any], field: str) -> None:
    async with AsyncClient(limits_url) as client:
        consumer = client.stream("limits", dict).consumer("nobody")
        with pytest.raises(InvalidInput, match=f"^{field} must"):
            await consumer.consume(print, **options)
        with pytest.raises(InvalidInput, match=r"^limit must"):
            await consumer.reclaims(limit=0)


# The same from SQL


def _produce(url: str, arguments: Mapping[str, Any]) -> int:
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    with psycopg.connect(url, autocommit=True) as connection:
        query: LiteralString = "select sqlstreams.produce(" + named + ")"
        row = connection.execute(query, arguments).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"payload": None}, "payload"),
        ({"payload": '{"a": "\\u0000"}'}, "payload"),
        ({"payload": '{"\\u0000": 1}'}, "payload"),
        ({"payload": '{"a": "\\ud800"}'}, "payload"),
        ({"payload": '{"a": "%s"}' % ("x" * 1_048_576)}, "payload"),
        ({"payload": '{"a": "\\\\u0000", "b": 1e400000}'}, "payload"),
        ({"payload": '{"a": [1e400]}'}, "payload"),
        ({"payload": '{"a": -17976931348623159E+292}'}, "payload"),
        ({"payload": "1" * 310 + ".5"}, "payload"),
        ({"payload": "1e999999"}, "payload"),
        ({"concurrency": "wild", "message_key": "k"}, "concurrency"),
        ({"concurrency": "ordered"}, "concurrency"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"timeout": timedelta(days=4000)}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_delays": 1_000_001}, "max_delays"),
        ({"retry_base": timedelta(-1)}, "retry_base"),
        ({"retry_exponent": 0.5}, "retry_exponent"),
        ({"retry_exponent": float("nan")}, "retry_exponent"),
        ({"retry_cap": timedelta(days=4000)}, "retry_cap"),
        ({"message_key": ""}, "message_key"),
        ({"message_key": "k" * 513}, "message_key"),
        ({"message_key": "🔑" * 129}, "message_key"),
        ({"routing_key": ""}, "routing_key"),
        ({"routing_key": "k" * 513}, "routing_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 513}, "idempotency_key"),
        ({"compaction_rank": 1}, "compaction_rank"),
        ({"headers": "[]"}, "headers"),
        ({"headers": '{"a": 1}'}, "headers"),
        ({"headers": '{"a": "%s"}' % ("x" * 16_384)}, "headers"),
        ({"headers": '{"a": "\\u0000"}'}, "headers"),
        ({"headers": '{"a": "\\ud800"}'}, "headers"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_sql_refuses_what_the_clients_refuse(limits_url: str, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        _produce(limits_url, {"stream": "limits", "payload": "{}"} | arguments)
    assert refused.value.sqlstate == "SS010"
    assert refused.value.diag.column_name == field
    with Client(limits_url) as client:
        assert client.stream("limits", dict).read() == []


@pytest.mark.parametrize("name", ["nobody", None, "", "with space"])
def test_sql_says_when_there_is_no_such_stream(limits_url: str, name: str | None) -> None:
    with pytest.raises(psycopg.Error) as refused:
        _produce(limits_url, {"stream": name, "payload": "{}"})
    assert refused.value.sqlstate == "SS012"


def test_sql_stores_the_options_of_a_delivery_as_the_clients_do(database_url: str) -> None:
    options: dict[str, Any] = {
        "headers": {"trace": "1"},
        "concurrency": "ordered",
        "timeout": timedelta(milliseconds=1_500),
        "max_retries": 3,
        "max_delays": 4,
        "retry_base": timedelta(seconds=2),
        "retry_exponent": 1.5,
        "retry_cap": timedelta(days=2),
    }
    with Client(database_url) as client:
        client.stream("limits", RawPayload).register()
        client.stream("limits", RawPayload).producer().produce(RawPayload(b"1"), key="k", **options)
    in_sql = options | {"headers": '{"trace": "1"}', "message_key": "k"}
    _produce(database_url, {"stream": "limits", "payload": "1"} | in_sql)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select options::text from sqlstreams.message_log_1 order by id").fetchall()
    by_client, by_sql = (text.encode() for (text,) in rows)
    assert decode_delivery(by_sql) == decode_delivery(by_client) != ASKS_NOTHING
    assert asks_for_keys((0, 0, 0, 0, by_sql))


def test_sql_takes_what_the_clients_take(database_url: str) -> None:
    payloads = [
        '{"a": "1e400", "b": 1e99, "c": 0e400}',
        '{"a": "\\\\u0000"}',
        '{"a": "\\ud83d\\udd11"}',
        "[]",
        '{"a": "%s"}' % ("x" * 1_048_565),
    ]
    with Client(database_url) as client:
        stream = client.stream("limits", RawPayload).register()
        for payload in payloads:
            _produce(database_url, {"stream": "limits", "payload": payload, "message_key": "🔑" * 128})
        _produce(database_url, {"stream": "limits", "payload": Json({}), "headers": '{"a": "b"}'})
        assert [message.payload.decode() for message in stream.read()] == [*payloads, "{}"]
        assert stream.read(5)[0].headers == {"a": "b"}


def test_an_absent_stream_is_not_found_whatever_is_asked(limits_url: str) -> None:
    with Client(limits_url, allow_destroy=True) as client:
        absent = client.stream("absent", Note)
        group = client.stream("limits", dict).consumer("absent")
        for call in (
            absent.status,
            absent.destroy,
            absent.read,
            lambda: absent.rename("other"),
            lambda: next(absent.tail()),
            absent.producer().register,
            absent.consumer("g").register,
            absent.consumer("g").status,
            lambda: client.list_consumers("absent"),
            group.status,
            group.destroy,
            group.instances,
            group.reclaims,
            lambda: group.rename("other"),
            lambda: group.consume(print, signals=False),
        ):
            with pytest.raises(NotFound, match=r"there is no (stream|consumer group) named 'absent"):
                call()
        assert absent.get() is None
        assert group.get() is None
        assert absent.consumer("g").get() is None
