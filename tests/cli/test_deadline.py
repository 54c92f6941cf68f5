"""`sqlstreams deadline`: the runbook's way from observing to all, and what each verb leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlstreams import AsyncClient
from tests.cli.command import Ended
from tests.deadlines.ground import COLUMNS, TABLE, hold, keys, move_all, query, states

Run = Callable[..., Ended]
NAME = "expiry"


def test_from_observing_to_a_part_to_all_and_back(run: Run, database_url: str) -> None:
    query(database_url, TABLE)
    eu, us = hold(database_url, region="eu"), hold(database_url, region="us")
    _register(run, "--observe", "--batch", "7", "--column", "id", "--column", "region")
    shown = run("deadline", "get", NAME, "--json").json()
    assert {name: shown[name] for name in COLUMNS} == COLUMNS | {"table": "public.reservations"}
    assert (shown["mode"], shown["batch"], shown["columns"]) == ("observe", 7, ["id", "region"])
    assert (_move(database_url), _status(run, "due", "moved")) == (0, [2, 0])

    assert run("deadline", "activate", NAME, "--only", "region=eu", "--json").json()["only"] == {"region": "eu"}
    assert (_move(database_url), states(database_url)) == (1, {eu[0]: "expired", us[0]: "held"})

    assert run("deadline", "suspend", NAME, "--json").json()["suspended"] is True
    assert run("deadline", "activate", NAME, "--json").json()["only"] in (None, {})
    assert _move(database_url) == 0
    assert run("deadline", "unsuspend", NAME, "--json").json()["suspended"] is False
    assert (_move(database_url), _status(run, "due", "moved")) == (1, [0, 2])
    assert keys(database_url) == [str(eu[0]), str(us[0])]

    assert run("deadline", "observe", NAME, "--json").json()["mode"] == "observe"
    actions = [edit["action"] for edit in run("deadline", "history", NAME, "--json").json()]
    assert len(actions) == 6
    assert actions[-1] == "registered"


def test_a_range_is_replayed_and_a_deadline_destroyed(run: Run, database_url: str) -> None:
    query(database_url, TABLE)
    (reservation,) = hold(database_url)
    _register(run)
    assert _move(database_url) == 1
    replay = ["deadline", "replay", NAME, "--from", "2020-01-01T00:00Z", "--until", "2100-01-01T00:00Z", "--json"]
    assert run(*replay).json()["messages"] == 1
    assert keys(database_url) == [str(reservation)] * 2
    assert run("deadline", "destroy", NAME).code == 2  # nobody is there to be asked for the name
    assert run("deadline", "destroy", NAME, "--yes").code == 0
    assert run("deadline", "get", NAME).code == 1
    assert run("deadline", "list", "--json").json() == []


def _register(run: Run, *options: str) -> None:
    run("stream", "register", "expired")
    table = "--table reservations --key id --deadline expires_at --state state --from held --to expired"
    assert run("deadline", "register", NAME, "expired", *table.split(), *options).code == 0


def _status(run: Run, *names: str) -> list[int]:
    shown = run("deadline", "status", NAME, "--json").json()
    return [shown[name] for name in names]


def _move(database_url: str) -> int:
    async def move() -> int:
        async with AsyncClient(database_url) as client:
            return await move_all(client)

    return asyncio.run(move())
