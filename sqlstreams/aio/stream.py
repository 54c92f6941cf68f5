"""Handles on streams, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from sqlstreams import acts
from sqlstreams.aio.consumer import AsyncConsumer
from sqlstreams.aio.producer import AsyncProducer
from sqlstreams.codec import Codec
from sqlstreams.consume.tail import Place, read_on
from sqlstreams.manager.retention import aexpire_batch
from sqlstreams.model import (
    Cancellation,
    Expiry,
    StoredMessage,
    StreamInfo,
    StreamStatus,
    StreamVersion,
    WaitingMessage,
)
from sqlstreams.names import check_name, check_required_key
from sqlstreams.options import (
    MAX_ID,
    DeliveryOptions,
    Start,
    StreamOptions,
    check_age,
    check_integer,
    check_start,
)
from sqlstreams.statements import Family
from sqlstreams.wake import RETRIES_DUE

if TYPE_CHECKING:
    from sqlstreams.aio.client import AsyncClient

PayloadT = TypeVar("PayloadT")

_TAIL_PAUSES = (0.02, 0.05, 0.1, 0.25, 0.5)


class AsyncStream(Generic[PayloadT]):
    """A handle on a stream of one payload type."""

    def __init__(self, client: AsyncClient, name: str, payload_type: type[PayloadT]) -> None:
        self.name = check_name("stream", name)
        self.payload_type = payload_type
        self._client = client
        self._schema = client._address.schema
        self._codec = Codec(payload_type)

    async def register(
        self,
        *,
        max_payload: int = 1_048_576,
        partition_rows: int = 1_000_000,
        retention: timedelta | None = None,
        keep_unread: bool = True,
        compact_after: timedelta | None = None,
        idempotency_ttl: timedelta = timedelta(hours=24),
    ) -> Self:
        """Declare the stream and the shape of its payload; return this handle.

        The newest declaration wins, and the same one again writes nothing. `max_payload` is in bytes of JSON,
        `partition_rows` the ids that one partition of the log spans. Messages older than `retention` are removed, if
        it is given; with `keep_unread` not before every group has done them or they are dead there, see `expire`.
        `compact_after` is the age at which `compact` removes superseded messages (None: it has to be told one),
        `idempotency_ttl` how long the idempotency keys of messages to come are remembered. A schema without an
        installation gets one. Raises `PayloadShapeChanged` when this schema_version is on record with another shape.
        """
        options = StreamOptions(
            max_payload=max_payload,
            partition_rows=partition_rows,
            retention=retention,
            keep_unread=keep_unread,
            compact_after=compact_after,
            idempotency_ttl=idempotency_ttl,
        )
        await self._client._install_if_absent()
        await self._client._run(
            lambda: acts.register_stream(self._schema, name=self.name, options=options, codec=self._codec)
        )
        self._client._logs.pop((self.name, self._codec.schema_version), None)
        return self

    async def get(self) -> StreamInfo | None:
        """Return the stream as it is registered, or None."""
        return await self._client._find(lambda: acts.get_stream(self._schema, name=self.name))

    async def status(self) -> StreamStatus:
        """Return what the log holds."""
        return await self._client._run(lambda: acts.stream_status(self._schema, name=self.name))

    async def preview_expire(self) -> Expiry:
        """Return what `expire` would remove now, and what it would leave that is old enough. Changes nothing."""
        return await self._client._run(lambda: acts.preview_expiry(self._schema, name=self.name))

    async def expire(self) -> Expiry:
        """Remove the messages that the stream does not keep any more; return what was removed and what was held back.

        Full partitions are dropped, of the one that is still written the old messages are deleted. The exception rows
        and the history of these messages go as well, dead letters too. With `keep_unread` everything stays that a group
        has not done; without it a group goes on behind what it lost, which `positions` says and `lost` counts. Nobody
        who produces waits; a partition that a long transaction uses is left to a later call.
        """
        done: Expiry | None = None
        again = True
        while again:
            batch = await aexpire_batch(self._client._database, self.name)
            done = batch.expiry if done is None else batch.expiry.behind(done)
            again = batch.again
        assert done is not None
        return done

    async def versions(self) -> list[StreamVersion]:
        """Return the schema versions of the stream, and which groups still have messages of them to read.

        Reads the log from the slowest group's committed cursor on.
        """
        return await self._client._run(lambda: acts.list_versions(self._schema, name=self.name))

    async def rename(self, new_name: str) -> AsyncStream[PayloadT]:
        """Give the stream another name and return the handle for it. Its messages and groups stay."""
        check_name("new_name", new_name)
        await self._client._run(lambda: acts.rename_stream(self._schema, name=self.name, new_name=new_name))
        return AsyncStream(self._client, new_name, self.payload_type)

    async def destroy(self) -> None:
        """Remove the stream with its messages and groups, for ever. Needs a client with `allow_destroy=True`."""
        allowed = self._client._allow_destroy
        await self._client._run(lambda: acts.destroy_stream(self._schema, name=self.name, allowed=allowed))
        self._client._logs.pop((self.name, self._codec.schema_version), None)

    async def read(self, start: Start = "beginning", *, limit: int = 100) -> list[StoredMessage]:
        """Return up to `limit` visible messages behind a position, without a group: for tools and tests."""
        check_start("start", start)
        check_integer("limit", limit, low=1, high=100_000)
        position = await self._position(start)
        return await self._client._run(
            lambda: acts.read_messages(self._schema, name=self.name, from_id=position + 1, limit=limit)
        )

    async def last(self, *, limit: int = 10) -> list[StoredMessage]:
        """Return the last visible messages, at most `limit`, in the order of their ids."""
        check_integer("limit", limit, low=1, high=100_000)
        return await self._client._run(lambda: acts.read_last_messages(self._schema, name=self.name, limit=limit))

    async def head(self, key: str) -> StoredMessage | None:
        """Return the message that counts of a key, of those produced with a `compaction_rank`; None without any."""
        check_required_key("key", key)
        return await self._client._run(lambda: acts.read_head(self._schema, name=self.name, key=key))

    async def history(self, key: str, *, limit: int = 100) -> list[StoredMessage]:
        """Return the messages of a key that were produced with a `compaction_rank` and are kept, the newest first."""
        check_required_key("key", key)
        check_integer("limit", limit, low=1, high=100_000)
        return await self._client._run(lambda: acts.read_history(self._schema, name=self.name, key=key, limit=limit))

    async def waiting(self, *, limit: int = 100) -> list[WaitingMessage]:
        """Return the messages produced for later that wait in the groups of the stream, the first due first.

        One that waits in several groups is there for each; one that no group has claimed yet is not.
        """
        check_integer("limit", limit, low=1, high=100_000)
        return await self._client._run(
            lambda: acts.list_waiting(self._schema, stream=self.name, name=None, limit=limit)
        )

    async def cancel(self, message_id: int) -> list[Cancellation]:
        """Have a message that was produced with `deliver_at` or `delay` not be delivered; return what that came to.

        For each group that takes it: where no process has it yet it never gets one, also after a failure; a delivery
        under way goes on. The message stays in the log, and groups registered later are not given it. Calling again
        changes nothing. Raises `NotFound` without the message, `InvalidInput` for one that was not produced for later.
        """
        check_integer("message_id", message_id, low=1, high=MAX_ID)
        cancelled = await self._client._run(
            lambda: acts.cancel_message(self._schema, name=self.name, message_id=message_id)
        )
        if cancelled.kept_keys:
            await self._client._run(lambda: acts.free_cancelled(cancelled))
            self._client._notifier.notify(RETRIES_DUE)
        return cancelled.answer

    async def compact(self, *, older_than: timedelta | None = None) -> int:
        """Remove superseded messages from the log that every group is done with; return how many.

        Those that were produced `older_than` ago or earlier, or without it the stream's `compact_after`. Heads of keys
        stay, and so does what waits, runs or is dead in any group. Works in small transactions.
        """
        check_age("older_than", older_than)
        removed, step = 0, acts.BEFORE_ALL
        while step.is_full:
            after = step
            step = await self._client._run(
                lambda after=after: acts.compact(self._schema, name=self.name, older_than=older_than, after=after)  # type: ignore[misc]  # mypy infers no default of a lambda
            )
            removed += step.removed
        return removed

    async def tail(self, start: Start = "head") -> AsyncIterator[StoredMessage]:
        """Yield messages behind a position as they come, in order and none left out, until the caller stops."""
        check_start("start", start)
        info = await self._client._run(lambda: acts.get_stream(self._schema, name=self.name))
        place, idle = Place(read=await self._position(start)), 0
        family = Family(self._schema, info.id)
        while True:
            here = place
            messages, place = await self._client._run(lambda here=here: read_on(family, here, limit=100))  # type: ignore[misc]  # mypy infers no default of a lambda
            for message in messages:
                yield message
            idle = 0 if messages or place.settled != here.settled else idle + 1
            if not messages:
                await asyncio.sleep(_TAIL_PAUSES[min(idle, len(_TAIL_PAUSES) - 1)])

    def producer(
        self,
        *,
        concurrency: str | None = None,
        timeout: timedelta | None = None,
        max_retries: int | None = None,
        max_delays: int | None = None,
        retry_base: timedelta | None = None,
        retry_exponent: float | None = None,
        retry_cap: timedelta | None = None,
        delay: timedelta | None = None,
    ) -> AsyncProducer[PayloadT]:
        """Return a handle to produce with, and what its messages ask for unless they say otherwise. No I/O happens.

        The options are those of `Message`; `concurrency` goes for messages with a key.
        """
        defaults = DeliveryOptions(
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            max_delays=max_delays,
            retry_base=retry_base,
            retry_exponent=retry_exponent,
            retry_cap=retry_cap,
        )
        return AsyncProducer(self, defaults, delay=delay)

    def consumer(self, group: str) -> AsyncConsumer[PayloadT]:
        """Return a handle on a consumer group of this stream. No I/O happens."""
        return AsyncConsumer(self, group)

    async def _position(self, start: Start) -> int:
        return await self._client._run(lambda: acts.find_position(self._schema, name=self.name, start=start))
