"""`sqlstreams consumer`: groups, where they stand, and processes that run them and end together."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sqlstreams import Client, DeliveryLimits, RawPayload
from sqlstreams_cli.failing import Failed
from sqlstreams_cli.handler import payload_type
from tests.cli.command import Ended, Process, finish
from tests.support import Note, eventually

Run = Callable[..., Ended]
Start = Callable[..., Process]

HANDLERS = """
import os, time
from datetime import timedelta
from pathlib import Path

def keep(payload: dict):
    with open(f"kept.{os.getpid()}", "a") as file:
        file.write(f"{payload['n']}\\n")

def crash_once(payload: dict):
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(9)
    keep_slowly(payload)

def keep_slowly(payload: dict):
    time.sleep(0.02)
    keep(payload)

def fail(payload: dict):
    Path(f"failed.{os.getpid()}").touch()
    raise ValueError("not today")

def no_argument():
    pass

def hang(payload: dict):
    Path(f"hangs.{os.getpid()}").touch()
    time.sleep(600)

not_callable = 3
"""
BROKEN = "import sqlstreams\n1 / 0\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "wants.py").write_text("import a_module_that_nobody_has\n")
    return tmp_path


@pytest.fixture
def notes(database_url: str) -> str:
    with Client(database_url) as client:
        stream = client.stream("notes").register()
        stream.consumer("g").register()
        stream.producer().produce_many([RawPayload(b'{"n":%d}' % number) for number in range(200)])
    return "notes"


def kept(place: Path) -> list[int]:
    return sorted(int(line) for file in place.glob("kept.*") for line in file.read_text().split())


def pids(place: Path, what: str) -> list[int]:
    return [int(file.suffix[1:]) for file in place.glob(f"{what}.*")]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_group_is_shown_with_the_fields_of_the_library(run: Run, notes: str) -> None:
    options = ["--stream", notes, "--start", "150", "--retry-base", "500ms", "--retry-cap", "1h30m"]
    options += ["--max-retries", "3", "--max-delays", "4", "--timeout", "1m"]
    shown = run("consumer", "register", "late", *options, "--json").json()

    assert (shown["start_at"], shown["max_retries"], shown["lag"], shown["processes"]) == ("150", 3, 50, 0)
    assert (shown["max_delays"], shown["timeout"]) == (4, 60)
    assert (shown["retry_base"], shown["retry_cap"]) == (0.5, 5_400.0)
    assert shown["lag_time"] > 0
    assert (shown["instances"], shown["holders"]) == ([], [])
    listed = run("consumer", "list", "--json").json()
    assert [(each["stream"], each["name"], each["lag"]) for each in listed] == [(notes, "g", 200), (notes, "late", 50)]
    assert run("consumer", "list", "--stream", notes, "--json").json()[1]["retry_base"] == 0.5


def test_who_holds_back_a_claim_is_shown(run: Run, notes: str, database_url: str) -> None:
    with psycopg.connect(database_url, application_name="forgetful") as idle, Client(database_url) as client:
        run("consumer", "register", "late", "--stream", notes, "--start", "head")
        idle.execute("insert into sqlstreams.message_log_1 (payload) values ('{}')")
        client.stream(notes).producer().produce(RawPayload(b"{}"))

        (holder,) = run("consumer", "get", "late", "-s", notes, "--json").json()["holders"]
        for_people = run("consumer", "get", "late", "-s", notes).out

        assert (holder["pid"], holder["application"]) == (idle.info.backend_pid, "forgetful")
        assert f"pid {idle.info.backend_pid} (forgetful), open for" in for_people


def test_a_group_is_destroyed_only_when_meant(run: Run, notes: str) -> None:
    assert run("consumer", "destroy", "g", "-s", notes).code == 2
    assert run("consumer", "get", "g", "-s", notes).code == 0
    assert run("consumer", "destroy", "g", "-s", notes, "--yes", "--json").json()["lag"] == 200
    assert run("consumer", "get", "g", "-s", notes).code == 1


def test_a_group_is_moved_only_when_meant(run: Run, notes: str) -> None:
    for verb, to in (("skip", "150"), ("rewind", "100")):
        place = ("consumer", verb, "g", "-s", notes, "--to", to)
        previewed = run(*place, "--preview", "--json").json()
        refused = run(*place)
        assert (refused.code, refused.out) == (2, "")
        assert run(*place, "--yes", "--json").json() == previewed
        assert run("consumer", "get", "g", "-s", notes, "--json").json()["claimed"] == int(to)
        assert run(*place, "--json").json()["messages"] == 0  # nothing to ask for


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code", "claimed"), [("yes", 0, 150), ("no", 1, 0), ("", 1, 0)])
def test_moving_a_group_shows_what_it_means_and_asks(
    run: Run, notes: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, claimed: int
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(f"{typed}\n"))

    ended = run("consumer", "skip", "g", "-s", notes, "--to", "150")

    assert ended.code == code
    assert "never delivers 150 messages to g, behind id 0 and up to 150, produced from" in ended.err
    assert run("consumer", "get", "g", "-s", notes, "--json").json()["claimed"] == claimed


def test_who_moved_a_group_and_what_was_taken_over_is_shown(run: Run, notes: str, database_url: str) -> None:
    for to in ("100", "150"):
        run("consumer", "skip", "g", "-s", notes, "--to", to, "--yes")
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "insert into sqlstreams.reclaim_log (group_id, low, high, resolved, done, from_hostname, from_pid)"
            " values (1, 151, 160, 155, '{157}', 'gone', 7)"
        )

    shown = run("consumer", "positions", "g", "-s", notes, "--json").json()
    assert [(each["action"], each["position"], each["messages"]) for each in shown] == [
        ("skipped", 150, 50),
        ("skipped", 100, 100),
    ]
    assert len(run("consumer", "positions", "g", "-s", notes, "-n", "1", "--json").json()) == 1
    (taken,) = run("consumer", "reclaims", "g", "-s", notes, "--json").json()
    assert (taken["low"], taken["high"], taken["done"], taken["from_pid"]) == (151, 160, [157], 7)
    assert "gone" in run("consumer", "reclaims", "g", "-s", notes).out


def test_renaming_a_group_keeps_its_cursor(run: Run, notes: str) -> None:
    run("consumer", "register", "late", "-s", notes, "--start", "150")

    assert run("consumer", "rename", "late", "later", "-s", notes, "--json").json()["lag"] == 50


def test_an_absent_group_is_told_with_how_to_make_it(run: Run, notes: str) -> None:
    ended = run("consumer", "run", "builtins:print", "-s", notes, "-g", "gg")

    assert ended.code == 1
    assert "there is no consumer group named 'gg on notes'" in ended.err
    assert "sqlstreams consumer register gg --stream notes" in ended.err
    assert "did you mean g on notes?" in ended.err


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("nowhere:handle", "there is no module 'nowhere' in"),
        ("handlers:kep", "there is no 'kep' in handlers\nfix: did you mean keep?"),
        ("handlers:not_callable", "handlers:not_callable is no function but a int"),
        ("broken:handle", "importing broken failed: ZeroDivisionError: division by zero ("),
        ("wants:handle", "importing wants failed: ModuleNotFoundError: No module named 'a_module_that_nobody_has'"),
        ("handlers:no_argument", "the handler no_argument takes no argument"),
    ],
)
def test_a_handler_that_cannot_be_used_is_told_why(
    run: Run, notes: str, place: Path, monkeypatch: pytest.MonkeyPatch, handler: str, said: str
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))

    ended = run("consumer", "run", handler, "-s", notes, "-g", "g")

    assert ended.code == 1
    assert said in ended.err


def _typed(note: Note) -> None: ...
def _bytes(note: bytes) -> None: ...
def _dict(note: dict) -> None: ...  # type: ignore[type-arg]  # as people write it
def _untyped(note): ...  # type: ignore[no-untyped-def]  # as people write it
def _unreadable(note: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # what it is about


class _Callable:
    def __call__(self, note: Note) -> None: ...


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (_typed, Note),
        (_bytes, RawPayload),
        (_dict, dict),
        (_untyped, RawPayload),
        (_Callable(), Note),
        (print, RawPayload),
    ],
)
def test_the_payload_type_is_that_of_the_first_parameter(handler: Callable[[Any], Any], expected: type) -> None:
    assert payload_type(handler) is expected


def test_an_annotation_that_cannot_be_read_is_told() -> None:
    with pytest.raises(Failed, match="Nowhere"):
        payload_type(_unreadable)


async def test_one_process_consumes_until_sigterm(start: Start, notes: str, place: Path) -> None:
    process = start("consumer", "run", "handlers:keep", "-s", notes, "-g", "new", "--register", "--json", cwd=place)

    await eventually(lambda: len(kept(place)) == 200)
    process.send_signal(signal.SIGTERM)
    ended = finish(process)

    assert (ended.code, ended.json()["handled"]) == (0, 200), ended.err


async def test_verbose_logs_what_happens_with_its_code_on_stderr(start: Start, notes: str, place: Path) -> None:
    process = start("consumer", "run", "handlers:fail", "-s", notes, "-g", "g", "-v", "--json", cwd=place)

    await eventually(lambda: len(pids(place, "failed")) == 1)
    process.send_signal(signal.SIGTERM)
    ended = finish(process)

    assert ended.json()["failed"] > 0
    assert "INFO SQL0106" in ended.err
    assert "not today" in ended.err


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
async def test_several_processes_share_the_work_and_end_at_a_signal(
    start: Start, notes: str, place: Path, ending: signal.Signals
) -> None:
    options = ["--processes", "2", "--concurrency", "1", "--prefetch", "1"]
    process = start("consumer", "run", "handlers:keep_slowly", "-s", notes, "-g", "g", *options, cwd=place)
    await eventually(lambda: len(pids(place, "kept")) == 2)

    process.send_signal(ending)
    ended = finish(process)

    assert ended.code == 0, ended.err
    assert ended.err.count(" handled ") == 2
    assert len(set(kept(place))) == len(kept(place))
    assert not any(lives(pid) for pid in pids(place, "kept"))


async def test_a_crashed_process_is_started_again(start: Start, notes: str, place: Path) -> None:
    options = ["--processes", "2", "--concurrency", "1", "--prefetch", "1"]
    process = start("consumer", "run", "handlers:crash_once", "-s", notes, "-g", "g", *options, cwd=place)

    await eventually(lambda: len(pids(place, "kept")) == 2)
    process.send_signal(signal.SIGTERM)
    ended = finish(process)

    assert ended.code == 0
    assert "a process ended with exit code 9; starting another in 1 s" in ended.err


async def test_when_the_parent_is_killed_its_processes_end_too(start: Start, notes: str, place: Path) -> None:
    options = ["--processes", "2", "--concurrency", "1", "--prefetch", "1", "--grace", "100ms"]
    process = start("consumer", "run", "handlers:hang", "-s", notes, "-g", "g", *options, cwd=place)
    await eventually(lambda: len(pids(place, "hangs")) == 2)

    process.send_signal(signal.SIGKILL)

    await eventually(lambda: not any(lives(pid) for pid in pids(place, "hangs")))


def test_bindings_are_declared_and_tried(run: Run, notes: str, database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream(notes).producer()
        for routing_key in ("eu.paid", "us.paid", "eu.new"):
            producer.produce(RawPayload(b'{"n":0}'), routing_key=routing_key)
    options = ["bound", "--stream", notes]
    shown = run("consumer", "register", *options, "--binding", "us.*", "--binding", "ap.*", "--json").json()
    assert shown["bindings"] == ["ap.*", "us.*"]

    preview = run("consumer", "bindings", *options, "--last", "4", "--json").json()
    assert (preview["bindings"], preview["looked_at"], preview["matching"]) == (["ap.*", "us.*"], 4, 1)
    tried = run("consumer", "bindings", *options, "--try", "eu.*", "--last", "4")
    assert "2 of the last 4 messages match: eu.*" in tried.err
    assert run("consumer", "bindings", "absent", "--stream", notes).code == 1
    assert run("consumer", "get", *options, "--json").json()["bindings"] == ["ap.*", "us.*"]


def test_limits_of_what_messages_ask_for_can_be_declared(run: Run, database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("orders").register()
    limits = ("--limit-timeout", "1s..5m", "--limit-max-retries", "..20", "--limit-max-delays", "3..")
    registered = run("consumer", "register", "g", "--stream", "orders", *limits, "--binding", "eu.*", "--json")
    assert registered.code == 0
    with Client(database_url) as client:
        info = client.stream("orders").consumer("g").get()
    assert info is not None
    assert info.limits == DeliveryLimits(
        timeout=(timedelta(seconds=1), timedelta(minutes=5)), max_retries=(None, 20), max_delays=(3, None)
    )
    assert registered.json()["binding_outcome"] == "installed"
    assert (registered.json()["held_by"], registered.json()["waiting"]) == ([], [])
    for wrong in ("5", "x..y", "-1.."):
        assert run("consumer", "register", "g", "--stream", "orders", "--limit-max-retries", wrong).code == 2


def test_messages_are_produced_with_options_for_their_deliveries(run: Run, database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("orders").register().consumer("g").register()
    options = ("--concurrency", "ordered", "--timeout", "90s", "--max-retries", "3", "--retry-base", "2s")
    assert run("stream", "produce", "orders", "--payload", "{}", "--key", "k", *options).code == 0
    with psycopg.connect(database_url) as connection:
        row = connection.execute("select options from sqlstreams.message_log_1").fetchone()
    assert row == ({"concurrency": "ordered", "timeout": "PT90S", "max_retries": 3, "retry_base": "PT2S"},)
    assert run("stream", "produce", "orders", "--payload", "{}", "--max-retries", "-1").code in (1, 2)
