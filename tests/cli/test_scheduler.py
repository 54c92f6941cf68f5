"""`sqlstreams scheduler`: what its verbs take and show, beyond what every command keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlstreams import Client
from tests.cli.command import Ended

Run = Callable[..., Ended]
REGISTER = ("scheduler", "register", "nightly", "invoices", "0 2 * * *", "--timezone", "Europe/Berlin")


def test_every_option_reaches_the_library(run: Run, tmp_path: Path) -> None:
    run("stream", "register", "invoices")
    payload = tmp_path / "payload.json"
    payload.write_text('{"region": "eu"}')
    options = (
        "--schema-version 3 --catch-up all --window 30d --jitter 30s --concurrency exclusive --timeout 2m"
        " --no-compaction --start-at 2027-01-01T00:00Z --end-at 2028-01-01T00:00Z"
    )
    shown = run(*REGISTER, "--payload-file", str(payload), *options.split(), "--json").json()
    assert (shown["payload"], shown["schema_version"]) == ({"region": "eu"}, 3)
    assert (shown["expression"], shown["timezone"], shown["stream"]) == ("0 2 * * *", "Europe/Berlin", "invoices")
    assert (shown["catch_up"], shown["catch_up_window"], shown["jitter"]) == ("all", 30 * 86_400, 30)
    assert (shown["concurrency"], shown["timeout"], shown["compaction"]) == ("exclusive", 120, False)
    assert (shown["start_at"], shown["end_at"]) == ("2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z")
    assert shown["description"] == "every day at 02:00 in Berlin"
    assert (shown["suspended"], shown["revision"]) == (False, 1)


def test_the_next_slots_are_told_in_both_times_and_in_words(run: Run) -> None:
    run("stream", "register", "invoices")
    run(*REGISTER, "--payload", "{}", "--start-at", "2027-03-27T00:00Z")
    told = run("scheduler", "next", "nightly", "-n", "2").out
    assert "every day at 02:00 in Berlin" in told
    assert "Sat 2027-03-27 02:00:00 CET" in told
    shown = run("scheduler", "next", "nightly", "-n", "2", "--json").json()
    assert shown["slots"] == [
        {"local": "2027-03-27T02:00:00+01:00", "utc": "2027-03-27T01:00:00Z"},
        {"local": "2027-03-28T03:00:00+02:00", "utc": "2027-03-28T01:00:00Z"},
    ]


def test_a_schedule_is_stopped_run_and_looked_at(run: Run, database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("invoices").register().consumer("runner").register()
    run(*REGISTER, "--payload", "{}")
    assert run("scheduler", "suspend", "nightly", "--json").json()["suspended"] is True
    assert run("scheduler", "run", "nightly").out == "produced message 1 of schedule nightly\n"
    assert run("scheduler", "unsuspend", "nightly", "--json").json()["suspended"] is False
    (message,) = run("scheduler", "messages", "nightly", "--json").json()
    assert (message["kind"], message["groups"][0]["outcome"]) == ("manual", "pending")
    assert "runner: pending" in run("scheduler", "status", "nightly").out
    edits = run("scheduler", "history", "nightly", "--json").json()
    assert [edit["action"] for edit in edits] == ["unsuspended", "suspended", "registered"]


def test_a_backfill_says_what_it_did(run: Run) -> None:
    run("stream", "register", "invoices")
    run(*REGISTER, "--payload", "{}")
    backfill = ["scheduler", "backfill", "nightly", "--from", "2026-01-01T00:00Z", "--until", "2026-01-03T12:00Z"]
    assert run(*backfill).out == "fired 3 slots of schedule nightly; 0 had fired before\n"
    assert run(*backfill, "--json").json() == {"fired": 0, "already_fired": 3}


def test_an_absent_schedule_ends_with_1_and_the_names_that_are_near(run: Run) -> None:
    run("stream", "register", "invoices")
    run(*REGISTER, "--payload", "{}")
    ended = run("scheduler", "status", "nightli")
    assert ended.code == 1
    assert "error SQL0012: there is no schedule named 'nightli'" in ended.err
    assert "did you mean nightly?" in ended.err


def test_destroying_asks_for_the_name(run: Run) -> None:
    run("stream", "register", "invoices")
    run(*REGISTER, "--payload", "{}")
    assert run("scheduler", "destroy", "nightly").code == 2
    assert run("scheduler", "destroy", "nightly", "--yes").out == "destroyed schedule nightly\n"
    assert run("scheduler", "list", "--json").json() == []
