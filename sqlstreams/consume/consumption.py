"""One run of consume(): claims ahead, hands messages to handlers, and records what became of them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from msgspec import Struct
from psycopg import errors as pg

from sqlstreams import statements
from sqlstreams.codec import Codec
from sqlstreams.consume.context import current
from sqlstreams.consume.holes import Barrier, lower_barrier, raise_barrier
from sqlstreams.consume.outcome import Outcome, decide
from sqlstreams.consume.pace import Pace
from sqlstreams.consume.presence import Presence, Progress
from sqlstreams.consume.ranges import ID, PAYLOAD, Range, Retries, Work
from sqlstreams.consume.threads import HandlerThread
from sqlstreams.database import AsyncDatabase, is_broken
from sqlstreams.errors import DatabaseUnavailable, NotFound, NotInstalled
from sqlstreams.model import ConsumerStats, GroupInfo, StreamInfo
from sqlstreams.statements import Failures, Family, Polled, Recorded

_log = logging.getLogger("sqlstreams.consume")

Handler = Callable[[Any], Awaitable[object] | object]

# Errors that pass without our doing: a fail-over, a deadlock, a full disk, the row of this process being made anew.
_PASSING: Final = (psycopg.OperationalError, pg.ForeignKeyViolation, pg.TransactionRollback, DatabaseUnavailable)
_BREATHE_EVERY: Final = 100
_HOLE_PAUSES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
# A hole that is older than this many looks is left to the timer: every commit behind it brings a notification.
_HOLE_PROMPT_LOOKS: Final = 5
_HOLE_REPORT_AFTER: Final = 1.0
_HOLE_REPORT_EVERY: Final = 30.0
_LONGEST_PAUSE: Final = 5.0
_CLEANUP: Final = 10.0


class ConsumeOptions(Struct, frozen=True):
    """How one consume() works: `grace` is in seconds, `prefetch` None means as many as the handlers' pace asks for."""

    concurrency: int
    prefetch: int | None
    grace: float


class Consumption:
    """Delivers one group's messages to one handler until it is stopped."""

    def __init__(
        self,
        database: AsyncDatabase,
        presence: Presence,
        *,
        stream: StreamInfo,
        group: GroupInfo,
        codec: Codec[Any],
        handler: Handler,
        options: ConsumeOptions,
        stats: ConsumerStats,
    ) -> None:
        self.stream_id = stream.id
        self.group_id = group.id
        self.stats = stats
        self._database = database
        self._presence = presence
        self._family = Family(database.schema, stream.id)
        self._stream_name, self._group_name = stream.name, group.name
        self._decode = codec.decode
        self._handler = handler
        self._options = options
        self._pace = Pace(concurrency=options.concurrency, prefetch=options.prefetch)

        self._queue: deque[Work] = deque()
        self._unstarted = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        self._ranges: dict[UUID, Range] = {}
        self._retries: dict[UUID, Retries] = {}
        self._finished: list[UUID] = []
        self._returned: list[tuple[Work, int, Outcome | None]] = []

        self._news = asyncio.Event()
        self._to_record = asyncio.Event()
        self._recorded = asyncio.Event()
        self._fresh = True
        self._look_again = False
        self._loose = True
        self._orphaned = False
        self._doubtful = False
        self._retry_at: float | None = 0.0
        self._settled = 0
        self._barrier: Barrier | None = None
        self._hole_since: float | None = None
        self._hole_looks = 0
        self._hole_reported_at = 0.0

        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._fatal: BaseException | None = None

    # Starting and stopping

    def stop(self) -> None:
        """Start nothing more and let running handlers finish; when called again, cancel them."""
        if self._stop_asked.is_set():
            self._stop_now.set()
        self._stop_asked.set()
        self._news.set()

    async def run(self) -> None:
        """Consume until stopped or cancelled; give back whatever was not done, uncharged."""
        await self._presence.join(self)
        workers = [
            asyncio.create_task(self._work(number), name=f"sqlstreams-handler-{number}")
            for number in range(self._options.concurrency)
        ]
        feeder = asyncio.create_task(self._feed(), name="sqlstreams-feed")
        recorder = asyncio.create_task(self._record(), name="sqlstreams-record")
        try:
            await self._until_stopped(workers, feeder, recorder)
        finally:
            self._stopping = True
            await _cancel(feeder, *workers)
            await asyncio.shield(self._clean_up(recorder))
        if self._fatal is not None:
            raise self._fatal

    async def _until_stopped(
        self, workers: list[asyncio.Task[None]], feeder: asyncio.Task[None], recorder: asyncio.Task[None]
    ) -> None:
        asked = asyncio.create_task(self._stop_asked.wait())
        at_once = asyncio.create_task(self._stop_now.wait())
        try:
            done, _ = await asyncio.wait([asked, feeder, recorder, *workers], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {asked}:
                if task.cancelled():
                    continue
                if error := task.exception():  # a handler asked to exit, or the group is gone
                    raise error
            self._stopping = True
            self._wake_idle()
            finishing = asyncio.create_task(_join(workers))
            await asyncio.wait([finishing, at_once], timeout=self._options.grace, return_when=asyncio.FIRST_COMPLETED)
            await _cancel(finishing)
        finally:
            await _cancel(asked, at_once)

    async def _clean_up(self, recorder: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(_CLEANUP):
                while self._returned and not recorder.done():
                    self._recorded.clear()
                    await self._recorded.wait()
                await _cancel(recorder)
                await self._give_back()
        except (TimeoutError, psycopg.Error, DatabaseUnavailable) as error:
            _log.warning("SQL0105 work was not given back, its leases will run out instead: %s", error)
        finally:
            await _cancel(recorder)
            await self._presence.leave(self)

    async def _give_back(self) -> None:
        if self._finished:
            await self._give_back_finished()
        if held := self.progress():
            await self._database.query_once(
                statements.release_leases(
                    self._database.schema,
                    instance_id=self._presence.instance_id,
                    tokens=[progress.token for progress in held],
                    resolved=[progress.resolved for progress in held],
                    done=[progress.done for progress in held],
                )
            )
        self._ranges.clear()
        self._retries.clear()
        async with self._presence.turn:
            await self._disown()

    # What the presence tells

    def progress(self) -> list[Progress]:
        """Return the state of the ranges that are held; any thread may ask."""
        return [Progress(held.token, *held.progress()) for held in list(self._ranges.values())]

    def tokens(self) -> list[UUID]:
        """Return the tokens of everything that is held or about to be given back."""
        return [*self._ranges, *self._retries, *self._finished]

    def lost(self, token: UUID) -> None:
        """Drop a range that was given to another process: start nothing more of it, record nothing for it."""
        held = self._ranges.pop(token, None)
        if held is None:
            return
        held.lost = True
        if held in self._queue:
            self._queue.remove(held)
            self._unstarted -= held.unstarted
        self.stats.leases_lost += 1
        self._news.set()
        _log.warning(
            "SQL0040 the lease of group %s on ids %d to %d of stream %s was lost to another process",
            self._group_name, held.low, held.high, self._stream_name,
        )  # fmt: skip

    def woken(self) -> None:
        """Look for fresh messages."""
        if not self._fresh:
            self.stats.woken_by_notification += 1
        self._fresh = True
        if self._hole_since is None or self._hole_looks < _HOLE_PROMPT_LOOKS:
            self._news.set()

    def polled(self, found: Polled | None) -> None:
        """Look for what the poll found."""
        if found is None:
            self._fail(NotFound("consumer group", f"{self._group_name} on {self._stream_name}"))
            return
        if found.fresh and not self._fresh:
            self.stats.woken_by_poll += 1
        self._fresh |= found.fresh
        self._loose |= found.loose
        self._orphaned |= found.orphaned
        if found.due_in is not None:
            self._retry_in(found.due_in)
        self._news.set()

    def doubt(self) -> None:
        """Compare notes with the server before going on."""
        self._doubtful = True
        self._fresh = True
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        self._fatal = self._fatal or error
        self._stop_now.set()
        self.stop()

    # Handling

    async def _work(self, number: int) -> None:
        thread = None if _is_async(self._handler) else HandlerThread(f"sqlstreams-handler-{number}")
        try:
            await self._handle_all(thread)
        finally:
            if thread is not None:
                thread.close()

    async def _handle_all(self, thread: HandlerThread | None) -> None:
        handled = 0
        while True:
            if not self._queue:
                if self._stopping:
                    return
                await self._sleep_until_work()
                continue
            if self._stopping:
                return
            work, index = self._take()
            if self._unstarted < self._pace.low_water:
                self._news.set()
            await self._handle(work, index, thread)
            handled += 1
            if handled % _BREATHE_EVERY == 0:
                # A handler that never waits would keep the claims from being made ahead.
                await asyncio.sleep(0)

    def _take(self) -> tuple[Work, int]:
        work = self._queue[0]
        index = work.next
        work.next += 1
        self._unstarted -= 1
        if work.next == len(work.rows):
            self._queue.popleft()
        return work, index

    async def _handle(self, work: Work, index: int, thread: HandlerThread | None) -> None:
        row = work.rows[index]
        current.set((self._stream_name, self._group_name, row))
        try:
            payload = self._decode(row[PAYLOAD])
            if thread is None:
                await self._handler(payload)  # type: ignore[misc]  # _is_async said so
            else:
                result = await thread.call(self._handler, payload)
                if inspect.isawaitable(result):
                    await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # we are being stopped: the message was not done and is not charged
            self._return(work, index, decide(error))
        except Exception as error:
            self._return(work, index, decide(error))
        else:
            self._succeed(work, index)

    def _succeed(self, work: Work, index: int) -> None:
        self.stats.handled += 1
        if isinstance(work, Range):
            if work.finish_one(index):
                self._finish(work)
        else:
            self._return(work, index, None)

    def _finish(self, held: Range) -> None:
        if self._ranges.pop(held.token, None) is not None:
            self._finished.append(held.token)
            self._news.set()

    def _return(self, work: Work, index: int, outcome: Outcome | None) -> None:
        if outcome is not None:
            _log.info(
                "SQL0106 message %d of stream %s in group %s: %s by %s: %s",
                work.rows[index][ID], self._stream_name, self._group_name, outcome.kind, outcome.error_type,
                outcome.error,
            )  # fmt: skip
        self._returned.append((work, index, outcome))
        self._to_record.set()

    async def _sleep_until_work(self) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(sleeper)
        self._news.set()
        await sleeper

    def _wake_idle(self, count: int | None = None) -> None:
        while self._idle and (count is None or count > 0):
            sleeper = self._idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                count = None if count is None else count - 1

    def _enqueue(self, work: Work, *, first: bool = False) -> None:
        if first:
            self._queue.appendleft(work)
        else:
            self._queue.append(work)
        self._unstarted += len(work.rows)
        self._wake_idle(len(work.rows))

    # Claiming

    async def _feed(self) -> None:
        pause = 0.0
        while not self._stopping:
            self._news.clear()
            try:
                progressed = await self._feed_once()
                pause = 0.0
            except (psycopg.Error, DatabaseUnavailable, NotInstalled) as error:
                self._check_fatal(error)
                self.doubt()
                pause = min(max(pause * 2, 0.1), _LONGEST_PAUSE)
                _log.warning(
                    "SQL0105 claiming for group %s failed, again in %.1f s: %s", self._group_name, pause, error
                )
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                continue
            if not progressed:
                await self._wait_for_news()

    async def _feed_once(self) -> bool:
        if self._doubtful:
            self._doubtful = False
            async with self._presence.turn:
                await self._disown()
        if self._orphaned:
            self._orphaned = False
            await self._free_exceptions()
        progressed = await self._claim_retries()
        if self._look_again and self._finished:
            self._fresh = True
        if self._unstarted < self._pace.low_water:
            async with self._presence.turn:
                progressed |= await self._take_over() or await self._claim()
        if self._finished:
            await self._give_back_finished()
        return progressed

    def _check_fatal(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
        if isinstance(cause, pg.UndefinedTable | pg.InvalidSchemaName):
            self._fail(NotFound("stream", self._stream_name))
        elif isinstance(cause, pg.ForeignKeyViolation) and "group" in (cause.diag.constraint_name or ""):
            self._fail(NotFound("consumer group", f"{self._group_name} on {self._stream_name}"))
        elif not is_broken(error) and not isinstance(cause, _PASSING):
            self._fail(error)

    async def _wait_for_news(self) -> None:
        timeout = None
        if self._retry_at is not None:
            timeout = max(0.0, self._retry_at - time.monotonic())
        if self._hole_since is not None:
            hole_pause = _HOLE_PAUSES[min(self._hole_looks, len(_HOLE_PAUSES) - 1)]
            timeout = hole_pause if timeout is None else min(timeout, hole_pause)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout)
        if self._hole_since is not None:
            self._fresh = True

    async def _claim(self) -> bool:
        if not self._fresh:
            return False
        self._fresh = self._look_again = False
        if self._barrier is not None:
            await self._look_at_hole()
        finished, self._finished = self._finished, []
        token = uuid4()
        try:
            rows = await self._database.query_once(
                statements.claim(
                    self._family,
                    group_id=self.group_id,
                    instance_id=self._presence.instance_id,
                    token=token,
                    limit=self._pace.limit,
                    settled=self._settled,
                    finished=finished,
                )
            )
        except BaseException:
            self._finished = finished + self._finished
            self._fresh = True
            raise
        self.stats.claims += 1
        if not rows:
            self._hole_closed()
            return bool(finished)
        if rows[0][ID] is None:
            return await self._meet_hole()
        self._hole_closed()
        # A claim that was not filled has met the end or a hole; it is worth another look when its work is finished.
        self._fresh = len(rows) >= self._pace.limit
        self._look_again = not self._fresh
        self._hold(Range(token, rows, low=rows[0][ID], high=rows[-1][ID]))
        self._pace.claimed(rows, now=time.monotonic())
        return True

    def _hold(self, held: Range) -> None:
        self.stats.claimed += len(held.rows)
        self._ranges[held.token] = held
        self._enqueue(held)

    async def _take_over(self) -> bool:
        if not self._loose:
            return False
        token = uuid4()
        rows = await self._database.query_once(
            statements.take_over(
                self._family, group_id=self.group_id, instance_id=self._presence.instance_id, token=token
            )
        )
        if not rows:
            self._loose = False
            return False
        low, high, died = rows[0][:3]
        messages = [row[3:] for row in rows if row[3] is not None]
        held = Range(token, messages, low=low, high=high)
        if died:
            self.stats.reclaimed += len(messages)
            _log.warning(
                "SQL0104 took over ids %d to %d of stream %s for group %s from a dead process; %d are delivered again",
                low, high, self._stream_name, self._group_name, len(messages),
            )  # fmt: skip
        if messages:
            self._hold(held)
        else:
            self._finished.append(token)
        return True

    # Holes

    async def _meet_hole(self) -> bool:
        if self._hole_since is None:
            self._hole_since = time.monotonic()
            self.stats.waits += 1
        if self._barrier is None:
            seen = await self._read_settled_head()
            self._barrier = raise_barrier(seen)
            self._hole_looks = 0
            if self._barrier.is_settled:
                self._settle()
                self._fresh = True
                return True
        self._hole_looks += 1
        self._report_hole()
        return False

    async def _look_at_hole(self) -> None:
        assert self._barrier is not None
        self._barrier = lower_barrier(self._barrier, await self._read_settled_head())
        if self._barrier.is_settled:
            self._settle()

    def _settle(self) -> None:
        assert self._barrier is not None
        self._settled = max(self._settled, self._barrier.head)
        self._barrier = None

    async def _read_settled_head(self) -> statements.SettledHead:
        return statements.settled_head(await self._database.query_once(statements.read_settled_head(self._family)))

    def _report_hole(self) -> None:
        assert self._hole_since is not None
        assert self._barrier is not None
        self.stats.waiting_for = self._barrier.holders
        now = time.monotonic()
        if now - self._hole_since > _HOLE_REPORT_AFTER and now - self._hole_reported_at > _HOLE_REPORT_EVERY:
            self._hole_reported_at = now
            _log.warning(
                "SQL0101 group %s of stream %s has waited %.1f s for %s",
                self._group_name, self._stream_name, now - self._hole_since,
                "; ".join(map(str, self._barrier.holders)),
            )  # fmt: skip

    def _hole_closed(self) -> None:
        if self._hole_since is not None:
            self.stats.wait_seconds += time.monotonic() - self._hole_since
            self.stats.waiting_for = ()
            self._hole_since = None
            self._hole_reported_at = 0.0

    # Retries

    def _retry_in(self, seconds: float) -> None:
        at = time.monotonic() + max(0.0, seconds)
        if self._retry_at is None or at < self._retry_at:
            self._retry_at = at
            self._news.set()

    async def _claim_retries(self) -> bool:
        waiting = any(isinstance(work, Retries) for work in self._queue)
        if self._retry_at is None or self._retry_at > time.monotonic() or waiting:
            return False
        self._retry_at = None
        token = uuid4()
        async with self._presence.turn:
            rows = await self._database.query_once(
                statements.claim_exceptions(
                    self._family,
                    group_id=self.group_id,
                    instance_id=self._presence.instance_id,
                    token=token,
                    limit=self._options.concurrency,
                )
            )
            if rows:
                self._retries[token] = Retries(token, rows)
        if not rows:
            return False
        self.stats.retried += len(rows)
        self._enqueue(self._retries[token], first=True)
        if len(rows) == self._options.concurrency:
            self._retry_at = 0.0
        else:
            self._presence.poll_soon()  # it says when the next one is due
        return True

    async def _free_exceptions(self) -> None:
        freed = await self._database.query_once(statements.free_exceptions(self._family, group_id=self.group_id))
        for row in freed:
            self._retry_in(row.due_in)

    async def _disown(self) -> None:
        instance_id, known = self._presence.instance_id, self._presence.known(self.group_id)
        await self._database.query_once(
            statements.disown(self._database.schema, group_id=self.group_id, instance_id=instance_id, known=known)
        )
        await self._database.query_once(
            statements.release_exceptions(self._family, group_id=self.group_id, instance_id=instance_id, known=known)
        )
        self._loose = True
        self._retry_at = 0.0

    # Recording

    async def _give_back_finished(self) -> None:
        finished, self._finished = self._finished, []
        try:
            await self._database.query_once(
                statements.finish(self._database.schema, instance_id=self._presence.instance_id, finished=finished)
            )
        except BaseException:
            self._finished = finished + self._finished
            raise

    async def _record(self) -> None:
        pause = 0.0
        while True:
            await self._to_record.wait()
            self._to_record.clear()
            try:
                await self._record_once()
                pause = 0.0
            except (psycopg.Error, DatabaseUnavailable) as error:
                self._check_fatal(error)
                pause = min(max(pause * 2, 0.1), _LONGEST_PAUSE)
                _log.warning(
                    "SQL0105 recording outcomes of group %s failed, again in %.1f s: %s",
                    self._group_name, pause, error,
                )  # fmt: skip
                self._to_record.set()
                await asyncio.sleep(pause * random.uniform(0.5, 1))

    async def _record_once(self) -> None:
        batch = list(self._returned)
        await self._record_ranges([each for each in batch if isinstance(each[0], Range)])
        for token in {work.token for work, _, _ in batch if isinstance(work, Retries)}:
            await self._record_retries(token, [each for each in batch if each[0].token == token])
        del self._returned[: len(batch)]
        self._recorded.set()

    async def _record_ranges(self, returned: list[tuple[Work, int, Outcome | None]]) -> None:
        ours = [each for each in returned if not each[0].lost]
        if ours:
            recorded = await self._database.query_once(
                statements.record_exceptions(
                    self._family,
                    group_id=self.group_id,
                    instance_id=self._presence.instance_id,
                    tokens=[work.token for work, _, _ in ours],
                    failures=_failures(ours),
                )
            )
            self._count(recorded, ours)
        for work, index, _ in ours:
            if isinstance(work, Range) and work.finish_one(index):
                self._finish(work)

    async def _record_retries(self, token: UUID, returned: list[tuple[Work, int, Outcome | None]]) -> None:
        handled = [work.rows[index][ID] for work, index, outcome in returned if outcome is None]
        failed = [each for each in returned if each[2] is not None]
        if handled:
            await self._database.query_once(
                statements.complete_exceptions(self._family, group_id=self.group_id, token=token, message_ids=handled)
            )
        if failed:
            recorded = await self._database.query_once(
                statements.return_exceptions(
                    self._family, group_id=self.group_id, token=token, failures=_failures(failed)
                )
            )
            self._count(recorded, failed)
        for work, _, _ in returned:
            if isinstance(work, Retries) and work.finish_one():
                self._retries.pop(token, None)

    def _count(self, recorded: list[Recorded], returned: list[tuple[Work, int, Outcome | None]]) -> None:
        kinds = {work.rows[index][ID]: outcome.kind for work, index, outcome in returned if outcome is not None}
        for row in recorded:
            if row.state == "dead":
                self.stats.dead += 1
            elif kinds[row.message_id] == "delayed":
                self.stats.delayed += 1
            if kinds[row.message_id] != "delayed":
                self.stats.failed += 1
            if row.state == "ready":
                self._retry_in(row.due_in)


def _failures(returned: list[tuple[Work, int, Outcome | None]]) -> Failures:
    outcomes = [outcome for _, _, outcome in returned if outcome is not None]
    return Failures(
        message_ids=[work.rows[index][ID] for work, index, _ in returned],
        outcomes=[outcome.kind for outcome in outcomes],
        pauses=[outcome.pause for outcome in outcomes],
        error_types=[outcome.error_type for outcome in outcomes],
        errors=[outcome.error for outcome in outcomes],
    )


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  # an object with an async __call__


async def _join(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
