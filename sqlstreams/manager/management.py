"""The manager as one client runs it: once, however many of its calls want it run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlstreams.database import AsyncDatabase
from sqlstreams.manager.candidate import Candidate
from sqlstreams.manager.duties import make_duties
from sqlstreams.manager.lease import Lease
from sqlstreams.wake import Hearing, Notifier


class Management:
    """Lets a client's consumptions, and whoever else wants it, share one candidate."""

    def __init__(self, database: AsyncDatabase, *, hearing: Hearing, notifier: Notifier, lease_ttl: float) -> None:
        self._database = database
        self._hearing = hearing
        self._notifier = notifier
        self._lease_ttl = lease_ttl
        self._users = 0
        self._running: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run the manager beside a block, if it is this process's turn; the last one to leave gives the lease back."""
        self._users += 1
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="sqlstreams-manager")
        running = self._running
        try:
            yield running
        finally:
            self._users -= 1
            if not self._users:
                self._running = None
                running.cancel()
                self._ending.add(running)
                running.add_done_callback(self._ended)
                await asyncio.wait([running])

    async def close(self) -> None:
        """Wait until the lease is given back, where nobody waits for that any more."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _run(self) -> None:
        lease = Lease(self._lease_ttl)
        duties = make_duties(self._database, self._notifier)
        await Candidate(self._database, lease=lease, duties=duties, hearing=self._hearing).run()

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._ending.discard(running)
        if not running.cancelled():
            running.exception()  # or asyncio complains that nobody has asked
