"""The trace context of a producer reaches the handlers of its messages, where OpenTelemetry is in use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

import sqlstreams
from sqlstreams import AsyncClient, Client, Message
from sqlstreams.codec import decode_headers, encode_options
from tests.support import Note, consuming, eventually

TRACER = TracerProvider().get_tracer("tests")


def _current() -> SpanContext:
    return trace.get_current_span().get_span_context()


def _traceparent(span: trace.Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@pytest.mark.parametrize("kind", ["async", "thread", "transaction"])
@pytest.mark.parametrize("within", [None, timedelta(seconds=10)])
async def test_a_span_of_a_handler_is_a_child_of_the_one_that_produced(
    database_url: str, kind: str, within: timedelta | None
) -> None:
    seen: list[tuple[str, SpanContext, str | None]] = []

    def see(note: Note) -> None:
        with TRACER.start_as_current_span("handle"):
            seen.append((note.text, _current(), sqlstreams.meta().headers.get("traceparent")))

    async def see_later(note: Note, *_: object) -> None:
        see(note)

    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(timeout=within)
        with TRACER.start_as_current_span("produce") as span:
            await stream.producer().produce(Note("traced"))
        await stream.producer().produce(Note("plain"))
        handler, options = (see, {}) if kind == "thread" else (see_later, {"transactional": kind == "transaction"})
        async with consuming(consumer, handler, concurrency=1, **options):
            await eventually(lambda: len(seen) == 2)
            assert not _current().is_valid
    (traced, child, header), (plain, other, none) = seen
    assert (traced, header, plain, none) == ("traced", _traceparent(span), "plain", None)
    assert child.trace_id == span.get_span_context().trace_id
    assert child.span_id != span.get_span_context().span_id
    assert other.trace_id != child.trace_id


async def test_a_retry_has_the_trace_of_the_first_delivery(database_url: str) -> None:
    seen: list[int] = []

    async def handle(_: Note) -> None:
        seen.append(_current().trace_id)
        if len(seen) == 1:
            raise ValueError

    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(retry_base=timedelta(milliseconds=10))
        with TRACER.start_as_current_span("produce") as span:
            await stream.producer().produce(Note("a"))
        async with consuming(consumer, handle):
            await eventually(lambda: len(seen) == 2)
    assert seen == [span.get_span_context().trace_id] * 2


async def test_a_batch_is_of_no_trace_and_each_message_tells_its_own(database_url: str) -> None:
    seen: list[str | None] = []

    async def handle(notes: Sequence[Note]) -> None:
        assert not _current().is_valid
        seen.extend(meta.headers.get("traceparent") for meta in sqlstreams.metas())

    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register()
        with TRACER.start_as_current_span("produce") as span:
            await stream.producer().produce_many([Note("a"), Message(Note("b"), headers={"x": "y"})])
        async with consuming(consumer, handle, batch=10):
            await eventually(lambda: len(seen) == 2)
    assert seen == [_traceparent(span)] * 2


def test_the_state_of_a_trace_travels_along(database_url: str) -> None:
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("vendor", "x")]))
    with Client(database_url) as client, trace.use_span(trace.NonRecordingSpan(context)):
        stream = client.stream("notes", Note).register()
        stream.producer(max_retries=3).produce_many([Note("a")])
        (message,) = stream.read()
    assert message.headers["tracestate"] == "vendor=x"


@pytest.mark.parametrize(
    "headers", [{"traceparent": "mine"}, {"Traceparent": "mine"}, {"a": "x" * 16_376}, {"a": "x" * 16_320}]
)
def test_headers_of_the_caller_come_first(headers: dict[str, str]) -> None:
    encoded = encode_options(headers=headers, trace={"traceparent": "00-" + "1" * 52})
    assert decode_headers(encoded) == headers


def test_without_a_span_a_message_has_no_headers(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        stream.producer().produce_many([Note("a")])
        stream.producer().produce(Note("a"))
        assert [message.headers for message in stream.read()] == [{}, {}]


def test_a_process_that_does_not_use_opentelemetry_never_imports_it(database_url: str) -> None:
    script = f"""
import sys, sqlstreams
with sqlstreams.Client({database_url!r}) as client:
    stream = client.stream("notes").register()
    stream.producer().produce(sqlstreams.RawPayload(b"1"), headers={{"traceparent": "00-" + "1" * 32}})
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
