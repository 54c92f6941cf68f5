"""Every process that consumes may run the manager, and one that only runs it may, too."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from sqlstreams import AsyncClient, AsyncConsumer, ManagerInstance, NotInstalled
from tests.chaos.processes import Process
from tests.manager.conftest import Start
from tests.manager.support import execute, holders
from tests.support import Note, consuming, eventually


@pytest.fixture
async def group(client: AsyncClient) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    return await stream.consumer("g").register()


async def _handle(note: Note) -> None:
    """Succeed."""


async def _sessions(url: str, pattern: str) -> int:
    ((count,),) = await execute(
        url,
        "select count(*)::int from pg_stat_activity"
        f" where datname = current_database() and pid <> pg_backend_pid() and query like '{pattern}'",
    )
    return int(count)


async def test_consumptions_of_a_client_run_one_manager_and_listen_once(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    other = await client.stream("notes", Note).consumer("h").register()
    async with consuming(group, _handle):
        await eventually(lambda: _holds(client, [1]))
        async with consuming(other, _handle):
            await eventually(lambda: other.stats.claims > 0)
            assert await _sessions(database_url, "listen %") == 1
        assert await holders(client) == [1]
        (instance,) = (await client.manager.list()).instances
        assert (instance.pid, instance.expires_at > instance.renewed_at) == (os.getpid(), True)
    assert await holders(client) == []
    async with consuming(group, _handle):
        await eventually(lambda: _holds(client, [2]))


async def _holds(client: AsyncClient, terms: list[int]) -> bool:
    return await holders(client) == terms


async def test_a_client_may_leave_the_manager_to_others(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    async with AsyncClient(database_url, manager=False) as modest:
        consumer = modest.stream("notes", Note).consumer("g")
        async with consuming(consumer, _handle):
            await eventually(lambda: consumer.stats.claims > 0)
            assert (await modest.manager.list()).term == 0
            running = asyncio.create_task(modest.manager.run(signals=False))  # as asked
            await eventually(lambda: _holds(client, [1]))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert await holders(client) == []


async def test_every_duty_of_the_manager_has_run_when_it_ends(client: AsyncClient) -> None:
    running = asyncio.create_task(client.manager.run(signals=False))
    await eventually(lambda: _holds(client, [1]))
    await eventually(lambda: _all_ran(client) if _poke(client) else False)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    duties = (await client.manager.list()).duties
    assert {duty.name for duty in duties} >= {"compaction", "leases", "partitions", "retention", "statistics"}
    assert all(duty.failures == 0 and duty.last_run_at is not None for duty in duties)


def _poke(client: AsyncClient) -> bool:
    """Have it report without waiting for the next renewal."""
    client._management._hearing._wake("manager")
    return True


async def _all_ran(client: AsyncClient) -> bool:
    return all(duty.runs for duty in (await client.manager.list()).duties)


async def test_without_an_installation_there_is_nothing_to_run(empty_database_url: str) -> None:
    async with AsyncClient(empty_database_url) as client:
        with pytest.raises(NotInstalled):
            await client.manager.run(signals=False)


async def test_thirty_clients_that_start_together_make_one_manager(client: AsyncClient, database_url: str) -> None:
    clients = [AsyncClient(database_url, pool_size=1, lease_ttl=timedelta(seconds=5)) for _ in range(30)]
    for each in clients:
        await each.__aenter__()
    tasks = [asyncio.create_task(each.manager.run(signals=False)) for each in clients]
    try:
        await eventually(lambda: _sessions_listen(database_url, 30))
        assert await holders(client) == [1]
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in clients))
    assert await holders(client) == []


async def _sessions_listen(url: str, count: int) -> bool:
    return await _sessions(url, "listen %") == count


# Whole processes


async def _holder(client: AsyncClient, processes: list[Process]) -> Process:
    found: list[Process] = []

    async def is_found() -> bool:
        pids = [each.pid for each in (await client.manager.list()).instances if not each.expired]
        found[:] = [process for process in processes if process.pid in pids]
        return bool(found)

    await eventually(is_found, within=40)
    assert len(found) == 1
    return found[0]


async def _every_second(client: AsyncClient) -> None:
    await client.scheduler("ticks").register("notes", "@every 1s", Note("tick"), catch_up="all", compaction=False)


async def _has_fired(url: str, pid: int) -> bool:
    found = await execute(url, f"select 1 from sqlstreams.schedule_fire where fired_by like '% {pid}' limit 1")
    return bool(found)


async def _slots_are_whole(url: str) -> None:
    """Show that each slot since the first one has one message, and that none is missing."""
    ((fires, span, messages, slots),) = await execute(
        url,
        """
        select count(*), 1 + extract(epoch from max(scheduled_for) - min(scheduled_for))::int,
               (select count(*) from sqlstreams.message_log_1),
               (select count(distinct options->>'scheduled_at') from sqlstreams.message_log_1)
          from sqlstreams.schedule_fire
        """,
    )
    assert fires == span == messages == slots > 0


async def test_the_manager_of_a_killed_process_is_taken_over_within_the_lease(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str, start: Start
) -> None:
    await _every_second(client)
    processes = [start(lease=1.0), start(lease=1.0)]
    await eventually(lambda: all(process.lines("connecting") for process in processes), within=40)
    first = await _holder(client, processes)
    (second,) = [process for process in processes if process is not first]
    await eventually(lambda: _has_fired(database_url, first.pid))
    first.send(signal.SIGKILL)
    assert await _holder(client, [second]) is second
    (instance,) = (await client.manager.list()).instances
    assert instance.term == 2
    await eventually(lambda: _has_fired(database_url, second.pid))
    await _slots_are_whole(database_url)


async def test_a_frozen_holder_finds_its_lease_gone_when_it_wakes(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str, start: Start
) -> None:
    await _every_second(client)
    processes = [start(lease=1.0), start(lease=1.0)]
    await eventually(lambda: all(process.lines("connecting") for process in processes), within=40)
    frozen = await _holder(client, processes)
    (other,) = [process for process in processes if process is not frozen]
    await eventually(lambda: _has_fired(database_url, frozen.pid))
    frozen.send(signal.SIGSTOP)
    await _holder(client, [other])
    await eventually(lambda: _has_fired(database_url, other.pid), within=40)
    frozen.send(signal.SIGCONT)
    await eventually(lambda: frozen.logged("SQL0111"))
    assert await _holder(client, processes) is other
    other.send(signal.SIGTERM)
    await eventually(lambda: not other.runs)
    assert await _holder(client, processes) is frozen
    frozen.send(signal.SIGTERM)
    await eventually(lambda: not frozen.runs)
    assert (await client.manager.list()).instances == ()
    assert all(duty.failures == 0 for duty in (await client.manager.list()).duties)
    await _slots_are_whole(database_url)


_MANAGER = """
import asyncio, sys, time
from datetime import timedelta
from sqlstreams import AsyncClient

async def main():
    print(time.time(), flush=True)
    async with AsyncClient(sys.argv[1], pool_size=1, lease_ttl=timedelta(seconds=5)) as client:
        await client.manager.run()

asyncio.run(main())
"""


async def test_thirty_processes_that_start_together_make_one_manager_and_fire_each_slot_once(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    await _every_second(client)
    with _managers(database_url, *[{}] * 30) as processes:
        await eventually(lambda: _sessions_listen(database_url, 30), within=90)
        (holder,) = (await client.manager.list()).instances
        await eventually(lambda: _has_fired(database_url, holder.pid))
        assert all(process.poll() is None for process in processes)
    assert [process.returncode for process in processes] == [0] * 30
    await _slots_are_whole(database_url)


async def test_processes_whose_clocks_are_wrong_take_no_lease_and_fire_each_slot_once(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    await _every_second(client)
    with _managers(database_url, *map(_clock_off_by, ("-7200s", "+7200s", "+3650d"))) as processes:
        told = [float(process.stdout.readline()) - time.time() for process in processes if process.stdout]
        assert [round(skew / 3600) for skew in told] == [-2, 2, 3650 * 24]
        await eventually(lambda: _sessions_listen(database_url, 3), within=40)
        first = await _one_holds_for(client, seconds=6)  # longer than a lease
        await eventually(lambda: _has_fired(database_url, first.pid))
        (killed,) = [process for process in processes if process.pid == first.pid]
        killed.kill()
        # The one that follows has another idea of the time, and waits for the end of the lease all the same.
        await eventually(lambda: _holds(client, [first.term + 1]), within=40)
        (second,) = [each for each in (await client.manager.list()).instances if not each.expired]
        assert second.started_at >= first.expires_at
        await eventually(lambda: _has_fired(database_url, second.pid))
    await _slots_are_whole(database_url)


def _clock_off_by(offset: str) -> dict[str, str]:
    """Return the environment in which a process has another wall clock than its host."""
    binary = shutil.which("faketime")
    if binary is None:
        pytest.fail("faketime is not installed: apt-get install faketime (or put it on PATH)", pytrace=False)
    # Not through the command itself: that stays the parent of what it starts, and passes on no signal.
    told = subprocess.run([binary, "-m", "--exclude-monotonic", "-f", offset, "env"], capture_output=True, check=True)
    known = dict(line.split("=", 1) for line in told.stdout.decode().splitlines() if "=" in line)
    return {name: known[name] for name in ("LD_PRELOAD", "FAKETIME", "FAKETIME_DONT_FAKE_MONOTONIC")}


async def _one_holds_for(client: AsyncClient, *, seconds: float) -> ManagerInstance:
    """Wait for a manager, see that it stays the same for some seconds, and return it."""
    await eventually(lambda: _holds(client, [1]), within=40)
    until = time.monotonic() + seconds
    while True:
        (holder,) = (await client.manager.list()).instances
        assert holder.term == 1
        if time.monotonic() > until:
            return holder
        await asyncio.sleep(0.2)


@contextmanager
def _managers(url: str, *environments: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a manager in each of some environments; end them cleanly."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MANAGER, url], env=os.environ | environment, stdout=subprocess.PIPE, text=True
        )
        for environment in environments
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=60)
