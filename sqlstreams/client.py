"""The blocking client: the names of `sqlstreams.Client`, for programs without asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload

import psycopg
from psycopg import errors as pg

from sqlstreams import acts
from sqlstreams.aio import AsyncClient
from sqlstreams.codec import Codec
from sqlstreams.consume.reading import Upcast
from sqlstreams.consume.tail import Place, read_on
from sqlstreams.consume.workers import Handler
from sqlstreams.database import Database, address
from sqlstreams.errors import NotFound, NotInstalled
from sqlstreams.model import (
    BindingPreview,
    BlockedKey,
    ConsumerStats,
    DeadLetter,
    DeadLetterDetail,
    DeliveryRecord,
    GroupInfo,
    GroupStatus,
    Instance,
    Message,
    MigrationStep,
    PositionChange,
    RawPayload,
    Receipt,
    Reclaim,
    Redriven,
    Rewind,
    ServerStatus,
    Skip,
    StoredMessage,
    StreamInfo,
    StreamStatus,
    StreamVersion,
    SystemStatus,
    UnreadVersion,
)
from sqlstreams.names import check_name
from sqlstreams.options import (
    MAX_ID,
    DeadFilter,
    DeliveryLimits,
    DeliveryOptions,
    GroupOptions,
    Start,
    StreamOptions,
    check_duration,
    check_integer,
    check_number,
    check_reason,
    check_start,
    select_dead,
)
from sqlstreams.produce.append import LogRoom, append, append_within
from sqlstreams.produce.batch import Batch, Encoded, Encoder
from sqlstreams.produce.group_commit import GroupCommit
from sqlstreams.routing import check_bindings
from sqlstreams.statements import Act, Family, mark_keyed
from sqlstreams.wake import Notifier

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")

_TAIL_PAUSES = (0.02, 0.05, 0.1, 0.25, 0.5)
_MOVES = 5


class Client:
    """A door to one installation; threads may share it. Opening it connects to nothing; the first call does.

    `url` is a PostgreSQL URL or connection string, `schema` the installation in it. At most `pool_size` connections
    are opened beside one for the heartbeat, one for wake-ups and one to send them; a call waits up to `timeout` seconds
    for one. `lease_ttl` is how long a consuming process may be silent before its work is given to others.
    `listen_url` reaches PostgreSQL directly when `url` goes through a pooler. `max_pending` bounds the messages that
    wait for a shared commit. Without `allow_destroy` nothing can be destroyed.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "sqlstreams",
        pool_size: int = 10,
        timeout: float = 30.0,
        lease_ttl: timedelta = timedelta(seconds=15),
        listen_url: str | None = None,
        max_pending: int = 10_000,
        allow_destroy: bool = False,
    ) -> None:
        self._address = address(url, schema=schema, pool_size=pool_size, timeout=timeout)
        check_duration("lease_ttl", lease_ttl, low=timedelta(milliseconds=300), high=timedelta(days=1))
        if listen_url is not None:
            address(listen_url, schema=schema, pool_size=1, timeout=timeout)
        self._allow_destroy = allow_destroy
        self._max_pending = check_integer("max_pending", max_pending, low=1, high=10_000_000)
        self._database = Database(self._address)
        self._lease_ttl = lease_ttl
        self._listen_url = listen_url
        self._notifier = Notifier(self._address)
        self._logs: dict[tuple[str, int], _Log] = {}
        self._checked = False

    def __enter__(self) -> Self:
        self._database.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the last wake-ups and close every connection."""
        self._notifier.close()
        self._database.close()

    @property
    def system(self) -> System:
        """The installation itself."""
        return System(self)

    @overload
    def stream(self, name: str) -> Stream[RawPayload]: ...
    @overload
    def stream(self, name: str, payload_type: type[PayloadT]) -> Stream[PayloadT]: ...
    def stream(self, name: str, payload_type: type[Any] = RawPayload) -> Stream[Any]:
        """Return a handle on a stream. No I/O happens, and the stream need not exist."""
        return Stream(self, name, payload_type)

    def list_streams(self) -> list[StreamInfo]:
        """Return every stream, by name."""
        return self._run(lambda: acts.list_streams(self._address.schema))

    def list_consumers(self, stream: str | None = None) -> list[GroupInfo]:
        """Return every consumer group, or those of one stream, by name."""
        if stream is not None:
            check_name("stream", stream)
        return self._run(lambda: acts.list_groups(self._address.schema, stream=stream))

    # What the handles use

    def _run(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        if not self._checked:
            self._database.run(lambda: acts.check_installation(self._address.schema))
            self._checked = True
        return self._database.run(act)

    def _move(self, act: Callable[[], Act[ResultT]]) -> ResultT:
        # Consuming processes lock several rows at a time, too, in an order of their own.
        for _ in range(_MOVES - 1):
            with suppress(pg.DeadlockDetected):
                return self._run(act)
        return self._run(act)

    def _find(self, act: Callable[[], Act[ResultT]]) -> ResultT | None:
        try:
            return self._run(act)
        except NotFound:
            return None

    def _install_if_absent(self) -> None:
        if not self._checked and not self._database.run(lambda: acts.is_installed(self._address.schema)):
            self._migrate()

    def _migrate(self) -> list[MigrationStep]:
        applied = []
        while steps := self._database.run(lambda: acts.migrate_next(self._address.schema)):
            applied += steps
        return applied

    def _log(self, stream: str, schema_version: int) -> _Log:
        log = self._logs.get((stream, schema_version))
        if log is None:
            info = self._run(lambda: acts.get_stream(self._address.schema, name=stream))
            log = self._logs.setdefault((stream, schema_version), _Log(self, info, schema_version))
        return log


class System:
    """The installation: its migrations and its state."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def register(self) -> list[MigrationStep]:
        """Install into the schema, or bring an installation up to date; return the steps that were applied.

        Any number of processes may do so at once: one applies each step, the others wait for it.
        """
        return self._client._migrate()

    def migrate(self) -> list[MigrationStep]:
        """Bring an existing installation up to date; raise `NotInstalled` when there is none."""
        if not self._client._database.run(lambda: acts.is_installed(self._client._address.schema)):
            raise NotInstalled(f"schema {self._client._address.schema!r} holds no sqlstreams installation")
        return self._client._migrate()

    def status(self) -> SystemStatus:
        """Return versions, and which migrations are applied and pending. Works on an empty database."""
        database = self._client._database
        with database.connection():
            through_pooler = database.through_pooler
        return database.run(lambda: acts.show_system(self._client._address.schema, through_pooler=through_pooler))

    def server(self) -> ServerStatus:
        """Return what the server says of itself and of our role. Works on an empty database."""
        return self._client._database.run(lambda: acts.show_server(self._client._address.schema))


class Stream(Generic[PayloadT]):
    """A handle on a stream of one payload type."""

    def __init__(self, client: Client, name: str, payload_type: type[PayloadT]) -> None:
        self.name = check_name("stream", name)
        self.payload_type = payload_type
        self._client = client
        self._schema = client._address.schema
        self._codec = Codec(payload_type)

    def register(self, *, max_payload: int = 1_048_576, partition_rows: int = 1_000_000) -> Self:
        """Declare the stream and the shape of its payload; return this handle.

        The newest declaration wins, and the same one again writes nothing. `max_payload` is in bytes of JSON,
        `partition_rows` the ids that one partition of the log spans. A schema without an installation gets one.
        Raises `PayloadShapeChanged` when this schema_version is on record with another shape.
        """
        options = StreamOptions(max_payload=max_payload, partition_rows=partition_rows)
        self._client._install_if_absent()
        self._client._run(
            lambda: acts.register_stream(self._schema, name=self.name, options=options, codec=self._codec)
        )
        self._client._logs.pop((self.name, self._codec.schema_version), None)
        return self

    def get(self) -> StreamInfo | None:
        """Return the stream as it is registered, or None."""
        return self._client._find(lambda: acts.get_stream(self._schema, name=self.name))

    def status(self) -> StreamStatus:
        """Return what the log holds."""
        return self._client._run(lambda: acts.stream_status(self._schema, name=self.name))

    def versions(self) -> list[StreamVersion]:
        """Return the schema versions of the stream, and which groups still have messages of them to read.

        Reads the log from the slowest group's committed cursor on.
        """
        return self._client._run(lambda: acts.list_versions(self._schema, name=self.name))

    def rename(self, new_name: str) -> Stream[PayloadT]:
        """Give the stream another name and return the handle for it. Its messages and groups stay."""
        check_name("new_name", new_name)
        self._client._run(lambda: acts.rename_stream(self._schema, name=self.name, new_name=new_name))
        return Stream(self._client, new_name, self.payload_type)

    def destroy(self) -> None:
        """Remove the stream with its messages and groups, for ever. Needs a client with `allow_destroy=True`."""
        allowed = self._client._allow_destroy
        self._client._run(lambda: acts.destroy_stream(self._schema, name=self.name, allowed=allowed))
        self._client._logs.pop((self.name, self._codec.schema_version), None)

    def read(self, start: Start = "beginning", *, limit: int = 100) -> list[StoredMessage]:
        """Return up to `limit` visible messages behind a position, without a group: for tools and tests."""
        check_start("start", start)
        check_integer("limit", limit, low=1, high=100_000)
        position = self._position(start)
        return self._client._run(
            lambda: acts.read_messages(self._schema, name=self.name, from_id=position + 1, limit=limit)
        )

    def last(self, *, limit: int = 10) -> list[StoredMessage]:
        """Return the last visible messages, at most `limit`, in the order of their ids."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(lambda: acts.read_last_messages(self._schema, name=self.name, limit=limit))

    def tail(self, start: Start = "head") -> Iterator[StoredMessage]:
        """Yield messages behind a position as they come, in order and none left out, until the caller stops."""
        check_start("start", start)
        info = self._client._run(lambda: acts.get_stream(self._schema, name=self.name))
        place, idle = Place(read=self._position(start)), 0
        family = Family(self._schema, info.id)
        while True:
            here = place
            messages, place = self._client._run(lambda here=here: read_on(family, here, limit=100))  # type: ignore[misc]  # mypy infers no default of a lambda
            yield from messages
            idle = 0 if messages or place.settled != here.settled else idle + 1
            if not messages:
                time.sleep(_TAIL_PAUSES[min(idle, len(_TAIL_PAUSES) - 1)])

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
    ) -> Producer[PayloadT]:
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
        return Producer(self, defaults)

    def consumer(self, group: str) -> Consumer[PayloadT]:
        """Return a handle on a consumer group of this stream. No I/O happens."""
        return Consumer(self, group)

    def _position(self, start: Start) -> int:
        return self._client._run(lambda: acts.find_position(self._schema, name=self.name, start=start))


class Producer(Generic[PayloadT]):
    """Appends messages to a stream."""

    def __init__(self, stream: Stream[PayloadT], defaults: DeliveryOptions) -> None:
        self._stream = stream
        self._client = stream._client
        self._encoder = Encoder(stream._codec, defaults=defaults)

    def register(self) -> Self:
        """Check that the stream exists and is recorded with this payload's shape; return this handle.

        Raises `NotFound` without the stream and `PayloadShapeChanged` for another shape.
        """
        info = self._client._run(lambda: acts.get_stream(self._stream._schema, name=self._stream.name))
        self._client._run(lambda: acts.record_shape(self._stream._schema, info, self._stream._codec))
        self._log()
        return self

    def produce(
        self,
        payload: PayloadT,
        *,
        key: str | None = None,
        routing_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: str | None = None,
        timeout: timedelta | None = None,
        max_retries: int | None = None,
        max_delays: int | None = None,
        retry_base: timedelta | None = None,
        retry_exponent: float | None = None,
        retry_cap: timedelta | None = None,
        connection: psycopg.Connection[Any] | None = None,
    ) -> Receipt:
        """Append one message, durably when this returns. Threads that call at the same time share commits.

        With `connection=` the message joins that connection's transaction instead and is durable when it commits;
        consumers then find it by polling, or by the next wake-up. Raises `InvalidInput` for what cannot be stored,
        `NotFound` without the stream, `DatabaseUnavailable` when nothing was written, `ProduceUncertain` when that
        could not be learnt.
        """
        log = self._log()
        message = Message(
            payload,
            key=key,
            routing_key=routing_key,
            headers=headers,
            concurrency=concurrency,
            timeout=timeout,
            max_retries=max_retries,
            max_delays=max_delays,
            retry_base=retry_base,
            retry_exponent=retry_exponent,
            retry_cap=retry_cap,
        )
        encoded = self._encoder.one(message, max_payload=log.info.max_payload)
        if connection is not None:
            return Receipt((log.append_within(connection, [encoded]))[0])
        return Receipt(log.commits.produce(encoded))

    def produce_many(
        self,
        messages: Iterable[PayloadT | Message[PayloadT]],
        *,
        connection: psycopg.Connection[Any] | None = None,
    ) -> list[Receipt]:
        """Append all messages in one transaction or none; the receipts are in the order of the messages.

        Each item is a payload, or a `Message` with options of its own. See `produce` for `connection` and errors.
        """
        log = self._log()
        items = list(messages)  # first of all, so that no transaction is open while a generator of the caller's runs
        if not items:
            return []
        encoded = self._encoder.each(items, max_payload=log.info.max_payload)
        asks_for_keys = self._encoder.ask_for_keys(items)
        if connection is not None:
            return [Receipt(message_id) for message_id in log.append_within(connection, list(encoded))]
        return [
            Receipt(message_id)
            for message_id in log.append(log.batch(encoded, size=len(items)), asks_for_keys=asks_for_keys)
        ]

    def _log(self) -> _Log:
        return self._client._log(self._stream.name, self._stream._codec.schema_version)


class Consumer(Generic[PayloadT]):
    """A handle on a consumer group. `stats` counts what this handle's `consume()` has done."""

    def __init__(self, stream: Stream[PayloadT], group: str) -> None:
        self.name = check_name("group", group)
        self.stats = ConsumerStats()
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
        earlier ones of its key are done or dead. `delivery_log` keeps "failures" in the history, or is "off".

        A delivery that takes longer than `timeout` has failed: an async handler is cancelled; a thread is left to
        itself, and what it returns is ignored. A message that is delayed more than `max_delays` times is dead. Messages
        and producers may ask for other values of all of these; `limits` bound them.

        `bindings` are patterns of routing keys in which `*` stands for any characters: the group takes the messages
        that match one of them, and those without a routing key not. None or no pattern takes every message. Bindings
        count for the messages that are claimed from now on. Raises `NotFound` without the stream.
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
        self._client._run(
            lambda: acts.register_group(
                self._schema, stream=self._stream.name, name=self.name, start=start, options=options
            )
        )
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
        self._client._run(lambda: acts.free_waiting(self._schema, stream=self._stream.name, name=self.name))
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
        """Return the deliveries of a message that did not succeed, and what was done with the dead letter.

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
            redriven, after = moved.behind(redriven), moved.next_after
            if progress is not None:
                progress(redriven.messages)
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
                handler, concurrency=concurrency, prefetch=prefetch, grace=grace, signals=signals, upcast=upcast
            )
        )

    async def _consume(self, handler: Handler, **options: Any) -> None:
        address = self._client._address
        async with AsyncClient(
            address.conninfo,
            schema=address.schema,
            pool_size=address.pool_size,
            timeout=address.timeout,
            lease_ttl=self._client._lease_ttl,
            listen_url=self._client._listen_url,
        ) as client:
            consumer = client.stream(self._stream.name, self._stream.payload_type).consumer(self.name)
            consumer.stats = self.stats
            await consumer.consume(handler, **options)


class _Log:
    """A stream's log as one client appends to it."""

    def __init__(self, client: Client, info: StreamInfo, schema_version: int) -> None:
        self.info = info
        self.commits = GroupCommit(self.commit, max_pending=client._max_pending)
        self._client = client
        self._family = Family(client._address.schema, info.id)
        self._room = LogRoom(self._family, info.partition_rows)
        self._schema_version = schema_version
        self._keys_allowed = False

    def commit(self, messages: Sequence[Encoded]) -> list[int]:
        """Append messages that share a commit."""
        batch = Batch(self._family, messages, size=len(messages), schema_version=self._schema_version, eager=True)
        return self.append(batch, asks_for_keys=any(message.asks_for_keys for message in messages))

    def batch(self, messages: Iterable[Encoded], *, size: int) -> Batch:
        """Return `size` messages as a batch that is encoded while it is sent."""
        return Batch(self._family, messages, size=size, schema_version=self._schema_version, eager=False)

    def append(self, batch: Batch, *, asks_for_keys: bool) -> list[int]:
        """Append in a transaction of our own and wake the consumers."""
        self._allow_keys(asks_for_keys)
        try:
            ids = append(self._client._database, self._room, batch)
        except NotInstalled as error:
            raise self._gone() from error
        self._client._notifier.notify(self._family.stream)
        return ids

    def append_within(self, connection: psycopg.Connection[Any], messages: Sequence[Encoded]) -> list[int]:
        """Append in the caller's transaction."""
        self._allow_keys(any(message.asks_for_keys for message in messages))
        batch = Batch(self._family, messages, size=len(messages), schema_version=self._schema_version, eager=True)
        try:
            return append_within(connection, self._room, batch)
        except pg.UndefinedTable as error:
            raise self._gone() from error

    def _allow_keys(self, asked_for: bool) -> None:
        # Committed before the first message that asks for it, so that no consumer meets one unprepared.
        if asked_for and not self._keys_allowed:
            self._client._database.query(mark_keyed(self._family.schema, stream_id=self._family.stream))
            self._keys_allowed = True

    def _gone(self) -> NotFound:
        self._client._logs.pop((self.info.name, self._schema_version), None)
        return NotFound("stream", self.info.name)
