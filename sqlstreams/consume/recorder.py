"""Writing down what became of deliveries that did not just succeed, until the database has it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final
from uuid import UUID

import psycopg
from msgspec import Struct

from sqlstreams import statements
from sqlstreams.consume.budget import judge
from sqlstreams.consume.key_chains import KeyChains
from sqlstreams.consume.outcome import Outcome
from sqlstreams.consume.presence import Progress, columns
from sqlstreams.consume.ranges import ID, SCHEMA_VERSION, Keyed, Range, Retries, Work
from sqlstreams.consume.subject import Subject
from sqlstreams.errors import DatabaseUnavailable, NotInstalled
from sqlstreams.statements import Failures, Recorded

_log = logging.getLogger("sqlstreams.consume")

_LONGEST_PAUSE: Final = 5.0
# How long successes that the history keeps may wait for each other: what is not recorded is repeated after a crash.
_GATHER: Final = 0.25


class Returned(Struct, frozen=True):
    """One delivery that ended: its work, its place there, and its outcome (None: it succeeded)."""

    work: Work
    index: int
    outcome: Outcome | None

    @property
    def message_id(self) -> int:
        """The id of the message."""
        message_id: int = self.work.rows[self.index][ID]
        return message_id

    @property
    def keyed(self) -> Keyed | None:
        """The key of the message, when it matters."""
        return self.work.keyed.get(self.message_id)


class Recorder:
    """Records failures of fresh messages, and every outcome of retries, in batches of what came meanwhile.

    Then it gives up the keys that have nothing more to run, and lets the next messages of free keys run.
    `finished` hears of ranges whose last message this settled, `retry_in` of the seconds until a retry is due;
    `chains` is asked for the keys of this process and `progress` how far its ranges are.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        finished: Callable[[Range], None],
        retry_in: Callable[[float], None],
        check_fatal: Callable[[Exception], None],
        chains: Callable[[], KeyChains],
        progress: Callable[[], list[Progress]],
    ) -> None:
        self.retries: dict[UUID, Retries] = {}
        self._subject = subject
        self._finished = finished
        self._retry_in = retry_in
        self._check_fatal = check_fatal
        self._chains = chains
        self._progress = progress
        self._idle_keys: set[str] = set()
        self._free_keys: set[str] = set()
        self._waiting: list[Returned] = []
        self._added = asyncio.Event()
        self._emptied = asyncio.Event()
        self._is_recording = False
        self._gathering: asyncio.TimerHandle | None = None

    def add(self, returned: Returned) -> None:
        """Have a delivery's end recorded."""
        self._waiting.append(returned)
        self._added.set()

    def add_soon(self, returned: Returned) -> None:
        """Have a delivery's end recorded together with what ends in the next moments."""
        self._waiting.append(returned)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER, self._added.set)

    def key_ended(self, key: str) -> None:
        """Have a key given up once everything added so far is recorded, unless something more of it runs by then."""
        self._idle_keys.add(key)
        self._added.set()

    def key_freed(self, key: str) -> None:
        """Have the next message of a key run, if nobody has the key."""
        self._free_keys.add(key)
        self._added.set()

    async def drain(self) -> None:
        """Wait until everything that was added is recorded."""
        self._added.set()
        while self._waiting or self._idle_keys or self._free_keys or self._is_recording:
            self._emptied.clear()
            await self._emptied.wait()

    async def run(self) -> None:
        """Record until cancelled; what cannot be recorded is tried again."""
        pause = 0.0
        while True:
            await self._added.wait()
            self._added.clear()
            self._stop_gathering()
            self._is_recording = True
            try:
                await self._record(list(self._waiting))
                await self._release_keys()
                await self._promote()
                self._is_recording = False
                self._emptied.set()
                pause = 0.0
            except (psycopg.Error, DatabaseUnavailable, NotInstalled) as error:
                self._check_fatal(error)
                pause = min(max(pause * 2, 0.1), _LONGEST_PAUSE)
                _log.warning("SQL0105 recording for %s failed, again in %.1f s: %s", self._subject, pause, error)
                self._added.set()
                await asyncio.sleep(pause * random.uniform(0.5, 1))

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    async def _record(self, batch: list[Returned]) -> None:
        await self._record_fresh([each for each in batch if isinstance(each.work, Range)])
        for token in {each.work.token for each in batch if isinstance(each.work, Retries)}:
            await self._record_retries(token, [each for each in batch if each.work.token == token])
        del self._waiting[: len(batch)]

    async def _release_keys(self) -> None:
        if not self._idle_keys:
            return
        # While a claim is under way, it may put a message behind one of these keys.
        async with self._subject.presence.turn(self._subject.group_id):
            # What ended since the last record is recorded first: its key is for the next round.
            unrecorded = {each.keyed.key for each in self._waiting if each.keyed is not None}
            ended = self._idle_keys - unrecorded
            self._idle_keys -= ended
            # A key that is not idle has messages left here, whose end brings it back.
            if keys := self._chains().idle(sorted(ended)):
                try:
                    await self._give_up(keys)
                except BaseException:
                    self._idle_keys.update(keys)
                    raise
                self._chains().forget(keys)
                self._free_keys.update(keys)

    async def _give_up(self, keys: list[str]) -> None:
        database, instance_id = self._subject.database, self._subject.presence.instance_id
        held = self._progress()
        await database.query_together(
            # First, what is done stays done: else a later message could be handled before a repeated one.
            statements.checkpoint(
                database.schema,
                instance_id=instance_id,
                **columns(held),
            ),
            statements.release_keys(
                database.schema, group_id=self._subject.group_id, instance_id=instance_id, keys=keys
            ),
        )

    async def _promote(self) -> None:
        keys, self._free_keys = self._free_keys, set()
        if not keys:
            return
        try:
            promoted = await self._subject.database.query_once(
                statements.promote(self._subject.family, group_id=self._subject.group_id, keys=sorted(keys))
            )
        except BaseException:
            self._free_keys |= keys
            raise
        if promoted:
            self._retry_in(0.0)

    async def _record_fresh(self, returned: list[Returned]) -> None:
        ours = [each for each in returned if not each.work.lost]
        await self._record_successes([each for each in ours if each.outcome is None])
        await self._record_failures([each for each in ours if each.outcome is not None])
        for each in ours:
            if isinstance(each.work, Range) and each.work.finish_one(each.index):
                self._finished(each.work)

    async def _record_successes(self, ours: list[Returned]) -> None:
        if ours:
            await self._subject.database.query_once(
                statements.record_successes(
                    self._subject.family,
                    group_id=self._subject.group_id,
                    instance_id=self._subject.presence.instance_id,
                    tokens=[each.work.token for each in ours],
                    message_ids=[each.message_id for each in ours],
                )
            )

    async def _record_failures(self, ours: list[Returned]) -> None:
        if ours:
            recorded = await self._subject.database.query_once(
                statements.record_exceptions(
                    self._subject.family,
                    group_id=self._subject.group_id,
                    instance_id=self._subject.presence.instance_id,
                    tokens=[each.work.token for each in ours],
                    failures=self._failures(ours),
                    schema_versions=[each.work.rows[each.index][SCHEMA_VERSION] for each in ours],
                    message_keys=[each.keyed.key if each.keyed else None for each in ours],
                    concurrencies=[each.keyed.concurrency if each.keyed else None for each in ours],
                )
            )
            self._count(recorded, ours)

    async def _record_retries(self, token: UUID, returned: list[Returned]) -> None:
        await self._complete(token, [each.message_id for each in returned if each.outcome is None])
        await self._put_back(token, [each for each in returned if each.outcome is not None])
        for each in returned:
            if isinstance(each.work, Retries) and each.work.finish_one():
                self.retries.pop(token, None)

    async def _complete(self, token: UUID, message_ids: list[int]) -> None:
        if message_ids:
            await self._subject.database.query_once(
                statements.complete_exceptions(
                    self._subject.family,
                    group_id=self._subject.group_id,
                    instance_id=self._subject.presence.instance_id,
                    token=token,
                    message_ids=message_ids,
                )
            )

    async def _put_back(self, token: UUID, failed: list[Returned]) -> None:
        if failed:
            recorded = await self._subject.database.query_once(
                statements.return_exceptions(
                    self._subject.family,
                    group_id=self._subject.group_id,
                    instance_id=self._subject.presence.instance_id,
                    token=token,
                    failures=self._failures(failed),
                )
            )
            self._count(recorded, failed)

    def _count(self, recorded: list[Recorded], returned: list[Returned]) -> None:
        stats = self._subject.stats
        kinds = {each.message_id: each.outcome.kind for each in returned if each.outcome is not None}
        for row in recorded:
            kind = kinds[row.message_id]
            stats.delayed += kind == "delayed"
            stats.deferred += kind == "deferred"
            stats.unread += kind == "unread"
            stats.superseded += kind == "superseded"
            stats.failed += kind in ("failed", "dead")
            stats.dead += row.state == "dead"
            if row.state == "ready":
                self._retry_in(row.due_in)

    def _failures(self, returned: list[Returned]) -> Failures:
        outcomes = [each.outcome for each in returned if each.outcome is not None]
        rows = [each.work.rows[each.index] for each in returned]
        verdicts = [
            judge(outcome, self._subject.budgets.of(row), row) for outcome, row in zip(outcomes, rows, strict=True)
        ]
        return Failures(
            message_ids=[each.message_id for each in returned],
            outcomes=[outcome.kind for outcome in outcomes],
            states=[verdict.state for verdict in verdicts],
            pauses=[verdict.pause for verdict in verdicts],
            error_types=[outcome.error_type for outcome in outcomes],
            errors=[verdict.error for verdict in verdicts],
        )
