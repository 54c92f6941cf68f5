"""Candidates with duties that only take notes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from sqlstreams import AsyncClient, DutyStatus
from sqlstreams.database import AsyncDatabase, address
from sqlstreams.manager.candidate import Candidate
from sqlstreams.manager.duty import Duty, Ran
from sqlstreams.manager.lease import Lease
from sqlstreams.wake import Hearing


class Notes:
    """A duty that notes when each of its batches began; `work` is what it does then."""

    def __init__(
        self, name: str = "notes", *, period: float = 0.02, work: Callable[[], Awaitable[Ran]] | None = None
    ) -> None:
        self.name = name
        self.period = period
        self.began: list[float] = []
        self._work = work

    async def run_once(self) -> Ran:
        self.began.append(time.monotonic())
        return Ran(done=1) if self._work is None else await self._work()


@asynccontextmanager
async def database(url: str, *, pool_size: int = 4) -> AsyncIterator[AsyncDatabase]:
    opened = AsyncDatabase(address(url, schema="sqlstreams", pool_size=pool_size, timeout=10.0))
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


def candidate(on: AsyncDatabase, *duties: Duty, ttl: float = 1.0, listen: bool = True) -> tuple[Candidate, Lease]:
    lease = Lease(ttl)
    hearing = Hearing(on, listen_conninfo=None if listen else "host=/nowhere connect_timeout=1")
    return Candidate(on, lease=lease, duties=duties, hearing=hearing), lease


@asynccontextmanager
async def standing(
    url: str, *duties: Duty, ttl: float = 1.0, listen: bool = True
) -> AsyncIterator[tuple[asyncio.Task[None], Lease]]:
    """Run a candidate beside the block; end it as a clean stop does."""
    async with database(url) as on:
        one, lease = candidate(on, *duties, ttl=ttl, listen=listen)
        task = asyncio.create_task(one.run())
        try:
            yield task, lease
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def holders(client: AsyncClient) -> list[int]:
    """Return the terms that are held now."""
    return [each.term for each in (await client.manager.list()).instances if not each.expired]


async def status_of(client: AsyncClient, name: str) -> DutyStatus:
    (found,) = [each for each in (await client.manager.list()).duties if each.name == name]
    return found


async def execute(url: str, *texts: str) -> list[tuple[Any, ...]]:
    """Run SQL as an operator would, and return the rows of the last text."""
    rows: Sequence[tuple[Any, ...]] = []
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for text in texts:
            cursor = await connection.execute(text.encode())
            rows = await cursor.fetchall() if cursor.description else []
    return list(rows)
