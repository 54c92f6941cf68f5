"""This process among those that may run the manager: it asks for the lease, and does the duties while it has it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psycopg

from sqlstreams import statements
from sqlstreams.database import AsyncDatabase
from sqlstreams.errors import DatabaseUnavailable, NotInstalled
from sqlstreams.manager.duty import Duty
from sqlstreams.manager.duty_loop import DutyLoop
from sqlstreams.manager.lease import Lease, clock
from sqlstreams.migration import library_version
from sqlstreams.names import channel
from sqlstreams.statements import DutyReport, LeaseAnswer, Statement
from sqlstreams.wake import TOPICS, Hearing, News

_log = logging.getLogger("sqlstreams.manager")

_RENEWALS_PER_LEASE: Final = 2
_SHORTEST_ANSWER: Final = 1.0
_LONGEST_PAUSE: Final = 5.0
# Many may be waiting for the same lease to end; the database is asked by one after the other.
_JITTER: Final = 0.05
_FAREWELL: Final = 3.0


class Candidate:
    """Runs the manager when it is this process's turn.

    Nothing depends on there being only one: a second one, or a lease that ends while a duty runs, only costs work.
    """

    def __init__(self, database: AsyncDatabase, *, lease: Lease, duties: Sequence[Duty], hearing: Hearing) -> None:
        self._database = database
        self._lease = lease
        self._hearing = hearing
        self._ask_now = asyncio.Event()
        self._loops = [
            DutyLoop(duty, may_begin=self._may_begin, hears_news=self._hears_news, report_soon=self._ask_now.set)
            for duty in duties
        ]
        self._running: list[asyncio.Task[None]] = []
        self._left: set[asyncio.Task[None] | asyncio.Task[LeaseAnswer]] = set()
        self._failures = 0
        self._hears = False
        # Whether the database may think that the lease is ours.
        self._may_hold = False

    async def run(self) -> None:
        """Ask for the lease and use it, until cancelled. Raises `NotInstalled` when the installation is gone."""
        try:
            while True:
                await self._wait(await self._ask_once())
        finally:
            await self._hearing.leave(self._hear)
            await self._resign()

    def _may_begin(self) -> bool:
        return self._lease.left > 0

    def _hears_news(self) -> bool:
        return self._hearing.listener is not None and self._hearing.listener.connected

    def _hear(self, news: News) -> None:
        if news is None or news == "manager":
            self._ask_now.set()
        for loop in self._loops:
            if loop.name == news or (news is None and loop.name in TOPICS):
                loop.wake()

    async def _wait(self, pause: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._ask_now.wait()
                if self._lease.term is None:
                    await asyncio.sleep(random.uniform(0, _JITTER))
        self._ask_now.clear()

    # Asking for the lease

    async def _ask_once(self) -> float:
        """Ask, act on the answer, and return after how many seconds to ask again."""
        if self._lease.term is not None and not self._lease.left:
            await self._step_down("it ran out, as this process was frozen or busy")
        asked_at = clock()
        reports = self._reports()
        try:
            answer = await self._ask(reports)
        except NotInstalled:
            await self._step_down("the installation is gone")
            raise
        except (psycopg.Error, DatabaseUnavailable, TimeoutError) as error:
            return await self._fail(error)
        self._failures = 0
        if not self._hears:
            self._hears = True
            self._hearing.join(self._hear)
        return await self._act_on(answer, asked_at=asked_at)

    async def _act_on(self, answer: LeaseAnswer, *, asked_at: float) -> float:
        held = self._lease.term
        self._lease.hear(answer, asked_at=asked_at)
        if held is not None and held != self._lease.term:
            await self._end_duties("the lease went to another process, or the manager was suspended")
        self._obey(answer.suspended)
        if self._lease.term is None:
            return self._standby(answer)
        self._may_hold = True
        if not self._running:
            self._begin()
        return self._lease.ttl / _RENEWALS_PER_LEASE

    async def _ask(self, reports: Sequence[DutyReport]) -> LeaseAnswer:
        statement = statements.take_or_renew(
            self._database.schema,
            token=self._lease.token,
            hostname=socket.gethostname()[:255],
            pid=os.getpid(),
            library=library_version(),
            ttl=self._lease.ttl,
            reports=reports,
        )
        asking = asyncio.create_task(self._report(statement, reports), name="sqlstreams-ask-for-lease")
        try:
            await asyncio.wait([asking], timeout=self._lease.left or max(self._lease.ttl, _SHORTEST_ANSWER))
        finally:
            if not asking.done():
                self._may_hold = True
                self._keep(asking)
        if not asking.done():
            # A query that is cancelled on a silent network takes its time to end, and the lease does not wait for it.
            asking.cancel()
            raise TimeoutError("no answer within the lease")
        return asking.result()

    async def _report(self, statement: Statement[LeaseAnswer], reports: Sequence[DutyReport]) -> LeaseAnswer:
        (answer,) = await self._database.query_once(statement)
        # Also when nobody waits for the answer any more: what is written down must not be reported again.
        self._take_note(reports)
        return answer

    async def _fail(self, error: Exception) -> float:
        self._may_hold = True  # whether it took effect is not known
        self._failures += 1
        pause = min(0.1 * 2.0 ** min(self._failures, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1)
        if self._lease.term is not None:
            await self._step_down(f"it could not be renewed: {error}")
        else:
            _log.info("SQL0105 asking for the manager's lease failed, again in %.1f s: %s", pause, error)
        return pause

    def _standby(self, answer: LeaseAnswer) -> float:
        self._may_hold = False
        pause = self._lease.ttl if answer.retry_in is None else max(0.0, answer.retry_in)
        return min(pause, self._lease.ttl) + random.uniform(0.1, 1) * min(_JITTER, self._lease.ttl / 10)

    # Having it

    def _begin(self) -> None:
        _log.info("this process runs the manager now, term %d", self._lease.term)
        self._running = [asyncio.create_task(loop.run(), name=f"sqlstreams-duty-{loop.name}") for loop in self._loops]

    def _obey(self, suspended: Sequence[str]) -> None:
        for loop in self._loops:
            was, loop.suspended = loop.suspended, loop.name in suspended
            if was and not loop.suspended:
                loop.wake()

    async def _step_down(self, reason: str) -> None:
        """Begin nothing more, and cancel what runs; what cannot be cancelled at once is left to end by itself."""
        self._lease.give_up()
        await self._end_duties(reason)

    async def _end_duties(self, reason: str | None = None) -> None:
        running, self._running = self._running, []
        if running and reason is not None:
            _log.warning("SQL0111 this process does not run the manager any more: %s", reason)
        for task in running:
            self._leave(task)
        if running:
            await asyncio.wait(running, timeout=_SHORTEST_ANSWER)

    def _leave(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._keep(task)

    def _keep(self, task: asyncio.Task[None] | asyncio.Task[LeaseAnswer]) -> None:
        self._left.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None] | asyncio.Task[LeaseAnswer]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio complains that nobody has asked

    # Leaving

    async def _resign(self) -> None:
        self._lease.give_up()
        await self._end_duties()
        if self._left:
            await asyncio.wait(list(self._left), timeout=_FAREWELL)
        for task in self._left:
            task.cancel()
        if self._may_hold:
            resigning = asyncio.create_task(self._give_back(), name="sqlstreams-resign")
            await asyncio.wait([resigning], timeout=_FAREWELL)
            if not resigning.done():
                self._leave(resigning)

    async def _give_back(self) -> None:
        # Without it the lease ends by itself.
        with suppress(psycopg.Error, DatabaseUnavailable, NotInstalled):
            await self._database.query_once(
                statements.resign(
                    self._database.schema,
                    token=self._lease.token,
                    reports=self._reports(),
                    channel=channel(self._database.schema),
                )
            )

    # What the duties did

    def _reports(self) -> list[DutyReport]:
        return [report for loop in self._loops if (report := loop.account.report()) is not None]

    def _take_note(self, reports: Sequence[DutyReport]) -> None:
        written = {report.name: report for report in reports}
        for loop in self._loops:
            if loop.name in written:
                loop.account.written(written[loop.name])
