"""A client to look at the manager with."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sqlstreams import AsyncClient
from tests.chaos.processes import Process
from tests.chaos.worker import Settings

Start = Callable[..., Process]


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database_url, allow_destroy=True) as client:
        yield client


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """Start a process that consumes, and so may run the manager."""
    processes: list[Process] = []
    numbers = itertools.count(1)

    def start_one(**settings: Any) -> Process:
        journal = str(tmp_path / f"journal-{next(numbers)}")
        processes.append(Process(Settings(**{"url": database_url, "journal": journal, **settings})))
        return processes[-1]

    yield start_one
    for process in processes:
        process.end()
