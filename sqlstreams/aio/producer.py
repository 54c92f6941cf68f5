"""Handles on producers, for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from sqlstreams import acts
from sqlstreams.aio.log import Log
from sqlstreams.model import (
    Message,
    Receipt,
)
from sqlstreams.options import (
    DeliveryOptions,
)
from sqlstreams.produce.batch import Encoder, PayloadTooLarge

if TYPE_CHECKING:
    from sqlstreams.aio.stream import AsyncStream

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")


class AsyncProducer(Generic[PayloadT]):
    """Appends messages to a stream."""

    def __init__(self, stream: AsyncStream[PayloadT], defaults: DeliveryOptions, *, delay: timedelta | None) -> None:
        self._stream = stream
        self._client = stream._client
        self._encoder = Encoder(stream._codec, defaults=defaults, delay=delay)

    async def register(self) -> Self:
        """Check that the stream exists and is recorded with this payload's shape; return this handle.

        Raises `NotFound` without the stream and `PayloadShapeChanged` for another shape.
        """
        info = await self._client._run(lambda: acts.get_stream(self._stream._schema, name=self._stream.name))
        await self._client._run(lambda: acts.record_shape(self._stream._schema, info, self._stream._codec))
        await self._log()
        return self

    async def produce(
        self,
        payload: PayloadT,
        *,
        key: str | None = None,
        routing_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: str | None = None,
        compaction_rank: int | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        idempotency_key: str | None = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109  # of the deliveries, not of this call
        max_retries: int | None = None,
        max_delays: int | None = None,
        retry_base: timedelta | None = None,
        retry_exponent: float | None = None,
        retry_cap: timedelta | None = None,
        connection: Any = None,
    ) -> Receipt:
        """Append one message, durably when this returns. Calls that run at the same time share commits.

        With `connection=` the message joins that connection's transaction instead and is durable when it commits;
        consumers then find it by polling, or by the next wake-up. It is a connection of psycopg, or a Session or
        Connection of SQLAlchemy, or a connection of Django, that works with psycopg. A `compaction_rank` lets the
        message supersede earlier ones of its key (see `Message`); others who produce one of that key wait for the
        commit. Of messages with the same `idempotency_key` only the first is appended, until the `idempotency_ttl` of
        the stream is over. The receipt for another is a duplicate and has the id of the first, also when the log does
        not hold that any more; while the first is not committed, others with its key wait. With `deliver_at`, an aware
        datetime, or `delay` the message is delivered then and not before, by the server's clock; a time that has passed
        means at once. Raises `IdempotencyConflict` when its payload is not that of the first, `InvalidInput` for what
        cannot be stored, `NotFound` without the stream, `DatabaseUnavailable` when nothing was written,
        `ProduceUncertain` when that could not be learnt.
        """
        message = Message(
            payload,
            key=key,
            routing_key=routing_key,
            headers=headers,
            concurrency=concurrency,
            compaction_rank=compaction_rank,
            deliver_at=deliver_at,
            delay=delay,
            idempotency_key=idempotency_key,
            timeout=timeout,
            max_retries=max_retries,
            max_delays=max_delays,
            retry_base=retry_base,
            retry_exponent=retry_exponent,
            retry_cap=retry_cap,
        )
        return await self._allowing(partial(self._produce, message, connection))

    async def _produce(self, message: Message[PayloadT], connection: Any, log: Log) -> Receipt:
        encoded = self._encoder.one(message, max_payload=log.info.max_payload)
        if connection is not None:
            return (await log.append_within(connection, [encoded]))[0]
        return await log.commits.produce(encoded)

    async def produce_many(
        self,
        messages: Iterable[PayloadT | Message[PayloadT]],
        *,
        connection: Any = None,
    ) -> list[Receipt]:
        """Append all messages in one transaction or none; the receipts are in the order of the messages.

        Each item is a payload, or a `Message` with options of its own. See `produce` for `connection` and errors.
        """
        items = list(messages)  # first of all, so that no transaction is open while a generator of the caller's runs
        if not items:
            return []
        return await self._allowing(partial(self._produce_many, items, connection))

    async def _produce_many(
        self,
        items: Sequence[PayloadT | Message[PayloadT]],
        connection: Any,
        log: Log,
    ) -> list[Receipt]:
        encoded = self._encoder.each(items, max_payload=log.info.max_payload)
        if connection is not None:
            return await log.append_within(connection, list(encoded))
        batch = log.batch(encoded, size=len(items), keyed=self._encoder.have_idempotency_keys(items))
        return (await log.append(batch, asks_for_keys=self._encoder.ask_for_keys(items))).receipts

    async def _allowing(self, produce: Callable[[Log], Awaitable[ResultT]]) -> ResultT:
        # Another process may have declared a larger max_payload since we asked.
        log = await self._log()
        try:
            return await produce(log)
        except PayloadTooLarge:
            if not await log.reread():
                raise
            return await produce(log)

    async def _log(self) -> Log:
        return await self._client._log(self._stream.name, self._stream._codec.schema_version)
