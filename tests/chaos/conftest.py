"""Processes that end with their test, and a group to consume."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sqlstreams import AsyncClient, AsyncConsumer
from tests.chaos.processes import Process
from tests.chaos.worker import Settings
from tests.support import Note, eventually

Start = Callable[..., Process]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start a worker on the test's database; `url=` points it elsewhere."""
    processes: list[Process] = []
    numbers = itertools.count(1)

    def start_one(**settings: Any) -> Process:
        journal = str(tmp_path / f"journal-{next(numbers)}")
        processes.append(Process(Settings(**{"url": database_url, "journal": journal, **settings})))
        return processes[-1]

    yield start_one
    for process in processes:
        process.end()


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    """Give a client of the test's database with a short lease, which may destroy."""
    async with AsyncClient(database_url, lease_ttl=timedelta(seconds=1), allow_destroy=True) as client:
        yield client


@pytest.fixture
async def group(client: AsyncClient) -> AsyncConsumer[Note]:
    """Give a group `g` of a stream `notes`, which retries soon."""
    stream = await client.stream("notes", Note).register()
    return await stream.consumer("g").register(retry_base=timedelta(milliseconds=50), retry_exponent=1)


async def produce(client: AsyncClient, count: int) -> list[int]:
    """Append messages and return their ids."""
    receipts = await client.stream("notes", Note).producer().produce_many([Note(str(n)) for n in range(count)])
    return [receipt.id for receipt in receipts]


async def all_is_done(group: AsyncConsumer[Note]) -> None:
    """Wait until a group has handled everything, holds nothing and keeps no exception row."""

    async def is_done() -> bool:
        status = await group.status()
        return (status.lag, status.leases, status.ready, status.inflight, status.dead) == (0, 0, 0, 0, 0)

    await eventually(is_done)
