"""What every command keeps: where it writes, how it ends, and that no mistake of a user shows a traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sqlstreams import Client, RawPayload, embedded
from sqlstreams_cli.reference import examples
from tests.cli.command import NOWHERE, Ended, environment, run_here

Run = Callable[..., Ended]

WITH_DATABASE = [
    "system register",
    "system migrate",
    "system status",
    "system grant webshop --as producer",
    "stream list",
    "stream get invoices",
    "stream register invoices",
    "stream rename invoices bills",
    "stream destroy invoices --yes",
    "stream produce invoices --payload {}",
    "stream tail invoices",
    "stream expire invoices",
    "stream head invoices eu",
    "stream history invoices eu",
    "stream compact invoices --older-than 7d",
    "stream waiting invoices",
    "stream versions invoices",
    "stream cancel invoices 2",
    "consumer list",
    "consumer get g --stream invoices",
    "consumer blocked g --stream invoices",
    "consumer bindings g --stream invoices",
    "consumer register g --stream invoices",
    "consumer rename g h --stream invoices",
    "consumer rewind g --stream invoices --to beginning --yes",
    "consumer skip g --stream invoices --to head --yes",
    "consumer positions g --stream invoices",
    "consumer reclaims g --stream invoices",
    "consumer destroy g --stream invoices --yes",
    "dead list g --stream invoices",
    "dead show g 1 --stream invoices",
    "dead history g 1 --stream invoices",
    "dead redrive g 1 --stream invoices",
    "dead discard g 1 --stream invoices --reason no",
    "deadline list",
    "deadline get overdue",
    "deadline register other invoices --table bills --key id --deadline due_at --state state --from a --to b",
    "deadline observe overdue",
    "deadline activate overdue --only region=eu",
    "deadline suspend overdue",
    "deadline unsuspend overdue",
    "deadline status overdue",
    "deadline replay overdue --from 2026-01-01T00:00Z --until 2026-01-02T00:00Z",
    "deadline history overdue",
    "deadline destroy overdue --yes",
    "scheduler list",
    "scheduler get nightly",
    "scheduler register hourly invoices @hourly --payload {}",
    "scheduler run nightly",
    "scheduler suspend nightly",
    "scheduler unsuspend nightly",
    "scheduler status nightly",
    "scheduler messages nightly",
    "scheduler next nightly",
    "scheduler fires nightly",
    "scheduler skips nightly",
    "scheduler backfill nightly --from 2026-01-01T00:00Z --until 2026-01-02T00:00Z",
    "scheduler history nightly",
    "scheduler destroy nightly --yes",
    "manager list",
    "manager suspend statistics",
    "manager suspend",
    "manager unsuspend statistics",
    "manager unsuspend",
    "doctor",
]
OFFLINE = ["explain", "explain SQL0012"]
IN_LINES = {"stream tail invoices"}
MISUSED = [
    "manager suspend nothing",
    "stream get",
    "stream",
    "stream list --no-such-option",
    "nothing",
    "stream tail invoices --from 2026-07-01T10:00",
    "stream tail invoices --from yesterday",
    "consumer register g -s invoices --retry-base 10",
    "consumer rewind g -s invoices --to yesterday",
    "stream produce invoices --batch 0",
    "stream produce invoices --payload {} --file x",
    "stream produce invoices --key a --key-field b",
    "stream register Invoices",
    "stream register invoices --retention soon",
    "stream register invoices --retention 0s",
    "stream register invoices --compact-after soon",
    "stream history invoices eu --limit 0",
    "stream compact invoices --older-than soon",
    "stream produce invoices --payload {} --delay soon",
    "stream produce invoices --payload {} --deliver-at 2026-07-01T10:00",
    "stream produce invoices --payload {} --deliver-at 2026-07-01T10:00Z --delay 1s",
    "stream waiting invoices --limit 0",
    "stream cancel invoices 0",
    "consumer register g -s invoices --max-retries -1",
    "consumer run handlers -s invoices -g g",
    "deadline register d invoices --table bills",
    "deadline register d invoices --table no.such.table --key id --deadline due_at --state state --from a --to b",
    "deadline register d invoices --table bills --key id --deadline due_at --state state --from a --to a",
    "deadline register d invoices --table bills --key id --deadline state --state state --from a --to b",
    "deadline activate overdue --only id",
    "deadline activate overdue --only nothing=1",
    "deadline replay overdue --from 2026-01-01 --until 2026-01-02T00:00Z",
    "deadline replay overdue --from 2026-01-02T00:00Z --until 2026-01-01T00:00Z",
    "scheduler register s invoices @hourly",
    "scheduler register s invoices @hourly --payload {} --payload-file x",
    "scheduler register s invoices @hourly --payload no",
    "scheduler register s invoices @never --payload {}",
    "scheduler register s invoices @hourly --payload {} --timezone Nowhere",
    "scheduler register s invoices @hourly --payload {} --window 1",
    "scheduler register s invoices @hourly --payload {} --jitter soon",
    "scheduler register s invoices @hourly --payload {} --timeout 0s",
    "scheduler register s invoices @hourly --payload {} --start-at 2026-07-01T10:00",
    "scheduler register s invoices @hourly --payload {} --concurrency ordered",
    "scheduler register s invoices @hourly --payload {} --catch-up none",
    "scheduler register sqlstreams.s invoices @hourly --payload {}",
    "scheduler backfill nightly --from 2026-01-01 --until 2026-01-02T00:00Z",
    "scheduler backfill nightly --from 2026-01-01T00:00Z --until 2999-01-01T00:00Z",
    "scheduler next nightly -n 0",
    "relay run -s invoices",
    "relay run -s invoices --to http://localhost/invoices",
    "relay run -s invoices --to nats://localhost/invoices.{nothing}",
    "relay run -s invoices --to nats://localhost/invoices --order none --start yesterday",
    "dead list g -s invoices --since yesterday",
    "dead list g -s invoices --limit 0",
    "dead redrive g -s invoices",
    "dead redrive g -s invoices --all",
    "dead redrive g -s invoices --all --yes --key a",
    "dead redrive g 1 -s invoices --rate 0",
    "dead redrive g 0 -s invoices",
    "dead discard g -s invoices --reason no",
    "dead discard g -s invoices --reason no --all",
    "dead discard g 1 -s invoices",
    "dead discard g 1 -s invoices --reason=",
]
PASTED = [
    "system register",
    "system migrate",
    "system status",
    "system grant",
    "stream register",
    "stream list",
    "stream get",
    "stream produce",
    "stream tail",
    "stream expire",
    "stream head",
    "stream history",
    "stream compact",
    "stream waiting",
    "stream versions",
    "consumer register",
    "consumer list",
    "consumer get",
    "consumer blocked",
    "consumer bindings",
    "consumer rewind",
    "consumer skip",
    "consumer positions",
    "consumer reclaims",
    "dead list",
    "dead history",
    "dead redrive",
    "dead discard",
    "deadline register",
    "deadline list",
    "deadline get",
    "deadline observe",
    "deadline activate",
    "deadline suspend",
    "deadline unsuspend",
    "deadline status",
    "deadline replay",
    "deadline history",
    "deadline destroy",
    "scheduler register",
    "scheduler list",
    "scheduler get",
    "scheduler next",
    "scheduler run",
    "scheduler suspend",
    "scheduler unsuspend",
    "scheduler status",
    "scheduler messages",
    "scheduler fires",
    "scheduler skips",
    "scheduler backfill",
    "scheduler history",
    "scheduler destroy",
    "consumer rename",
    "consumer destroy",
    "stream rename",
    "stream destroy",
    "manager list",
    "manager suspend",
    "manager unsuspend",
    "doctor",
    "explain",
]


@pytest.mark.parametrize("place", ["before", "after"])
def test_json_alone_is_on_stdout(run: Run, database_url: str, place: str) -> None:
    options = ["--json", "-v"]
    for command in [*WITH_DATABASE, *OFFLINE]:
        _set_up(database_url)
        ended = run(*options, *command.split()) if place == "before" else run(*command.split(), *options)
        assert ended.code == 0, (command, ended.err)
        assert ended.json_lines() if command in IN_LINES else ended.json() is not None


def test_without_json_people_get_text_without_colour_codes(run: Run, database_url: str) -> None:
    for command in WITH_DATABASE:
        _set_up(database_url)
        ended = run(*command.split())
        assert ended.code == 0, (command, ended.err)
        assert ended.out
        assert "\x1b" not in ended.out
        with pytest.raises(msgspec.DecodeError):
            ended.json()


@pytest.mark.parametrize("command", WITH_DATABASE)
def test_without_a_database_a_command_says_so_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("SQLSTREAMS_DATABASE_URL", NOWHERE)

    ended = run_here(capsys, *command.split(), "--json", "-v")

    assert ended.code == 1
    said = ended.out if command == "doctor" else ended.err
    assert "SQL0030" in said
    assert "Connection refused" in said
    assert "secret" not in ended.out + ended.err
    assert command == "doctor" or not ended.out


@pytest.mark.parametrize("part", ["user", "dbname"])
def test_a_role_or_database_that_is_absent_is_named(run: Run, database_url: str, part: str) -> None:
    url = make_conninfo(database_url, **{part: "elsewhere"})

    ended = run("stream", "list", "--database-url", url)

    assert ended.code == 1
    assert "error SQL0030" in ended.err
    assert '"elsewhere" does not exist' in ended.err


def test_a_password_is_not_repeated(run: Run) -> None:
    ended = run("stream", "list", "--database-url", "postgers://somebody:secret@host/name")

    assert ended.code == 2
    assert "secret" not in ended.err
    assert "postgers://somebody:***@host/name" in ended.err


def test_a_malformed_url_is_a_matter_of_usage(run: Run) -> None:
    ended = run("stream", "list", "--database-url", "postgresql://[::1")

    assert ended.code == 2
    assert "error SQL0010: url is not a PostgreSQL URL" in ended.err


def test_the_schema_is_taken_from_the_option_the_variable_or_the_default(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("system", "status", "--json").json()["schema"] == "sqlstreams"
    monkeypatch.setenv("SQLSTREAMS_SCHEMA", "by_variable")
    assert run("system", "status", "--json").json()["schema"] == "by_variable"
    assert run("--schema", "before", "system", "status", "--json").json()["schema"] == "before"
    assert run("--schema", "before", "system", "status", "--schema", "behind", "--json").json()["schema"] == "behind"


def test_an_empty_schema_tells_what_to_run(run: Run) -> None:
    status = run("system", "status", "--schema", "empty", "--json")
    refused = run("stream", "list", "--schema", "empty")

    assert (status.code, status.json()["installed"]) == (1, False)
    assert refused.code == 1
    assert "error SQL0020" in refused.err
    assert "sqlstreams system register" in refused.err


@pytest.mark.parametrize(
    "command",
    ["stream get nothing", "stream tail nothing", "stream produce nothing --payload {}", "consumer list -s nothing"],
)
def test_an_absent_stream_ends_with_1_and_the_names_that_are_near(run: Run, command: str) -> None:
    run("stream", "register", "nothings")

    ended = run(*command.split())

    assert ended.code == 1
    assert not ended.out
    assert "error SQL0012: there is no stream named 'nothing'" in ended.err
    assert "did you mean nothings?" in ended.err
    assert "sqlstreams explain SQL0012" in ended.err


def test_usage_ends_with_2_and_writes_nothing(run: Run, database_url: str) -> None:
    _set_up(database_url)
    for command in MISUSED:
        ended = run(*command.split())
        assert ended.code == 2, (command, ended.err)
        assert not ended.out
        assert "Usage" in ended.err or "error" in ended.err
    assert run("stream", "list", "--json").json()[0]["head"] == 2


def test_a_reader_that_goes_away_ends_the_command_silently(run: Run, database_url: str, tmp_path: Path) -> None:
    _set_up(database_url)
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 20_000)
    run("stream", "produce", "invoices", "--file", str(lines))

    script = "sqlstreams stream tail invoices --from beginning --json | head -1; exit ${PIPESTATUS[0]}"
    ended = subprocess.run(
        ["bash", "-c", script], env=environment(database_url), capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout.count("\n"), ended.stderr) == (141, 1, "")


def test_without_any_database_both_ways_out_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SQLSTREAMS_DATABASE_URL", raising=False)
    monkeypatch.setenv("SQLSTREAMS_PG_BIN", str(tmp_path))

    ended = run_here(capsys, "stream", "list")

    assert ended.code == 1
    assert "error SQL0050" in ended.err
    assert "pip install 'sqlstreams[embedded]'" in ended.err
    assert "SQLSTREAMS_DATABASE_URL" in ended.err


def test_the_embedded_server_is_used_without_a_url_and_that_is_said(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQLSTREAMS_DATABASE_URL", raising=False)
    server = SimpleNamespace(url=database_url, version="18.6", directory="/somewhere")
    monkeypatch.setattr(embedded, "serve", lambda: _lent(server))

    ended = run_here(capsys, "stream", "list", "--json")

    assert (ended.code, ended.json()) == (0, [])
    assert "using the embedded PostgreSQL 18.6 in /somewhere" in ended.err


def test_help_and_version_need_neither_the_library_nor_a_database() -> None:
    program = (
        "import sys; from sqlstreams_cli.main import main; codes = main(['--help']), main(['--version']); "
        "sys.exit(f'{codes}' if any(codes) or {'sqlstreams', 'psycopg', 'rich'} & set(sys.modules) else 0)"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Usage: sqlstreams" in ended.stdout


def test_every_help_ends_with_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command, example in examples().items():
        ended = run_here(capsys, *command.split(), "--help")
        assert ended.out.rstrip().splitlines()[-1].strip() == example


def test_the_examples_work_when_pasted_one_after_the_other(run: Run, database_url: str) -> None:
    _make_bills(database_url)
    shown = examples()
    assert set(shown) == {*PASTED, "consumer run", "relay run", "dead show", "stream cancel", "dev", "manager run"}

    for name in PASTED:
        if "|" in shown[name]:
            subprocess.run(
                ["bash", "-c", shown[name]], env=environment(database_url), stdout=subprocess.DEVNULL, check=True
            )
        else:
            program, *arguments = shlex.split(shown[name])
            assert (program, run(*arguments).code) == ("sqlstreams", 0), name


@contextmanager
def _lent(server: object) -> Iterator[object]:
    yield server


def _set_up(database_url: str) -> None:
    with Client(database_url, allow_destroy=True) as client:
        for info in client.list_streams():
            client.stream(info.name).destroy()
        invoices = client.stream("invoices").register()
        invoices.producer().produce(RawPayload(b"{}"), key="eu", compaction_rank=0)
        invoices.producer().produce(RawPayload(b"{}"), delay=timedelta(hours=1))
        group = invoices.consumer("g").register().get()
        _register_deadline(client, database_url)
        client.scheduler("nightly").register("invoices", "0 2 * * *", RawPayload(b"{}"), timezone="Europe/Berlin")
    assert group is not None
    with psycopg.connect(database_url, autocommit=True) as connection:
        queue = f"sqlstreams.exception_queue_{_stream_id(connection)}"
        row = f"(group_id, message_id, state, can_run_after) values ({group.id}, 1, 'dead', now())"
        connection.execute(f"insert into {queue} {row}".encode())


def _register_deadline(client: Client, database_url: str) -> None:
    _make_bills(database_url)
    client.deadline("overdue").register(
        "invoices", table="bills", key="id", deadline="due_at", state="state", from_state="open", to_state="overdue"
    )


def _make_bills(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "create table if not exists bills (id bigint primary key, due_at timestamptz, state text, region text)"
        )


def _stream_id(connection: psycopg.Connection) -> int:
    row = connection.execute("select id from sqlstreams.stream_config").fetchone()
    assert row is not None
    return int(row[0])
