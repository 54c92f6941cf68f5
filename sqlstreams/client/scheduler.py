"""Handles on schedules, blocking."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sqlstreams import acts, statements
from sqlstreams.codec import Codec
from sqlstreams.errors import InvalidInput
from sqlstreams.manager import appending, firing
from sqlstreams.model import (
    Backfilled,
    Receipt,
    ScheduledMessage,
    ScheduleEdit,
    ScheduleFire,
    ScheduleInfo,
    ScheduleSkip,
    ScheduleStatus,
)
from sqlstreams.names import check_name
from sqlstreams.options import ScheduleOptions, check_integer
from sqlstreams.produce.append import act_within
from sqlstreams.produce.callers import driver_connection
from sqlstreams.slots import check_instant, check_rule
from sqlstreams.statements import Act, StoredSchedule

if TYPE_CHECKING:
    from sqlstreams.client.client import Client

ResultT = TypeVar("ResultT")

_log = logging.getLogger("sqlstreams.schedules")

_BACKFILLED_AT_ONCE: Final = 500
_WINDOW: Final = timedelta(days=365)
_TIMEOUT: Final = timedelta(seconds=30)


class Scheduler:
    """A handle on a schedule: what to produce, where and when."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = check_name("schedule", name)
        if name.startswith("sqlstreams"):
            raise InvalidInput("schedule", f"must not begin with sqlstreams, which is reserved, got {name!r}")
        self._client = client
        self._schema = client._address.schema

    def register(
        self,
        stream: str,
        expression: str,
        payload: Any,
        *,
        payload_type: Any = None,
        schema_version: int | None = None,
        timezone: str = "UTC",
        concurrency: str = "parallel",
        timeout: timedelta = _TIMEOUT,
        catch_up: str = "newest",
        catch_up_window: timedelta = _WINDOW,
        jitter: timedelta | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        compaction: bool = True,
        connection: Any = None,
    ) -> Self:
        """Declare the schedule and return this handle. The newest declaration wins; the same one again writes nothing.

        `expression` has five fields of cron, or is `@hourly`, `@every 90s` and the like (docs/schedules.md), read in
        `timezone`; its times are the slots. For each slot from `start_at` to `end_at` a message with `payload` is
        produced to `stream`, with the name of the schedule as its key. `payload_type` is the type of the payload where
        that does not say it itself, as a TypedDict; `schema_version` is the version (1) of a plain dict or
        `RawPayload`. The first slot is the next one after now; after a change of the expression, the zone or the bounds
        too, and what was due until then and not fired is recorded as skipped.

        A slot is put off by up to `jitter`. `catch_up` says what is fired of slots that nobody fired in time: the
        `newest`, the `oldest`, `all` or none (`skip`), of those not older than `catch_up_window`. A message that nobody
        claimed before the next one comes is superseded by it, unless `compaction` is off. `timeout` and `concurrency`
        are what its deliveries ask for; "parallel" leaves that to the group.

        With `connection=` the declaration joins that connection's transaction, as of `produce`. Raises `InvalidInput`
        for what cannot be, `PayloadShapeChanged` for a payload of another shape than the stream's, and `NotFound`
        without the stream.
        """
        check_name("stream", stream)
        rule = check_rule(expression, timezone, start_at=start_at, end_at=end_at)
        options = ScheduleOptions(
            concurrency=concurrency,
            timeout=timeout,
            catch_up=catch_up,
            catch_up_window=catch_up_window,
            jitter=jitter,
            compaction=compaction,
        )
        codec: Codec[Any] = Codec(
            type(payload) if payload_type is None else payload_type, schema_version=schema_version
        )
        registered = self._run_within(
            connection,
            lambda: acts.register_schedule(
                self._schema,
                name=self.name,
                stream=stream,
                rule=rule,
                payload=payload,
                codec=codec,
                options=options,
            ),
        )
        if registered.is_new and not registered.keeps_successes:
            _log.warning("SQL0058 no group of stream %s keeps a row of what succeeds (%s)", stream, self.name)
        return self

    def get(self) -> ScheduleInfo | None:
        """Return the schedule as it is registered, or None."""
        found = self._client._find(self._get)
        return None if found is None else found.info

    def status(self) -> ScheduleStatus:
        """Return where the schedule stands, and what became of its last message in every group."""
        return self._client._run(lambda: acts.schedule_status(self._schema, name=self.name))

    def next(self, n: int = 5) -> list[datetime]:
        """Return the next slots, at most `n`, in UTC; of a suspended schedule those that it would have."""
        check_integer("n", n, low=1, high=10_000)
        return self._client._run(lambda: acts.next_slots(self._schema, name=self.name, count=n))

    def fires(self, *, limit: int = 100) -> list[ScheduleFire]:
        """Return what the schedule produced, the latest slot first."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(lambda: acts.list_fires(self._schema, name=self.name, limit=limit))

    def skips(self, *, limit: int = 100) -> list[ScheduleSkip]:
        """Return the ranges of slots that were not fired, the latest first."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(lambda: acts.list_skips(self._schema, name=self.name, limit=limit))

    def messages(self, *, limit: int = 10) -> list[ScheduledMessage]:
        """Return the messages of the last slots, the latest first, and what became of each in every group."""
        check_integer("limit", limit, low=1, high=1_000)
        return self._client._run(lambda: acts.list_scheduled_messages(self._schema, name=self.name, limit=limit))

    def edits(self, *, limit: int = 100) -> list[ScheduleEdit]:
        """Return the changes of the schedule, the latest first; also of one that was destroyed."""
        check_integer("limit", limit, low=1, high=100_000)
        return self._client._run(lambda: acts.list_schedule_edits(self._schema, name=self.name, limit=limit))

    def suspend(self) -> None:
        """Stop the schedule. What comes due until `unsuspend` is not fired."""
        self._client._run(lambda: acts.suspend_schedule(self._schema, name=self.name))

    def unsuspend(self) -> None:
        """Let the schedule go on with the next slot; those that came due meanwhile are recorded as skipped."""
        self._client._run(lambda: acts.unsuspend_schedule(self._schema, name=self.name))

    def run(self) -> Receipt:
        """Produce the message now, beside the slots and also while suspended; the history marks it as manual."""
        stored = self._client._run(self._get)
        return self._fire(stored, lambda: firing.fire_by_hand(self._schema, name=self.name))

    def backfill(self, start: datetime, until: datetime) -> Backfilled:
        """Fire the slots from `start` up to and with `until` that have not fired: each once, however often it is asked.

        In batches that are committed one by one: when it is broken off, call it again. Its messages are not superseded
        by others. Raises `InvalidInput` when `until` lies ahead of the database's clock.
        """
        check_instant("start", start)
        check_instant("until", until)
        stored = self._client._run(self._get)
        now = (self._client._database.query(statements.read_clock(self._schema)))[0]
        slots = firing.past_slots(stored.rule, start, until, now=now)
        done = Backfilled()
        while batch := _take(slots):
            fire = partial(firing.fire_past, self._schema, name=self.name, slots=batch)
            done = (self._fire(stored, fire)).behind(done)
        return done

    def schedule(self, *, signals: bool = True) -> None:
        """Run the manager, which fires this schedule and all others, until cancelled, or until SIGTERM or SIGINT.

        Every `consume()` does so beside its work; this is for processes that do nothing else. See `manager.run`.
        """
        self._client._run(self._get)
        self._client.manager.run(signals=signals)

    def destroy(self) -> None:
        """Remove the schedule with its history, for ever. Needs a client with `allow_destroy=True`.

        Its messages stay.
        """
        allowed = self._client._allow_destroy
        self._client._run(lambda: acts.destroy_schedule(self._schema, name=self.name, allowed=allowed))

    def _get(self) -> Act[StoredSchedule]:
        return acts.get_schedule(self._schema, name=self.name)

    def _fire(self, stored: StoredSchedule, act: Callable[[], Act[ResultT]]) -> ResultT:
        fired = appending.within(self._client._database, act, stream_ids=[stored.stream_id])
        self._client._notifier.notify(stored.stream_id)
        return fired

    def _run_within(self, connection: Any, act: Callable[[], Act[ResultT]]) -> ResultT:
        if connection is None:
            return self._client._run(act)
        self._client._run(lambda: acts.is_installed(self._schema))
        return act_within(driver_connection(connection), act())


def _take(slots: Iterator[datetime]) -> list[datetime]:
    return list(islice(slots, _BACKFILLED_AT_ONCE))
