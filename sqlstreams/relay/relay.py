"""Publishing a stream's messages to a broker, as one more consumer group of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlstreams.aio import AsyncClient, AsyncConsumer
from sqlstreams.consume.context import meta
from sqlstreams.consume.stopping import Stop, stopped_by_signals
from sqlstreams.errors import BrokerUnavailable, DestinationMissing, InvalidInput, NotFound, PublishRefused
from sqlstreams.model import Meta, RawPayload
from sqlstreams.options import DeliveryLimits, Start, check_choice, check_duration, check_integer
from sqlstreams.relay.brokers import open_to
from sqlstreams.relay.bundles import Bundles
from sqlstreams.relay.gate import Gate
from sqlstreams.relay.publisher import Outcome, Outgoing
from sqlstreams.relay.stats import RelayStats

ORDERS: Final = ("key", "none")
# Messages may ask for a timeout of their own. A broker that is away must not make failures of them.
_LIMITS: Final = DeliveryLimits(timeout=(timedelta(days=3650), None))
_OWN_HEADERS: Final = "sqlstreams-"


class Relay:
    """Publishes a stream to a broker. `stats` counts what this handle's `run()` has done.

    `to` says where: the broker, and a template for the subject, queue, stream or topic (docs/relay.md). `group` is the
    consumer group that it works as, `relay-` and the broker's name unless given. With `order="key"` messages of one key
    are published in their order, also when one has to wait for a retry; with "none" nothing waits for another.
    A message counts as handled when the broker has confirmed it; one without an answer after `confirm_within` is
    published again. Raises `InvalidInput` for a URL that says nothing, `ExtraMissing` without the broker's library.
    """

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        to: str,
        *,
        group: str | None = None,
        order: str = "key",
        confirm_within: timedelta = timedelta(seconds=10),
    ) -> None:
        self.stats = RelayStats()
        self._order = check_choice("order", order, ORDERS)
        limit = check_duration(
            "confirm_within", confirm_within, low=timedelta(milliseconds=100), high=timedelta(minutes=10)
        )
        self._destination, self._publisher = open_to(to, confirm_within=limit.total_seconds())
        self._stream = client.stream(stream)
        self._consumer = self._stream.consumer(group or f"relay-{self._destination.broker}")
        self._gate = Gate(self._publisher, name=self._destination.shown, stats=self.stats)
        self._bundles = Bundles(self._publisher)
        self._identity = ""

    @property
    def shown(self) -> str:
        """Where it publishes to, without what is secret in the URL."""
        return self._destination.shown

    @property
    def consumer(self) -> AsyncConsumer[RawPayload]:
        """The consumer group that it works as."""
        return self._consumer

    async def run(
        self,
        *,
        start: Start = "beginning",
        bindings: Sequence[str] | None = None,
        concurrency: int = 500,
        prefetch: int | None = None,
        grace: timedelta = timedelta(seconds=10),
        signals: bool = True,
    ) -> None:
        """Publish messages until cancelled, or until SIGTERM or SIGINT.

        Declares the group when it is absent, with `start` and `bindings` as `register()` of a group takes them; a group
        that is there keeps its settings. Up to `concurrency` messages are on their way at a time, and no more are
        claimed than that asks for: a slow broker slows the claims. While the broker is away messages wait, without a
        failure being counted. A signal waits up to `grace` for the confirms of what is on its way, unless the broker is
        away. Raises `NotFound` without the stream, and `InvalidInput` when the group is there and not ordered although
        `order` is "key".
        """
        # Before the group is registered: what is refused changes nothing.
        check_integer("concurrency", concurrency, low=1, high=10_000)
        check_integer("prefetch", 1 if prefetch is None else prefetch, low=1, high=10_000)
        check_duration("grace", grace, low=timedelta(0), high=timedelta(days=1))
        self._identity = await self._prepare(start, bindings)
        stop = Stop()
        with stopped_by_signals(stop) if signals else nullcontext():
            try:
                await _first_of(
                    self._consumer.consume(
                        self._publish, concurrency=concurrency, prefetch=prefetch, grace=grace, signals=signals
                    ),
                    self._gate.keep_open(),
                    self._left_behind(stop),
                )
            finally:
                await self._bundles.close()
                await self._publisher.close()

    async def _prepare(self, start: Start, bindings: Sequence[str] | None) -> str:
        info = await self._stream.get()
        if info is None:
            raise NotFound("stream", self._stream.name)
        group = await self._consumer.get()
        if group is None:
            concurrency = "ordered" if self._order == "key" else "parallel"
            await self._consumer.register(start=start, bindings=bindings, concurrency=concurrency, limits=_LIMITS)
        elif self._order == "key" and group.concurrency != "ordered":
            raise InvalidInput(
                "order",
                f'is "key", and the group {group.name!r} is registered as {group.concurrency}: register it as ordered, '
                'or choose "none"',
            )
        # Streams of different installations may have the same name and id; they were not registered at the same moment.
        return f"{_microseconds(info.created_at):x}-{info.id}"

    async def _left_behind(self, stop: Stop) -> None:
        """Return when we were asked to stop and the broker is away: its answers would be waited for in vain."""
        await stop.asked.wait()
        await self._gate.is_closed.wait()

    async def _publish(self, payload: RawPayload) -> None:
        message = self._outgoing(payload, meta())
        while True:
            term = await self._gate.passed()
            outcome = await self._bundles.publish(message)
            if outcome is None:
                self.stats.published += 1
                self._gate.worked()
                return
            if isinstance(outcome, PublishRefused) and not self._concerns_all(outcome):
                self.stats.refused += 1
                raise outcome.with_traceback(None)  # several messages may share it
            self.stats.repeated += isinstance(outcome, BrokerUnavailable)
            self._gate.failed(term, outcome)

    def _concerns_all(self, outcome: Outcome) -> bool:
        return isinstance(outcome, DestinationMissing) and not self._destination.template.varies

    def _outgoing(self, payload: RawPayload, about: Meta) -> Outgoing:
        version = str(about.schema_version)
        # The time is in it for a database that was set back to an older state, and hands out ids a second time.
        message_id = f"{self._identity}-{about.id}-{_microseconds(about.created_at):x}"
        headers = {name: value for name, value in about.headers.items() if not name.lower().startswith(_OWN_HEADERS)}
        told = {
            "id": message_id,
            "stream": about.stream,
            "key": about.key,
            "routing-key": about.routing_key,
            "schema-version": version,
            "created-at": _in_utc(about.created_at),
            "scheduled-at": None if about.scheduled_at is None else _in_utc(about.scheduled_at),
        }
        headers |= {_OWN_HEADERS + name: value for name, value in told.items() if value is not None}
        values = {"stream": about.stream, "key": about.key, "routing_key": about.routing_key, "schema_version": version}
        return Outgoing(
            message_id=message_id,
            target=self._destination.template.fill(values),
            payload=payload,
            key=about.key,
            headers=headers,
            created_at=about.created_at,
        )


def _in_utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def _microseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all, until the first has ended; cancel the others, and raise what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
