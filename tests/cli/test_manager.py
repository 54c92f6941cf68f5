"""`sqlstreams manager`: run it, look at it, suspend it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from sqlstreams import AsyncClient
from tests.cli.command import Ended, Process, finish
from tests.support import eventually

Run = Callable[..., Ended]
Start = Callable[..., Process]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
async def test_it_runs_until_a_signal_and_gives_the_lease_back(
    start: Start, database_url: str, ending: signal.Signals
) -> None:
    process = start("manager", "run")
    async with AsyncClient(database_url) as client:
        await eventually(lambda: _runs(client, process.pid), within=40)
        process.send_signal(ending)
        ended = finish(process)
        assert (ended.code, ended.out) == (0, "")
        assert (await client.manager.list()).instances == ()


async def _runs(client: AsyncClient, pid: int) -> bool:
    return [each.pid for each in (await client.manager.list()).instances] == [pid]


def test_duties_are_listed_and_suspended_by_name(run: Run) -> None:
    suspended = run("manager", "suspend", "statistics", "--json").json()
    assert [each["name"] for each in suspended["duties"] if each["suspended"]] == ["statistics"]
    assert "no process runs it" in run("manager", "list").out
    assert not any(each["suspended"] for each in run("manager", "unsuspend", "statistics", "--json").json()["duties"])
    assert run("manager", "suspend", "--json").json()["suspended"]


def test_an_unknown_duty_is_a_matter_of_usage(run: Run) -> None:
    ended = run("manager", "suspend", "nothing")
    assert ended.code == 2
    assert "duty must be one of compaction, deadlines, idempotency, " in ended.err
