"""One run of consume(): claims ahead of the handlers, and gives back what they did not do."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from msgspec import Struct
from psycopg import errors as pg

from sqlstreams import acts, statements
from sqlstreams.consume.batches import BatchWorkers, read_outcomes
from sqlstreams.consume.claiming import ALL_MAY_RUN, Claimed, SortedOut, read_bound_claim, read_claim
from sqlstreams.consume.heads import Heads
from sqlstreams.consume.hole_watch import HoleWatch
from sqlstreams.consume.lanes import Handler, lanes
from sqlstreams.consume.outcome import DEFERRED, Outcome
from sqlstreams.consume.pace import Pace
from sqlstreams.consume.presence import Progress, columns
from sqlstreams.consume.ranges import ID, KEY, OPTIONS, Keyed, Range, Retries, Work, asks_for_keys, is_for_later
from sqlstreams.consume.reading import Reader
from sqlstreams.consume.recorder import Recorder, Returned
from sqlstreams.consume.stopping import Stop
from sqlstreams.consume.subject import Subject
from sqlstreams.consume.suspects import Suspects
from sqlstreams.consume.work_queue import WorkQueue
from sqlstreams.consume.workers import Workers
from sqlstreams.database import is_broken
from sqlstreams.errors import DatabaseUnavailable, NotFound, NotInstalled
from sqlstreams.model import GroupInfo
from sqlstreams.statements import Columns, Polled

_log = logging.getLogger("sqlstreams.consume")

# Errors that pass without our doing: a fail-over, a deadlock, a full disk, the row of this process being made anew.
_PASSING: Final = (psycopg.OperationalError, pg.ForeignKeyViolation, pg.TransactionRollback, DatabaseUnavailable)
_LONGEST_PAUSE: Final = 5.0
# Messages that wait for a key are let go by whoever gives it up; this is for those who died before they could.
_SWEEP_EVERY: Final = 30.0
_FOLLOWERS: Final = 100
# How many ids a claim of a group with bindings looks through for messages that match.
_SCAN: Final = 20_000
_CLEANUP: Final = 10.0


class ConsumeOptions(Struct, frozen=True):
    """How one consume() works.

    `grace` is in seconds, and `prefetch` None means as many as the handlers' pace asks for. A `transactional` handler
    is called within a transaction that also records what became of the message; with `batch` it takes up to so many
    messages at a time.
    """

    transactional: bool
    batch: int | None
    concurrency: int
    prefetch: int | None
    grace: float

    @property
    def slots(self) -> int:
        """How many messages can be handled at a time."""
        return self.concurrency * (self.batch or 1)


class Consumption:
    """Delivers one group's messages to one handler until it is stopped."""

    def __init__(
        self,
        subject: Subject,
        *,
        reader: Reader,
        handler: Handler,
        options: ConsumeOptions,
        stop: Stop,
        group: GroupInfo,
        declared: tuple[str, ...] | None = None,
    ) -> None:
        self.stream_id = subject.family.stream
        self.group_id = subject.group_id
        self._subject = subject
        self._reader = reader
        self._database, self._presence, self._stats = subject.database, subject.presence, subject.stats
        self._options = options
        self._pace = Pace(concurrency=options.slots, prefetch=options.prefetch)
        self._queue = WorkQueue()
        workers = Workers if options.batch is None else partial(BatchWorkers, batch=options.batch)
        self._workers = workers(
            subject,
            self._queue,
            lanes=lanes(handler, database=subject.database, proof=self._prove if options.transactional else None),
            concurrency=options.concurrency,
            read=reader.read,
            settle=self._settle,
            hungry=self._hungry,
            suspects=Suspects(subject, lost=self.lost),
            lost=self.lost,
        )
        self._recorder = Recorder(
            subject,
            finished=self._finish,
            retry_in=self._retry_in,
            check_fatal=self._check_fatal,
            chains=lambda: self._queue.chains,
            progress=self.progress,
        )
        self._holes = HoleWatch(subject)
        self._heads = Heads(subject)
        self._ranges: dict[UUID, Range] = {}
        self._finished: list[UUID] = []

        # What is worth asking the database for, as far as we heard.
        self._news = asyncio.Event()
        self._fresh = True
        self._look_again = False
        self._loose = True
        self._orphaned = False
        self._doubtful = False
        self._gated = group.concurrency != "parallel"
        self._waits = False
        self._bound = bool(group.bindings)
        self._declared = declared
        self._declaration = uuid4()
        self._unheld = False
        self._start_over = False
        self._changed = False
        self._swept_at = -_SWEEP_EVERY
        self._retry_at: float | None = 0.0
        self._retries_found = False
        self._unread: list[int] = []

        self._stop = stop
        self._fatal: Exception | None = None

    # Starting and stopping

    async def run(self) -> None:
        """Consume until stopped or cancelled; give back whatever was not done, uncharged."""
        running = asyncio.create_task(self._run(), name="sqlstreams-consume")
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            self._stop.end()
            # The caller may be cancelled again and leave; the work is given back all the same.
            self._presence.await_end(running)
            await asyncio.wait([running])
            raise
        await running

    async def _run(self) -> None:
        try:
            await self._stop.unless_asked(self._presence.join(self))
            if not self._stop.asked.is_set():
                await self._stop.unless_asked(self._hold_bindings())
            if not self._stop.asked.is_set():
                await self._deliver()
        finally:
            await self._presence.leave(self)
        if self._fatal is not None:
            raise self._fatal

    async def _deliver(self) -> None:
        workers = [
            asyncio.create_task(self._workers.run_one(number), name=f"sqlstreams-handler-{number}")
            for number in range(self._options.concurrency)
        ]
        feeder = asyncio.create_task(self._feed(), name="sqlstreams-feed")
        recorder = asyncio.create_task(self._recorder.run(), name="sqlstreams-record")
        try:
            await self._until_stopped(workers, feeder, recorder)
        finally:
            self._queue.close()
            await _cancel(feeder, *workers)
            self._workers.close()
            await self._clean_up(recorder)

    async def _until_stopped(
        self, workers: list[asyncio.Task[None]], feeder: asyncio.Task[None], recorder: asyncio.Task[None]
    ) -> None:
        asked = asyncio.create_task(self._stop.asked.wait())
        at_once = asyncio.create_task(self._stop.at_once.wait())
        try:
            done, _ = await asyncio.wait([asked, feeder, recorder, *workers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._queue.close()
            _log.info("%s: stopping, running handlers have %g s to finish", self._subject, self._options.grace)
            finishing = asyncio.create_task(_join(workers))
            await asyncio.wait([finishing, at_once], timeout=self._options.grace, return_when=asyncio.FIRST_COMPLETED)
            await _cancel(finishing)
        finally:
            await _cancel(asked, at_once)

    async def _clean_up(self, recorder: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(_CLEANUP):
                if self._fatal is None and not recorder.done():
                    await self._recorder.drain()
                await self._give_back()
                if self._declared is not None:
                    await self._database.query_once(
                        statements.drop_bindings(self._database.schema, token=self._declaration)
                    )
        except (TimeoutError, psycopg.Error, DatabaseUnavailable, NotInstalled) as error:
            if self._fatal is None:
                _log.warning("SQL0105 %s was not given back, its leases will run out: %s", self._subject, error)
        finally:
            await _cancel(recorder)

    async def _give_back(self) -> None:
        if self._finished:
            await self._give_back_finished()
        if held := self.progress():
            await self._database.query_once(
                statements.release_leases(
                    self._database.schema,
                    instance_id=self._presence.instance_id,
                    **columns(held),
                )
            )
        self._ranges.clear()
        self._recorder.retries.clear()
        self._queue.clear()
        async with self._presence.turn(self.group_id):
            await self._disown()

    def _fail(self, error: Exception) -> None:
        self._fatal = self._fatal or error
        self._stop.end()

    def _check_fatal(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
        if isinstance(cause, pg.UndefinedTable | pg.InvalidSchemaName):
            self._fail(NotFound("stream", self._subject.stream))
        elif isinstance(cause, pg.ForeignKeyViolation) and "group" in (cause.diag.constraint_name or ""):
            self._fail(self._group_is_gone())
        elif not is_broken(error) and not isinstance(cause, _PASSING):
            self._fail(error)

    def _group_is_gone(self) -> NotFound:
        return NotFound("consumer group", f"{self._subject.group} on {self._subject.stream}")

    # What the presence tells

    def progress(self) -> list[Progress]:
        """Return the state of the ranges that are held; any thread may ask."""
        return [Progress(held.token, *held.progress()) for held in list(self._ranges.values())]

    def tokens(self) -> list[UUID]:
        """Return the tokens of everything that is held or about to be given back."""
        return [*self._ranges, *self._recorder.retries, *self._finished]

    def held_keys(self) -> list[str]:
        """Return every key that is held."""
        return self._queue.chains.held()

    def lost(self, token: UUID) -> None:
        """Drop a range that was given to another process: start nothing more of it, record nothing for it."""
        held = self._ranges.pop(token, None)
        if held is None:
            return
        held.lost = True
        self._queue.drop(held)
        if self._gated:
            # At once: what we hold behind it would pass it.
            self._queue.pause()
            self._start_over = True
        self._stats.leases_lost += 1
        self._news.set()
        _log.warning("SQL0040 %s lost the lease on ids %d to %d to another process", self._subject, held.low, held.high)

    def woken(self) -> None:
        """Look for fresh messages."""
        if not self._fresh:
            self._stats.woken_by_notification += 1
        self._fresh = True
        if self._holes.is_prompt:
            self._news.set()

    def polled(self, found: Polled | None) -> None:
        """Look for what the poll found."""
        if found is None:
            self._fail(self._group_is_gone())
            return
        if found.fresh and not self._fresh:
            self._stats.woken_by_poll += 1
        self._gated |= found.gated
        self._bound = found.bound
        self._unheld |= found.unheld
        self._changed |= found.updated_at != self._subject.budgets.group.updated_at
        self._fresh |= found.fresh
        self._loose |= found.loose
        self._orphaned |= found.orphaned
        if found.keys_left:
            self._swept_at = -_SWEEP_EVERY
        if found.due_in is not None:
            self._retry_in(found.due_in)
        self._unread = self._reader.among(found.unread)
        if self._unread:
            self._retry_in(0.0)
        self._news.set()

    def doubt(self) -> None:
        """Compare notes with the server before going on."""
        self._doubtful = True
        self._fresh = True
        self._news.set()

    # What the workers and the recorder tell

    def _hungry(self) -> None:
        if self._queue.unstarted < self._pace.low_water:
            self._news.set()

    def _settle(self, work: Work, index: int, outcome: Outcome | None) -> None:
        if outcome is None:
            self._stats.handled += 1
        if outcome is None and isinstance(work, Range):
            self._succeeded(work, index)
        else:
            self._recorder.add(Returned(work, index, outcome))
        if work.keyed and (keyed := work.keyed.get(work.rows[index][ID])) is not None:
            self._advance(keyed, outcome)

    def _succeeded(self, held: Range, index: int) -> None:
        if self._options.transactional or self._subject.budgets.group.delivery_log != "all":
            if held.finish_one(index):
                self._finish(held)
        elif held.keyed or held.end_one():
            self._recorder.add(Returned(held, index, None))
        else:
            self._recorder.add_soon(Returned(held, index, None))

    def _prove(self, work: Work, indexes: Sequence[int], result: object) -> statements.Statement[Any]:
        """Return what records, at the end of a handler's transaction, that messages are done."""
        message_ids = [work.rows[index][ID] for index in indexes]
        if self._options.batch is not None:
            outcomes = read_outcomes(result, len(indexes))
            message_ids = [each for each, error in zip(message_ids, outcomes, strict=True) if error is None]
        if isinstance(work, Range):
            return statements.complete_in_transaction(
                self._subject.family,
                instance_id=self._presence.instance_id,
                token=work.token,
                message_ids=message_ids,
                resolved=work.progress()[0],
            )
        return statements.complete_exceptions_in_transaction(
            self._subject.family,
            group_id=self.group_id,
            instance_id=self._presence.instance_id,
            token=work.token,
            message_ids=message_ids,
        )

    def _advance(self, keyed: Keyed, outcome: Outcome | None) -> None:
        chains = self._queue.chains
        if keyed.ordered and outcome is not None and outcome.kind in ("failed", "delayed", "unread", "undone"):
            # It may turn out to be dead, and then those behind it are let go again at once.
            for work, index in self._queue.take_back(keyed.key):
                self._recorder.add(Returned(work, index, DEFERRED))
            self._recorder.key_ended(keyed.key)
        elif following := chains.end(keyed.key):
            self._queue.put_next_of_key(following)
        else:
            self._recorder.key_ended(keyed.key)

    def _finish(self, held: Range) -> None:
        if self._ranges.pop(held.token, None) is not None:
            self._finished.append(held.token)
            self._news.set()

    def _retry_in(self, seconds: float) -> None:
        at = time.monotonic() + max(0.0, seconds)
        if self._retry_at is None or at < self._retry_at:
            self._retry_at = at
            self._news.set()

    # Claiming

    async def _feed(self) -> None:
        pause = 0.0
        while not self._stop.asked.is_set():
            self._news.clear()
            try:
                if not await self._feed_once():
                    await self._wait_for_news()
                pause = 0.0
            except (psycopg.Error, DatabaseUnavailable, NotInstalled) as error:
                self._check_fatal(error)
                self.doubt()
                pause = min(max(pause * 2, 0.1), _LONGEST_PAUSE)
                _log.warning("SQL0105 claiming for %s failed, again in %.1f s: %s", self._subject, pause, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1))

    async def _feed_once(self) -> bool:
        if self._start_over:
            await self._begin_anew()
        if self._changed:
            await self._reread_group()
        if self._unheld:
            await self._settle_bindings()
        if self._doubtful:
            self._doubtful = False
            await self._hold_bindings()
            async with self._presence.turn(self.group_id):
                await self._disown()
        if self._orphaned:
            self._orphaned = False
            await self._free_exceptions()
        if self._gated and time.monotonic() - self._swept_at > _SWEEP_EVERY:
            await self._free_keys()
        progressed = await self._claim_retries()
        if self._look_again and self._finished:
            self._fresh = True
        if self._queue.unstarted < self._pace.low_water:
            async with self._presence.turn(self.group_id):
                progressed |= await self._take_over() or await self._claim()
        if self._finished:
            await self._give_back_finished()
        return progressed

    async def _wait_for_news(self) -> None:
        timeouts = [] if self._retry_at is None else [max(0.0, self._retry_at - time.monotonic())]
        if self._holes.is_waiting:
            timeouts.append(self._holes.pause)
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the news.
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeouts, default=None)):
                await self._news.wait()
        if self._holes.is_waiting:
            self._fresh = True

    async def _claim(self) -> bool:
        if not self._fresh:
            return False
        self._fresh = self._look_again = False
        await self._holes.look()
        # What is being finished stays known until that is answered: a twin of ours may disown meanwhile.
        token, finished = uuid4(), list(self._finished)
        claimed, sorted_out = await self._ask_for_range(token, finished)
        del self._finished[: len(finished)]
        self._stats.claims += 1
        if claimed.at_hole:
            # Where keys matter it may be no hole, but a range that somebody has to take over first.
            self._loose |= self._gated
            self._fresh = await self._holes.meet()
            return self._fresh
        self._holes.closed()
        if claimed.high is None:
            return False
        # A claim that was not filled has met the end or a hole; it is worth another look when its work is finished.
        self._fresh = claimed.is_full
        self._look_again = not self._fresh
        rows = claimed.rows
        if not rows:
            return True
        self._pace.claimed(rows, now=time.monotonic())
        if self._is_unprepared(rows):
            return True
        await self._hold(token, rows, sorted_out, low=claimed.low, high=claimed.high, alone=False)
        return True

    def _is_unprepared(self, rows: list[Columns]) -> bool:
        """Say whether messages were claimed without what they ask for, and have it done from now on.

        Nothing of them has begun: they are given back as unknown, and taken again.
        """
        asking = [row for row in rows if row[OPTIONS] is not None]
        keyed = not self._gated and any(asks_for_keys(row) for row in asking)
        later = not (self._gated or self._waits) and any(is_for_later(row) for row in asking)
        self._gated |= keyed
        self._waits |= later
        self._doubtful |= keyed or later
        return keyed or later

    async def _ask_for_range(self, token: UUID, finished: list[UUID]) -> tuple[Claimed, SortedOut]:
        limit, is_bound = self._pace.limit, self._bound
        asked: dict[str, Any] = {
            "group_id": self.group_id,
            "instance_id": self._presence.instance_id,
            "token": token,
            "limit": limit,
            "settled": self._holes.settled,
            "finished": finished,
            "gated": self._gated,
        }
        family = self._subject.family
        claim = statements.claim_bound(family, scan=_SCAN, **asked) if is_bound else statements.claim(family, **asked)
        rows, sorted_out = await self._lease(claim, token=token, steal=False)
        return read_bound_claim(rows) if is_bound else read_claim(rows, limit=limit), sorted_out

    async def _lease(
        self, statement: statements.Statement[Columns], *, token: UUID, steal: bool
    ) -> tuple[list[Columns], SortedOut]:
        """Ask for a range; where it matters, sort out which of its messages may run before anyone else claims."""
        family, group_id = self._subject.family, self.group_id
        wait = statements.wait_until_due(family, group_id=group_id, token=token)
        if not (self._gated or self._waits):
            return await self._database.query_once(statement), ALL_MAY_RUN
        if not self._gated:
            rows, waiting = await self._database.query_together(statement, wait)
            return rows, SortedOut([], waiting)
        schema, instance_id = self._database.schema, self._presence.instance_id
        *_, rows, waiting, gated = await self._database.query_together(
            statements.lock_cursor(schema, group_id=group_id),
            *([statements.lock_loose_leases(schema, group_id=group_id, instance_id=instance_id)] if steal else []),
            statement,
            # Before the keys: what waits takes none, but in order it has its place.
            wait,
            statements.gate(
                family,
                group_id=group_id,
                instance_id=instance_id,
                token=token,
                chain=self._queue.chains.extendable(),
                steal=steal,
            ),
        )
        return rows, SortedOut(gated, waiting)

    async def _hold(
        self, token: UUID, rows: list[Columns], sorted_out: SortedOut, *, low: int, high: int, alone: bool
    ) -> None:
        rows, gated = self._without_waiting(rows, sorted_out.waiting), sorted_out.gated
        heads = await self._heads.of(rows)
        deferred = {each.message_id for each in gated if each.deferred}
        keyed = {
            each.message_id: Keyed(each.key, ordered=each.concurrency == "ordered")
            for each in gated
            if not each.deferred
        }
        blocked = set()
        for each in gated:
            if each.deferred:
                # Whoever has its key may have given it up before this row could be seen.
                self._recorder.key_freed(each.key)
            elif not self._queue.chains.hold(each.key):
                blocked.add(each.message_id)
        messages = [row for row in rows if row[ID] not in deferred] if deferred else rows
        self._stats.claimed += len(messages)
        self._stats.deferred += len(deferred)
        held = Range(token, messages, low=low, high=high, keyed=keyed, heads=heads, alone=alone)
        if not messages:
            self._finished.append(token)
            return
        self._ranges[token] = held
        for index in [index for index, row in enumerate(messages) if row[ID] in blocked] if blocked else ():
            # An earlier message of its key failed while this claim was under way.
            held.taken_back.add(index)
            self._recorder.add(Returned(held, index, DEFERRED))
        self._queue.put(held)

    def _without_waiting(self, rows: list[Columns], waiting: list[statements.Recorded]) -> list[Columns]:
        if not waiting:
            return rows
        for each in waiting:
            if each.state == "waiting":
                self._stats.waiting += 1
                self._retry_in(each.due_in)
        ids = {each.message_id for each in waiting}
        return [row for row in rows if row[ID] not in ids]

    async def _take_over(self) -> bool:
        if not self._loose:
            return False
        token = uuid4()
        rows, sorted_out = await self._lease(
            statements.take_over(
                self._subject.family,
                group_id=self.group_id,
                instance_id=self._presence.instance_id,
                token=token,
                gated=self._gated,
            ),
            token=token,
            steal=True,
        )
        self._loose = bool(rows)
        if not rows:
            return False
        low, high, died, reclaims, killer = rows[0][:5]
        messages = [row[5:] for row in rows if row[5] is not None]
        if killer is not None:
            _log.warning("SQL0107 message %d of %s was running alone when its process died", killer, self._subject)
            self._presence.poll_soon()
        if died:
            self._stats.reclaimed += len(messages)
            _log.warning(
                "SQL0104 %s took over ids %d to %d from a dead process, %d are delivered again",
                self._subject, low, high, len(messages),
            )  # fmt: skip
        if self._is_unprepared(messages):
            return True
        await self._hold(token, messages, sorted_out, low=low, high=high, alone=reclaims > 0)
        self._swept_at = -_SWEEP_EVERY  # its keys, when this was the last of its ranges
        return True

    async def _claim_retries(self) -> bool:
        if self._retry_at is None or self._retry_at > time.monotonic() or self._queue.holds_retries_or_suspects():
            return False
        self._retry_at = None
        token, waited = uuid4(), max(self._options.slots, self._pace.limit)
        async with self._presence.turn(self.group_id):
            rows = await self._database.query_once(
                statements.claim_exceptions(
                    self._subject.family,
                    group_id=self.group_id,
                    instance_id=self._presence.instance_id,
                    token=token,
                    limit=self._options.slots,
                    waited=waited,
                    free=(self._options.concurrency - self._queue.running) * (self._options.batch or 1),
                    followers=_FOLLOWERS,
                    versions=self._unread,
                )
            )
            for row in rows:
                if row[ID] is None:
                    self._recorder.key_freed(row[KEY])
            rows = [row for row in rows if row[ID] is not None]
            if rows:
                heads = await self._heads.of(rows)
                retries = self._recorder.retries[token] = Retries(token, rows, heads=heads)
                for keyed in retries.keyed.values():
                    self._queue.chains.hold(keyed.key)
                self._queue.put_first(retries)
        self._stats.retried += len(rows)
        if len(rows) >= waited:
            self._pace.claimed(rows, now=time.monotonic())
        if len(rows) >= self._options.slots:
            self._retry_at = 0.0
        elif rows or self._retries_found:
            # It says when the next one is due. When nothing was found twice, rows that are due are locked by others.
            self._presence.poll_soon()
        self._retries_found = bool(rows)
        return self._retries_found

    async def _free_exceptions(self) -> None:
        statement = statements.free_exceptions(
            self._subject.family, group_id=self.group_id, instance_id=self._presence.instance_id
        )
        for freed in await self._database.query_once(statement):
            self._retry_in(freed.due_in)
        self._swept_at = -_SWEEP_EVERY  # the keys of their process are free as well

    async def _free_keys(self) -> None:
        self._swept_at = time.monotonic()
        for row in await self._database.query_once(statements.free_keys(self._subject.family, group_id=self.group_id)):
            self._recorder.key_freed(row.key)

    async def _reread_group(self) -> None:
        for group in await self._database.query_once(
            statements.reread_group(self._database.schema, group_id=self.group_id)
        ):
            self._subject.budgets.change(group)
        self._changed = False

    async def _hold_bindings(self) -> None:
        """Have the bindings that this process declared stay in force while it lives, or wait to be put in force."""
        if self._declared is not None:
            bindings = self._declared
            await self._database.run(
                lambda: acts.hold_bindings(
                    self._database.schema,
                    stream_id=self.stream_id,
                    group_id=self.group_id,
                    instance_id=self._presence.instance_id,
                    token=self._declaration,
                    bindings=bindings,
                )
            )

    async def _settle_bindings(self) -> None:
        self._unheld = False
        await self._database.run(
            lambda: acts.settle_bindings(self._database.schema, stream_id=self.stream_id, group_id=self.group_id)
        )
        self._presence.poll_soon()

    async def _begin_anew(self) -> None:
        """Give back everything that has not begun and claim it again: what we held of keys may be others' by now."""
        self._queue.pause()
        await self._queue.quiet()
        await self._recorder.drain()
        await self._give_back()
        self._start_over = False
        self._queue.resume()

    async def _give_back_finished(self) -> None:
        finished = list(self._finished)
        await self._database.query_once(
            statements.finish(self._database.schema, instance_id=self._presence.instance_id, finished=finished)
        )
        del self._finished[: len(finished)]

    async def _disown(self) -> None:
        instance_id, known = self._presence.instance_id, self._presence.known(self.group_id)
        await self._database.query_once(
            statements.disown(self._database.schema, group_id=self.group_id, instance_id=instance_id, known=known)
        )
        await self._database.query_once(
            statements.release_exceptions(
                self._subject.family, group_id=self.group_id, instance_id=instance_id, known=known
            )
        )
        if self._gated:
            known_keys = self._presence.known_keys(self.group_id)
            await self._database.query_once(
                statements.disown_keys(
                    self._database.schema, group_id=self.group_id, instance_id=instance_id, known=known_keys
                )
            )
            self._swept_at = -_SWEEP_EVERY
        self._loose = True
        self._retry_at = 0.0


async def _join(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
