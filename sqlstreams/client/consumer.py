"""Handles on consumer groups, blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from sqlstreams import acts
from sqlstreams.consume.lanes import Handler
from sqlstreams.consume.reading import Upcast
from sqlstreams.model import (
    BindingPreview,
    BlockedKey,
    ConsumerStats,
    DeadLetter,
    DeadLetterDetail,
    DeliveryRecord,
    GroupBindings,
    GroupInfo,
    GroupStatus,
    Instance,
    PositionChange,
    Reclaim,
    Redriven,
    Rewind,
    Skip,
    UnreadVersion,
    WaitingMessage,
)
from sqlstreams.names import check_name
from sqlstreams.options import (
    MAX_ID,
    DeadFilter,
    DeliveryLimits,
    GroupOptions,
    Start,
    check_integer,
    check_number,
    check_reason,
    check_start,
    select_dead,
)
from sqlstreams.routing import check_bindings
from sqlstreams.wake import RETRIES_DUE

if TYPE_CHECKING:
    from sqlstreams.client.stream import Stream

PayloadT = TypeVar("PayloadT")


class Consumer(Generic[PayloadT]):
    """A handle on a consumer group. `stats` counts what this handle's `consume()` has done.

    `binding_outcome` says what became of the bindings when this handle registered: "installed" (claims go by them from
    then on), "joined" (they were in force), or "waiting" (others are in force and held by processes that consume).
    """

    def __init__(self, stream: Stream[PayloadT], group: str) -> None:
        self.name = check_name("group", group)
        self.stats = ConsumerStats()
        self.binding_outcome: str | None = None
        self._declared: tuple[str, ...] | None = None
        self._stream = stream
        self._client = stream._client
        self._schema = stream._schema

    def register(
        self,
        *,
        start: Start = "beginning",
        timeout: timedelta | None = None,
        max_retries: int = 10,
        max_delays: int | None = None,
        retry_base: timedelta = timedelta(seconds=1),
        retry_exponent: float = 2.0,
        retry_cap: timedelta = timedelta(minutes=10),
        concurrency: str = "parallel",
        limits: DeliveryLimits | None = None,
        delivery_log: str = "failures",
        bindings: Sequence[str] | None = None,
    ) -> Self:
        """Declare the group; return this handle. The newest declaration wins, the same again writes nothing.

        `start` counts only when the group is new: "beginning", "head", behind an id, or at an aware datetime. A failed
        message is delivered again up to `max_retries` times, after `retry_base × retry_exponent^(n-1)` but at most
        `retry_cap`, of which a random half is taken off. `concurrency` says what messages of one key may do: run in
        "parallel", one at a time ("exclusive"), or in order as well ("ordered"), where a message waits until the
        earlier ones of its key are done or dead. `delivery_log` keeps "failures" in the history, or "all"
        deliveries, or is "off".

        A delivery that takes longer than `timeout` has failed: an async handler is cancelled; a thread is left to
        itself, and what it returns is ignored. A message that is delayed more than `max_delays` times is dead. Messages
        and producers may ask for other values of all of these; `limits` bound them.

        `bindings` are patterns of routing keys in which `*` stands for any characters: the group takes the messages
        that match one of them, and those without a routing key not. None or no pattern takes every message. The set
        counts whole, for messages that are claimed from then on. While a process consumes that declared the set in
        force, another one waits: see `binding_outcome` and `bindings`. Raises `NotFound` without the stream.
        """
        options = GroupOptions(
            timeout=timeout,
            max_retries=max_retries,
            max_delays=max_delays,
            retry_base=retry_base,
            retry_exponent=retry_exponent,
            retry_cap=retry_cap,
            concurrency=concurrency,
            limits=limits or DeliveryLimits(),
            delivery_log=delivery_log,
            bindings=check_bindings("bindings", bindings),
        )
        check_start("start", start)
        self.binding_outcome = self._client._run(
            lambda: acts.declare_group(
                self._schema, stream=self._stream.name, name=self.name, start=start, options=options
            )
        )
        self._declared = options.bindings
        return self

    def get(self) -> GroupInfo | None:
        """Return the group as it is registered, or None."""
        return self._client._find(lambda: acts.get_group(self._schema, stream=self._stream.name, name=self.name))

    def status(self) -> GroupStatus:
        """Return where the group stands, and which open transactions hold back its next claim."""
        return self._client._run(lambda: acts.group_status(self._schema, stream=self._stream.name, name=self.name))

    def instances(self) -> list[Instance]:
        """Return the processes that hold work of the group now."""
        return self._client._run(lambda: acts.list_instances(self._schema, stream=self._stream.name, name=self.name))

    def reclaims(self, *, limit: int = 100) -> list[Reclaim]:
        """Return what was taken over from dead processes, the latest first: the reason of every duplicate."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(
            lambda: acts.list_reclaims(self._schema, stream=self._stream.name, name=self.name, limit=limit)
        )

    def blocked_keys(self, *, limit: int = 100) -> list[BlockedKey]:
        """Return the keys whose messages wait for each other and what blocks them, those with most waiting first."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(
            lambda: acts.list_blocked_keys(self._schema, stream=self._stream.name, name=self.name, limit=limit)
        )

    def waiting(self, *, limit: int = 100) -> list[WaitingMessage]:
        """Return the messages produced for later that wait in the group until they are due, the first due first."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(
            lambda: acts.list_waiting(self._schema, stream=self._stream.name, name=self.name, limit=limit)
        )

    def bindings(self) -> GroupBindings:
        """Return which bindings are in force, which processes hold them, and which declarations wait."""
        return self._client._run(lambda: acts.get_bindings(self._schema, stream=self._stream.name, name=self.name))

    def preview_bindings(self, bindings: Sequence[str] | None, *, last: int = 1_000) -> BindingPreview:
        """Return what bindings would take of the stream's last messages, without declaring them."""
        check_integer("last", last, low=1, high=1_000_000)
        checked = check_bindings("bindings", bindings)
        return self._client._run(
            lambda: acts.preview_bindings(self._schema, stream=self._stream.name, bindings=checked, last=last)
        )

    def preview_rewind(self, to: Start) -> Rewind:
        """Return what `rewind` would do now. Changes nothing."""
        check_start("to", to)
        return self._client._run(
            lambda: acts.preview_rewind(self._schema, stream=self._stream.name, name=self.name, to=to)
        )

    def rewind(self, to: Start) -> Rewind:
        """Have the group go back to a position, and return what that means; a position ahead of it changes nothing.

        Messages behind the position are delivered once more, whatever became of them: their exception rows are removed,
        dead ones too, and open ranges are taken from the processes that have them. A range that the position falls into
        is delivered again from its first unfinished message on. What runs at that moment runs to its end, and up to a
        third of `lease_ttl` may pass until a process begins nothing more of the old ranges. See `preview_rewind`.
        """
        check_start("to", to)
        done = self._client._move(
            lambda: acts.rewind_group(self._schema, stream=self._stream.name, name=self.name, to=to)
        )
        family = self._client._run(lambda: acts.free_waiting(self._schema, stream=self._stream.name, name=self.name))
        self._client._notifier.notify(family.stream)
        return done

    def preview_skip(self, to: Start) -> Skip:
        """Return what `skip` would do now. Changes nothing."""
        check_start("to", to)
        return self._client._run(
            lambda: acts.preview_skip(self._schema, stream=self._stream.name, name=self.name, to=to)
        )

    def skip(self, to: Start) -> Skip:
        """Have the group go on at a position, and return what it passes over; a position behind it changes nothing.

        Only messages that no process was given yet are skipped. Open ranges, retries and dead rows stay as they are.
        Raises `InvalidInput` for an id ahead of the last message.
        """
        check_start("to", to)
        return self._client._move(
            lambda: acts.skip_group(self._schema, stream=self._stream.name, name=self.name, to=to)
        )

    def positions(self, *, limit: int = 100) -> list[PositionChange]:
        """Return how the group was rewound and skipped, by whom and when, the latest first."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(
            lambda: acts.list_positions(self._schema, stream=self._stream.name, name=self.name, limit=limit)
        )

    def dead_letters(
        self,
        *,
        limit: int = 100,
        after: int | None = None,
        error: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[DeadLetter]:
        """Return dead letters of the group in the order of their ids, those behind `after` only.

        `error` is text that occurs in "type: error" of the last delivery, `key` the message's key, and `since`
        (included) and `until` bound the time of that delivery.
        """
        check_integer("limit", limit, low=1, high=100_000)
        behind = 0 if after is None else check_integer("after", after, low=0, high=MAX_ID)
        meant = DeadFilter(error=error, key=key, since=since, until=until)
        return self._client._run(
            lambda: acts.list_dead_letters(
                self._schema, stream=self._stream.name, name=self.name, meant=meant, after=behind, limit=limit
            )
        )

    def dead_letter(self, message_id: int) -> DeadLetterDetail | None:
        """Return a dead letter with its message and its deliveries; None when the message is not dead here."""
        check_integer("message_id", message_id, low=1, high=MAX_ID)
        return self._client._run(
            lambda: acts.get_dead_letter(self._schema, stream=self._stream.name, name=self.name, message_id=message_id)
        )

    def deliveries(self, message_id: int, *, limit: int = 1_000) -> list[DeliveryRecord]:
        """Return what the history keeps of a message: its deliveries, and what was done with the dead letter.

        With `delivery_log` "failures" those that did not succeed, with "all" the others too.

        The history stays when the message is redriven, handled or discarded. It is empty when `delivery_log` is "off".
        """
        check_integer("message_id", message_id, low=1, high=MAX_ID)
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(
            lambda: acts.list_deliveries(
                self._schema, stream=self._stream.name, name=self.name, message_id=message_id, limit=limit
            )
        )

    def redrive(
        self,
        message_ids: Iterable[int] | None = None,
        *,
        error: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        rate: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Redriven:
        """Have dead letters delivered again, with retries as if for the first time; their history stays.

        Takes ids, the filters of `dead_letters`, or `everything`; ids that are not dead are passed over. With `rate`
        so many a second are due, behind those redriven earlier that still wait; else all at once. A thousand are moved
        in a transaction, `progress` is called with how many so far, and a call that breaks off may be made again: what
        was redriven is not dead any more.
        """
        meant = select_dead(message_ids, error=error, key=key, since=since, until=until, everything=everything)
        if rate is not None:
            check_number("rate", rate, low=0.001, high=1_000_000)
        redriven = Redriven()
        after: int | None = 0
        while after is not None:
            moved = self._client._run(
                partial(
                    acts.redrive_dead_letters,
                    self._schema,
                    stream=self._stream.name,
                    name=self.name,
                    meant=meant,
                    after=after,
                    rate=rate,
                )
            )
            if moved.messages and not redriven.messages:
                self._client._notifier.notify(RETRIES_DUE)
            redriven, after = moved.behind(redriven), moved.next_after
            if progress is not None:
                progress(redriven.messages)
        if redriven.messages:
            self._client._notifier.notify(RETRIES_DUE)
        return redriven

    def discard(
        self,
        message_ids: Iterable[int] | None = None,
        *,
        reason: str,
        error: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Give up dead letters for good; return how many. The history keeps `reason` and the database role.

        Takes ids, the filters of `dead_letters`, or `everything`, and goes on as `redrive` does. The messages stay in
        the log.
        """
        meant = select_dead(message_ids, error=error, key=key, since=since, until=until, everything=everything)
        check_reason("reason", reason)
        discarded = 0
        after: int | None = 0
        while after is not None:
            moved = self._client._run(
                partial(
                    acts.discard_dead_letters,
                    self._schema,
                    stream=self._stream.name,
                    name=self.name,
                    meant=meant,
                    after=after,
                    reason=reason,
                )
            )
            discarded, after = discarded + moved.messages, moved.next_after
            if progress is not None:
                progress(discarded)
        return discarded

    def unread_versions(self) -> list[UnreadVersion]:
        """Return of which schema versions messages wait for a process of the group that can read them."""
        return self._client._run(
            lambda: acts.list_unread_versions(self._schema, stream=self._stream.name, name=self.name)
        )

    def rename(self, new_name: str) -> Consumer[PayloadT]:
        """Give the group another name and return the handle for it. Its cursor stays."""
        check_name("new_name", new_name)
        self._client._run(
            lambda: acts.rename_group(self._schema, stream=self._stream.name, name=self.name, new_name=new_name)
        )
        return Consumer(self._stream, new_name)

    def destroy(self) -> None:
        """Remove the group with its cursor and exception rows. Needs a client with `allow_destroy=True`."""
        allowed = self._client._allow_destroy
        self._client._run(
            lambda: acts.destroy_group(self._schema, stream=self._stream.name, name=self.name, allowed=allowed)
        )

    def consume(
        self,
        handler: Handler,
        *,
        transactional: bool = False,
        batch: int | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        grace: timedelta = timedelta(seconds=30),
        signals: bool = True,
        upcast: Upcast | None = None,
    ) -> None:
        """Deliver messages to `handler` until SIGTERM or SIGINT; see `AsyncConsumer.consume`.

        Runs an event loop of its own in this thread, with connections of its own, so it raises RuntimeError where one
        runs already. Only the main thread hears signals.
        """
        asyncio.run(
            self._consume(
                handler,
                transactional=transactional,
                batch=batch,
                concurrency=concurrency,
                prefetch=prefetch,
                grace=grace,
                signals=signals,
                upcast=upcast,
            )
        )

    async def _consume(self, handler: Handler, **options: Any) -> None:
        async with self._client._asynchronous() as client:
            consumer = client.stream(self._stream.name, self._stream.payload_type).consumer(self.name)
            consumer.stats, consumer._declared = self.stats, self._declared
            await consumer.consume(handler, **options)
