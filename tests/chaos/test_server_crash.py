"""A server that crashes and comes back: processes live on, nothing is lost, and only what was just done is repeated."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, embedded, meta
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import Process
from tests.support import Note, consuming, eventually


class CrashingServer:
    """A PostgreSQL of the test's own, with fsync on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers = [self._serve()]
        self.url = self._servers[0].url

    def _serve(self) -> embedded.Server:
        return embedded.serve(self._directory)

    def lose_asynchronous_commits(self) -> None:
        """Have the next crash undo what was committed without waiting for the disk."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("alter system set wal_writer_delay = '10s'")
            admin.execute("select pg_reload_conf()")
            admin.execute("checkpoint")

    def crash(self) -> float:
        """Stop at once, as `pg_ctl stop -m immediate` does, and start again; return when it stopped."""
        postmaster = int((self._directory / "data" / "postmaster.pid").read_text().split()[0])
        crashed_at = time.time()
        os.kill(postmaster, signal.SIGQUIT)
        while (self._directory / "server.json").exists():  # its supervisor has not noticed yet
            assert time.time() < crashed_at + 20
            time.sleep(0.005)
        self._servers.append(self._serve())
        assert self._servers[-1].url == self.url
        return crashed_at

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture
def server() -> Iterator[CrashingServer]:
    directory = Path(tempfile.mkdtemp(prefix="sqlstreams-crash-", dir="/tmp"))
    directory.chmod(0o755)
    server = CrashingServer(directory / "pg")
    yield server
    server.close()
    shutil.rmtree(directory)


@pytest.fixture
def database_url(server: CrashingServer) -> str:
    """Have the other fixtures use the server that crashes."""
    return server.url


async def test_processes_live_on_through_crashes_of_the_server(
    server: CrashingServer, client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 900)
    process = start(handler="flaky", seconds=0.1, concurrency=20, prefetch=200, lease=1)
    crashes = []
    for count in (100, 350, 600):
        await eventually(lambda count=count: len(set(process.ids())) >= count)  # type: ignore[misc]
        crashes.append(await asyncio.to_thread(server.crash))
    await eventually(lambda: set(process.ids()) == set(ids))
    await all_is_done(group)
    assert process.runs
    repeated = _repeated(process)
    assert [each for each in repeated if not _is_explained(process, each, crashes)] == []
    # 200 a second, of which a crash takes back what was in flight or not yet written ahead.
    assert len(repeated) <= 3 * 2 * 200


async def test_a_failure_that_was_recorded_before_a_crash_is_not_lost_with_it(
    server: CrashingServer, client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    attempts: dict[int, list[int]] = defaultdict(list)
    may_fail, may_end = asyncio.Event(), asyncio.Event()

    async def handle(note: Note) -> None:
        attempts[meta().id].append(meta().attempt)
        if meta().id == 2:
            await may_end.wait()
        elif meta().attempt == 1:
            await may_fail.wait()
            raise ValueError("once")

    await produce(client, 2)
    async with _patient(server.url) as patient:
        consumer = patient.stream("notes", Note).consumer("g")
        async with consuming(consumer, handle):
            await eventually(lambda: len(attempts) == 2)
            server.lose_asynchronous_commits()  # from now on: the claim survives
            may_fail.set()
            await eventually(lambda: consumer.stats.failed == 1)
            await asyncio.to_thread(server.crash)
            may_end.set()
            await eventually(lambda: len(attempts[1]) >= 2)
            await all_is_done(group)


async def test_a_lease_that_a_crash_brought_back_is_given_up_by_its_process(
    server: CrashingServer, client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    seen: Counter[int] = Counter()
    may_end = asyncio.Event()

    async def handle(note: Note) -> None:
        seen[meta().id] += 1
        await may_end.wait()

    ids = await produce(client, 10)
    async with _patient(server.url) as patient:
        consumer = patient.stream("notes", Note).consumer("g")
        async with consuming(consumer, handle):
            await eventually(lambda: len(seen) == 10)
            server.lose_asynchronous_commits()
            may_end.set()
            await eventually(lambda: _has_no_lease(group))
            await asyncio.to_thread(server.crash)
            # The finish was lost, and nobody else is there who could take over.
            await eventually(lambda: seen == dict.fromkeys(ids, 2))
            await all_is_done(group)
    assert await group.reclaims() == []


def _patient(url: str) -> AsyncClient:
    # A heartbeat every 20 s: it checkpoints nothing and commits nothing in between.
    return AsyncClient(url, lease_ttl=timedelta(seconds=60))


async def _has_no_lease(group: AsyncConsumer[Note]) -> bool:
    return (await group.status()).leases == 0


def _repeated(process: Process) -> list[tuple[int, int, float]]:
    """Return every delivery that was not the first of its message and attempt: id, attempt and when it began."""
    first: set[tuple[int, int]] = set()
    repeated = []
    for each in process.deliveries("start"):
        if (each.id, each.attempt) in first:
            repeated.append((each.id, each.attempt, each.at))
        first.add((each.id, each.attempt))
    return repeated


def _is_explained(process: Process, repeated: tuple[int, int, float], crashes: list[float]) -> bool:
    """Tell whether a repetition came after a crash before which the delivery was in flight or just done."""
    message_id, attempt, begun = repeated
    ends = [
        each.at
        for event in ("end", "ValueError")
        for each in process.deliveries(event)
        if (each.id, each.attempt) == (message_id, attempt)
    ]
    # A checkpoint comes every third of a second and is on disk 0.6 s later; the machine may be busy.
    return any(crash < begun and any(end > crash - 2.5 for end in ends) for crash in crashes)
