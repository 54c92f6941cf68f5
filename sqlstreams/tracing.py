"""The trace context of messages (W3C traceparent), where the process uses OpenTelemetry: from producer to handler.

Nothing is imported before the process itself has imported OpenTelemetry: before that there is no span to speak of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import msgspec

from sqlstreams.codec import decode_headers

_NOTHING: Final[Mapping[str, str]] = {}
_AS_IT_IS: Final = nullcontext()


def current_trace() -> Mapping[str, str]:
    """Return the headers that name the current span; none without a valid one."""
    if "opentelemetry.trace" not in sys.modules:
        return _NOTHING
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


def trace_of(options: bytes | None) -> AbstractContextManager[None]:
    """Return what makes the span that produced a message the current one, by its stored options."""
    if options is None or b'"traceparent":' not in options or "opentelemetry.trace" not in sys.modules:
        return _AS_IT_IS
    try:
        return _attached(decode_headers(options))
    except msgspec.DecodeError:  # none that this library wrote
        return _AS_IT_IS


@contextmanager
def _attached(headers: Mapping[str, str]) -> Iterator[None]:
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        context.detach(token)
