"""`sqlstreams doctor` finds what is wrong and says what to do, also when the database cannot be reached."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sqlstreams import Client, Holder, RawPayload
from sqlstreams_cli import doctor
from tests.cli.command import NOWHERE, Ended, run_here
from tests.support import eventually

Run = Callable[..., Ended]


def checks(ended: Ended, name: str) -> list[dict[str, Any]]:
    return [check for check in ended.json()["checks"] if check["name"] == name]


def check(ended: Ended, name: str) -> dict[str, Any]:
    (only,) = checks(ended, name)
    return only


def test_a_sound_installation_is_healthy(run: Run) -> None:
    ended = run("doctor", "--json")

    assert (ended.code, ended.json()["healthy"]) == (0, True)
    for name in ("connection", "installation", "privileges", "pooler", "synchronous_commit", "connections", "groups"):
        assert check(ended, name)["state"] == "ok"
    # The server of the tests runs without fsync, for speed.
    assert check(ended, "fsync")["state"] == "warn"
    assert check(ended, "clock")["state"] == "info"


def test_an_unreachable_database_is_the_first_line_with_its_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLSTREAMS_DATABASE_URL", NOWHERE)

    ended = run_here(capsys, "doctor")

    assert ended.code == 1
    assert ended.out.startswith("fail  connection: SQL0030: no connection to the database")
    assert "fix: Check the database URL" in ended.out
    assert "zone data" in ended.out


def test_nothing_installed_is_a_failure(run: Run) -> None:
    ended = run("doctor", "--schema", "empty", "--json")

    assert (ended.code, ended.json()["healthy"]) == (1, False)
    assert check(ended, "installation")["fix"] == "sqlstreams system register"


def test_a_role_that_may_not_work_is_told(run: Run, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("drop role if exists sqlstreams_stranger")
        owner.execute("create role sqlstreams_stranger login")
        try:
            stranger = make_conninfo(database_url, user="sqlstreams_stranger")
            without_schema = run("doctor", "--database-url", stranger, "--json")
            owner.execute("grant usage on schema sqlstreams to sqlstreams_stranger")
            with_schema = run("doctor", "--database-url", stranger, "--json")
        finally:
            owner.execute("drop owned by sqlstreams_stranger")
            owner.execute("drop role sqlstreams_stranger")

    assert without_schema.code == with_schema.code == 1
    assert "permission denied" in check(without_schema, "connection")["text"]
    assert "sqlstreams_stranger may not write" in check(with_schema, "privileges")["text"]


async def test_the_transaction_that_holds_back_a_claim_is_named(run: Run, database_url: str) -> None:
    with Client(database_url) as client, psycopg.connect(database_url, application_name="forgetful") as idle:
        stream = client.stream("notes").register()
        stream.consumer("g").register()
        idle.execute("insert into sqlstreams.message_log_1 (payload) values ('{}')")
        stream.producer().produce(RawPayload(b"{}"))

        def held() -> dict[str, Any]:
            found = checks(run("doctor", "--json"), "group g of stream notes")
            return next(each for each in found if "waits" in each["text"])

        await eventually(lambda: held()["state"] == "warn")
        told = held()

        pid = idle.info.backend_pid
        assert f"its next claim waits for pid {pid} (forgetful), open for" in told["text"]
        assert f"pg_terminate_backend({pid})" in told["fix"]
        idle.rollback()
    assert not any("waits" in each["text"] for each in run("doctor", "--json").json()["checks"])


def test_a_group_that_nobody_runs_is_told(run: Run, database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes").register()
        stream.consumer("g").register()
        stream.producer().produce(RawPayload(b"{}"))

    told = check(run("doctor", "--json"), "group g of stream notes")

    assert told["state"] == "warn"
    assert "1 ids behind" in told["text"]
    assert "no process runs it" in told["text"]
    assert "--stream notes --group g" in told["fix"]


@pytest.mark.parametrize(("age", "state"), [(timedelta(seconds=1), "info"), (timedelta(hours=1), "warn")])
def test_a_prepared_transaction_that_was_forgotten_is_warned_of(age: timedelta, state: str) -> None:
    holder = Holder(transaction="-1/7", pid=None, application=None, state="prepared", age=age, gid="left behind")

    (told,) = doctor._prepared([holder])

    assert told.state == state
    assert "'left behind'" in told.text


def test_a_session_that_does_not_wait_for_the_disk_is_warned_of(run: Run, database_url: str) -> None:
    url = make_conninfo(database_url, options="-c synchronous_commit=off")

    ended = run("doctor", "--database-url", url, "--json")

    assert check(ended, "synchronous_commit")["state"] == "warn"
    assert ended.code == 0


@pytest.mark.parametrize(
    ("connections", "limit", "state"), [(1, 97, "ok"), (87, 97, "ok"), (89, 97, "warn"), (97, 97, "warn")]
)
def test_few_free_connections_are_warned_of(connections: int, limit: int, state: str) -> None:
    assert doctor._headroom(connections, limit).state == state


@pytest.mark.parametrize(("package", "system", "states"), [
    ("2026c", "2026c", ["ok"]),
    ("2026c", "2025b", ["ok", "warn"]),
    ("2026c", None, ["ok"]),
    ("2024b", "2024b", ["warn"]),
])  # fmt: skip
def test_zone_data_that_is_old_or_differs_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, package: str, system: str | None, states: list[str]
) -> None:
    monkeypatch.setattr(doctor, "_package_zones", lambda: package)
    monkeypatch.setattr(doctor, "_system_zones", lambda: system)

    assert [each.state for each in doctor._zone_data(datetime(2026, 6, 1, tzinfo=UTC))] == states


def test_schedules_and_deadlines_that_nobody_sees_to_are_warned_of(run: Run, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table t (id bigint primary key, at timestamptz, state text)")
    with Client(database_url) as client:
        client.stream("notes").register()
        for name in ("nightly", "hourly", "resting"):
            client.scheduler(name).register("notes", "@hourly", {})
        client.scheduler("resting").suspend()
        assert "2 schedules will not be seen to" in check(run("doctor", "--json"), "manager")["text"]
        client.deadline("d").register(
            "notes", table="t", key="id", deadline="at", state="state", from_state="held", to_state="expired"
        )

    told = check(run("doctor", "--json"), "manager")

    assert (told["state"], told["fix"]) == ("warn", "sqlstreams manager run")
    assert "2 schedules and 1 deadline will not be seen to" in told["text"]


def test_a_duty_that_fails_and_a_manager_that_is_suspended_are_told(run: Run, database_url: str) -> None:
    assert check(run("doctor", "--json"), "manager")["state"] == "info"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update sqlstreams.duty_status set failures = 3, last_error = 'X: no' where name = 'leases'")
    run("manager", "suspend")

    ended = run("doctor", "--json")

    assert (ended.code, check(ended, "manager")["state"]) == (0, "warn")
    assert check(ended, "duty leases")["text"] == "it failed 3 times in a row: X: no"
