"""`sqlstreams demo` runs to its end, tells the truth about it, and leaves what is not its own alone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from msgspec import Struct

import sqlstreams
import sqlstreams_cli.main as cli_main
from sqlstreams import Client, RawPayload
from sqlstreams_cli.demo.ground import own_ground
from sqlstreams_cli.demo.handlers import Audit
from sqlstreams_cli.demo.make_zone_changes import SHIPPED_FILE, ZoneChange
from sqlstreams_cli.demo.next_commands import next_commands

SCHEMA = "sqlstreams_demo"
COMMAND = Path(sys.executable).with_name("sqlstreams")


class Ended(Struct, frozen=True):
    """How a run of the command ended."""

    code: int
    stdout: str
    stderr: str

    def report(self) -> dict[str, Any]:
        assert self.code == 0, self.stderr
        report: dict[str, Any] = msgspec.json.decode(self.stdout)
        return report


Run = Callable[..., Ended]


@pytest.fixture
def run(database_url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `sqlstreams demo` on a database of this test alone."""

    def run(*options: str) -> Ended:
        code = cli_main.main(["demo", "--database-url", database_url, *options])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


def first_changes(count: int) -> list[ZoneChange]:
    lines = SHIPPED_FILE.read_bytes().splitlines()[:count]
    return [msgspec.json.decode(line, type=ZoneChange) for line in lines]


def test_the_json_report_has_the_numbers_that_the_file_has(run: Run, database_url: str) -> None:
    report = run("--limit", "2000", "--json").report()

    changes = first_changes(2_000)
    years = Counter(change.at.year for change in changes).most_common()
    zones = Counter(change.zone for change in changes)
    assert report["produced"] == 2_000
    assert report["audit"] == {"produced": 2_000, "seen": 2_000, "twice": 0, "foreign": 0, "breaks": 0}
    assert report["audit_passed"] is True
    findings = report["findings"]
    assert findings["zones"] == len(zones)
    assert {zone: rank["changes"] for rank in findings["most_changes"] for zone in rank["zones"]} == {
        zone: count for zone, count in zones.items() if count in sorted(set(zones.values()))[-5:]
    }
    assert findings["busiest_years"] == sorted(year for year, count in years if count == years[0][1])
    assert findings["busiest_year_changes"] == years[0][1]
    assert findings["whole_days"] == sum(abs(each.offset_after - each.offset_before) == 86_400 for each in changes)


def test_every_group_handles_every_message_and_only_flaky_needs_retries(run: Run, database_url: str) -> None:
    report = run("--limit", "2000", "--json").report()

    counts = {
        each["name"]: (each["handled"], each["failed"], each["retried"], each["dead"]) for each in report["groups"]
    }
    assert counts == {"per-zone": (2_000, 0, 0, 0), "audit": (2_000, 0, 0, 0), "flaky": (2_000, 10, 10, 0)}
    with Client(database_url, schema=SCHEMA) as client:
        for name in counts:
            status = client.stream("zone-changes").consumer(name).status()
            assert (status.committed, status.lag, status.ready, status.inflight, status.dead) == (2_000, 0, 0, 0, 0)


def test_a_person_is_told_the_same_and_what_to_try_next(run: Run, database_url: str) -> None:
    result = run("--limit", "2000")

    assert result.code == 0, result.stderr
    assert "2,000 of 2,000 seen, nothing lost, nothing twice, each zone's changes in order" in result.stdout
    assert ["flaky", "2,000", "10", "10", "0"] in [line.split()[:5] for line in result.stdout.splitlines()]
    assert "stream tail zone-changes --schema sqlstreams_demo" in result.stdout
    assert "stream zone-changes in schema sqlstreams_demo begins afresh" in result.stderr


def test_a_second_run_begins_afresh(run: Run, database_url: str) -> None:
    run("--limit", "500", "--json")

    report = run("--limit", "300", "--json").report()

    assert report["audit"]["seen"] == 300
    with Client(database_url, schema=SCHEMA) as client:
        assert client.stream("zone-changes").status().head == 300


def test_a_schema_of_another_version_is_made_anew(run: Run, database_url: str) -> None:
    run("--limit", "10", "--json")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"update {SCHEMA}.migration_log set checksum = 'another' where scope = 'system'")

    result = run("--limit", "10", "--json")

    assert result.report()["audit_passed"] is True
    assert "is of another version of sqlstreams: it is made anew" in result.stderr


def test_a_schema_that_the_demo_did_not_make_is_left_alone(run: Run, database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("zone-changes", RawPayload).register()
        client.stream("zone-changes", RawPayload).producer().produce(RawPayload(b"{}"))

    result = run("--schema", "sqlstreams", "--limit", "10")

    assert result.code == 1
    assert "schema 'sqlstreams' was not made by the demo" in result.stderr
    with Client(database_url) as client:
        assert client.stream("zone-changes").status().head == 1


async def test_a_second_run_at_the_same_time_is_refused(run: Run, database_url: str) -> None:
    async with own_ground(database_url, SCHEMA):
        refused = await asyncio.to_thread(run, "--limit", "10")
        elsewhere = await asyncio.to_thread(run, "--limit", "10", "--schema", "demo_elsewhere")

    assert refused.code == 1
    assert "another `sqlstreams demo` is running in schema 'sqlstreams_demo'" in refused.stderr
    assert elsewhere.code == 0


def test_a_failed_audit_ends_in_failure_and_says_what_is_wrong(
    run: Run, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Audit.handle

    async def overlook_one(audit: Audit, change: ZoneChange) -> None:
        if sqlstreams.meta().id != 7:
            await handle(audit, change)

    monkeypatch.setattr(Audit, "handle", overlook_one)

    result = run("--limit", "100")

    assert result.code == 1
    assert "error: the audit failed: 99 of 100 seen, 1 lost" in result.stderr


@pytest.mark.parametrize("until", ["begins afresh", " s: produced"], ids=["at its beginning", "in the middle"])
def test_an_interrupt_ends_the_demo_cleanly_and_leaves_nothing_running(database_url: str, until: str) -> None:
    with subprocess.Popen(
        [COMMAND, "demo", "--database-url", database_url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert any(until in line for line in process.stderr)

        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)

    assert process.returncode == 130
    assert stdout == ""
    assert "interrupted at" in stderr
    assert "Traceback" not in stderr
    with psycopg.connect(database_url) as connection:
        assert connection.execute(f"select count(*) from {SCHEMA}.consumer_instance").fetchone() == (0,)


@pytest.mark.parametrize("called", [COMMAND, Path(cli_main.__file__).with_name("__main__.py")], ids=["script", "-m"])
def test_the_commands_to_try_next_work_as_they_are_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, called: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [str(called)])
    commands = run("--limit", "300", "--json").report()["next_commands"]

    ended = [subprocess.run(each, shell=True, check=False, capture_output=True, text=True) for each in commands]

    assert [each.returncode for each in ended] == [0, 0, 0], [each.stderr for each in ended]
    tail, group, explanation = (each.stdout for each in ended)
    assert len(tail.splitlines()) == 3
    assert '"offset_after":' in tail
    assert "per-zone" in group
    assert "A handler failed" in explanation


def test_the_program_is_named_as_short_as_the_shell_understands_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "sqlstreams"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])

    monkeypatch.setenv("PATH", str(program.parent))
    assert next_commands("s", None)[2] == "sqlstreams explain SQL0106"

    monkeypatch.setenv("PATH", "/nowhere")
    assert next_commands("s", None)[2] == f"{program} explain SQL0106"

    monkeypatch.chdir(tmp_path)
    assert next_commands("s", None)[2] == "bin/sqlstreams explain SQL0106"


def test_a_password_is_not_repeated_on_the_screen() -> None:
    export, tail, *_ = next_commands("s", "postgresql://app:s3cret@db.example/shop")

    assert "s3cret" not in export + tail
    assert "password=***" in export
    assert "--database-url" not in tail


def test_an_unreachable_database_is_named_as_the_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = cli_main.main(["demo", "--database-url", f"postgresql:///x?host={tmp_path}"])

    assert code == 1
    assert "error SQL0030: no connection to the database" in capsys.readouterr().err
