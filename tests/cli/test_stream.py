"""`sqlstreams stream`: what is produced, what is refused, what is shown and what is destroyed."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import pytest

from sqlstreams import Client
from tests.cli.command import Ended, Process, finish
from tests.support import Note, eventually

Run = Callable[..., Ended]
Start = Callable[..., Process]


@pytest.fixture
def invoices(run: Run) -> str:
    assert run("stream", "register", "invoices").code == 0
    return "invoices"


def write(path: Path, *lines: str | bytes) -> str:
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))
    return str(path)


def test_a_stream_is_shown_with_the_fields_of_the_library(run: Run) -> None:
    shown = run("stream", "register", "invoices", "--max-payload", "100", "--json").json()

    assert shown == run("stream", "get", "invoices", "--json").json()
    assert [shown] == run("stream", "list", "--json").json()
    assert (shown["name"], shown["max_payload"], shown["head"], shown["groups"]) == ("invoices", 100, 0, 0)
    assert shown["created_at"].endswith("Z")


def test_versions_are_shown_with_what_groups_have_left_of_them(run: Run, invoices: str, database_url: str) -> None:
    with Client(database_url) as client:
        client.stream(invoices, Note).register()
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "insert into sqlstreams.message_log_1 (payload, schema_version) values ('1', 1), ('2', 2), ('3', 2)"
        )
    (without_groups,) = run("stream", "versions", invoices).out.splitlines()[1:]
    assert without_groups.split()[-5:] == ["yes", "-", "0", "0", "0"]
    run("consumer", "register", "g", "-s", invoices, "--start", "1")

    one, two = run("stream", "versions", invoices, "--json").json()
    assert (one["schema_version"], one["can_retire"]) == (1, True)
    assert (two["schema_version"], two["can_retire"]) == (2, False)
    assert two["groups"] == [{"group": "g", "waiting": 2, "unread": 0, "dead": 0}]
    assert "g" in run("stream", "versions", invoices).out


def test_renaming_keeps_the_messages(run: Run, invoices: str) -> None:
    run("stream", "produce", invoices, "--payload", "1")

    assert run("stream", "rename", invoices, "bills", "--json").json()["head"] == 1
    assert run("stream", "get", invoices).code == 1


def test_the_head_and_the_history_of_a_key_are_shown(run: Run, invoices: str) -> None:
    for number in (1, 2):
        run("stream", "produce", invoices, "--payload", str(number), "--key", "eu", "--compaction-rank", "0")

    assert run("stream", "head", invoices, "eu", "--json").json()["payload"] == 2
    assert [each["payload"] for each in run("stream", "history", invoices, "eu", "--json").json()] == [2, 1]
    assert run("stream", "compact", invoices, "--older-than", "0s", "--json").json() == {"removed": 1}
    assert run("stream", "head", invoices, "us", "--json").out == "null\n"
    assert run("stream", "compact", invoices).code == 2


def test_what_is_produced_for_later_is_shown_and_cancelled(run: Run, invoices: str) -> None:
    run("consumer", "register", "g", "-s", invoices)
    run("stream", "produce", invoices, "--payload", "1", "--delay", "2h")
    run("stream", "produce", invoices, "--payload", "2", "--deliver-at", "2031-01-01T00:00Z")

    assert run("stream", "waiting", invoices, "--json").json() == []  # no process of the group has met them yet
    assert run("stream", "waiting", invoices, "--group", "g", "--json").json() == []
    for message_id in ("1", "2"):
        ended = run("stream", "cancel", invoices, message_id, "--json")
        assert ended.json() == [{"group": "g", "outcome": "cancelled"}]
    assert run("stream", "cancel", invoices, "3").code == 1


def test_every_line_of_a_file_becomes_a_message_in_order(run: Run, invoices: str, tmp_path: Path) -> None:
    lines = [f'{{"n": {number}}}' for number in range(2_500)]
    file = write(tmp_path / "events", "\ufeff" + lines[0], "", "  \r", *lines[1:])

    summary = run("stream", "produce", invoices, "--file", file, "--batch", "700", "--json").json()

    assert (summary["produced"], summary["first_id"], summary["last_id"]) == (2_500, 1, 2_500)
    shown = run("stream", "tail", invoices, "--from", "beginning", "--json").json_lines()
    assert [each["payload"]["n"] for each in shown] == list(range(2_500))


def test_keys_come_from_fields_of_the_payload(run: Run, invoices: str, tmp_path: Path) -> None:
    file = write(tmp_path / "events", '{"region": "eu", "id": 7}', '{"id": 8, "region": "us"}')

    run("stream", "produce", invoices, "-f", file, "--key-field", "id", "--routing-key-field", "region")

    shown = run("stream", "tail", invoices, "--json").json_lines()
    assert [(each["key"], each["routing_key"]) for each in shown] == [("7", "eu"), ("8", "us")]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"n": NaN}', "payload must be valid JSON"),
        ('{"n": "\\u0000"}', "payload.n must not contain the character NUL"),
        (b'{"n": "\xff"}', "payload must be valid JSON"),
        ('{"n": "\\ud800"}', "payload must be valid JSON"),
        (f'"{"x" * 99}"', "payload must have at most 100 bytes as JSON, got 101"),
        ("x" * 1_000_000, "payload must have at most 100 bytes as JSON"),
        ("{", "payload must be valid JSON"),
    ],
)
def test_a_bad_line_is_named_and_what_was_produced_before_its_batch_stays(
    run: Run, tmp_path: Path, bad: str | bytes, said: str
) -> None:
    run("stream", "register", "invoices", "--max-payload", "100")
    lines = [f'{{"n": {number}}}' for number in range(1, 17)]
    file = write(tmp_path / "events", *lines, bad, "18")

    ended = run("stream", "produce", "invoices", "--file", file, "--batch", "5", "--json")

    assert ended.code == 1
    assert f"error SQL0010: line 17: {said}" in ended.err
    assert "go on with --skip 15" in ended.err
    assert (ended.json()["produced"], ended.json()["lines"]) == (15, 15)
    # What it says is what helps.
    write(tmp_path / "events", *lines, "17", "18")
    assert run("stream", "produce", "invoices", "--file", file, "--skip", "15").code == 0
    shown = run("stream", "tail", "invoices", "--from", "beginning", "--json").json_lines()
    assert [each["payload"] for each in shown] == [*({"n": number} for number in range(1, 17)), 17, 18]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 1: payload has no field 'id' for the key"),
        ('{"id": null}', "line 1: payload.id must be a text or a whole number to be a key"),
        ('{"id": true}', "line 1: payload.id must be a text"),
        ('{"id": ""}', "line 1: key must have 1 to 512 bytes, got 0"),
        ("[1]", "line 1: payload must be a JSON object"),
        (msgspec.json.encode({"id": "é" * 257}).decode(), "line 1: key must have 1 to 512 bytes, got 514"),
    ],
)
def test_a_line_without_a_good_key_is_refused(run: Run, invoices: str, tmp_path: Path, line: str, said: str) -> None:
    ended = run("stream", "produce", invoices, "--file", write(tmp_path / "events", line), "--key-field", "id")

    assert ended.code == 1
    assert said in ended.err
    assert run("stream", "get", invoices, "--json").json()["head"] == 0


def test_limits_hold_at_and_over_the_edge(run: Run) -> None:
    name, long_name = "a" * 100, "a" * 101
    key, long_key = "k" * 512, "k" * 513
    payload, long_payload = f'"{"x" * 98}"', f'"{"x" * 99}"'

    assert run("stream", "register", name, "--max-payload", "100").code == 0
    assert run("stream", "register", long_name).code == 2
    produce = ("stream", "produce", name)
    assert run(*produce, "--payload", payload, "--key", key, "--routing-key", key).code == 0
    for over in (("--payload", long_payload), ("--payload", "1", "--key", long_key), ("--payload", "1", "--key", "")):
        refused = run(*produce, *over)
        assert refused.code == 2
        assert "error SQL0010: " in refused.err
    assert run("stream", "get", name, "--json").json()["head"] == 1


def test_a_file_that_cannot_be_read_is_named(run: Run, invoices: str, tmp_path: Path) -> None:
    ended = run("stream", "produce", invoices, "--file", str(tmp_path / "nothing"))

    assert ended == Ended(1, "", f"error: No such file or directory: {tmp_path}/nothing\n")


async def test_lines_of_a_slow_pipe_are_produced_as_they_come_and_counted_at_ctrl_c(
    start: Start, run: Run, invoices: str, database_url: str
) -> None:
    process = start("stream", "produce", invoices)
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.flush()

    with Client(database_url) as client:
        await eventually(lambda: client.stream(invoices).status().head == 2)
    process.send_signal(signal.SIGINT)
    ended = finish(process)

    assert ended.code == 130
    assert "produced 2 messages" in ended.out
    assert "go on with --skip 2" in ended.err
    assert "Traceback" not in ended.err


def test_tail_shows_the_last_messages_or_those_behind_a_position(run: Run, invoices: str, tmp_path: Path) -> None:
    run("stream", "produce", invoices, "--file", write(tmp_path / "events", *(str(number) for number in range(1, 21))))

    def ids(*options: str) -> list[int]:
        return [each["id"] for each in run("stream", "tail", invoices, "--json", *options).json_lines()]

    assert ids() == list(range(11, 21))
    assert ids("-n", "2") == [19, 20]
    assert ids("--from", "beginning", "-n", "2") == [1, 2]
    assert ids("--from", "18") == [19, 20]
    assert ids("--from", "head") == []
    assert ids("--from", "2000-01-01T00:00Z", "-n", "1") == [1]
    assert ids("--from", "2999-01-01T00:00+02:00") == []


def test_payloads_are_shown_as_they_were_stored_on_one_line(run: Run, invoices: str, database_url: str) -> None:
    with psycopg.connect(database_url) as writer:
        writer.execute(
            "insert into sqlstreams.message_log_1 (payload, message_key) values (%s, %s), (%s, null)",
            ('{\n "n": 12345678901234567890.10 }', "red\x1b[31m", '"\\ud800"'),
        )

    for_people = run("stream", "tail", invoices).out.splitlines()
    for_programs = run("stream", "tail", invoices, "--json").out.splitlines()

    assert for_people[0].endswith('red\\x1b[31m  {"n":12345678901234567890.10}')
    assert '"payload":{"n":12345678901234567890.10}' in for_programs[0]
    assert '"payload":"\\ud800"' in for_programs[1]


def test_tail_follow_shows_messages_as_they_come(start: Start, run: Run, invoices: str) -> None:
    run("stream", "produce", invoices, "--payload", '"long ago"')
    run("stream", "produce", invoices, "--payload", '"before"')
    process = start("stream", "tail", invoices, "--follow", "--json", "--limit", "1")
    assert process.stdout is not None
    assert '"payload":"before"' in process.stdout.readline()

    run("stream", "produce", invoices, "--payload", '"after"')

    assert '"payload":"after"' in process.stdout.readline()


def test_tail_from_a_position_waits_for_as_many_messages_as_are_asked_for(
    start: Start, run: Run, invoices: str
) -> None:
    run("stream", "produce", invoices, "--payload", '"first"')
    process = start("stream", "tail", invoices, "--follow", "--json", "--from", "beginning", "--limit", "2")
    assert process.stdout is not None
    assert '"payload":"first"' in process.stdout.readline()

    run("stream", "produce", invoices, "--payload", '"second"')
    ended = finish(process)

    assert (ended.code, ended.err) == (0, "")
    assert '"payload":"second"' in ended.out


def test_ctrl_c_ends_a_tail_without_a_word(start: Start, run: Run, invoices: str) -> None:
    run("stream", "produce", invoices, "--payload", "1")
    process = start("stream", "tail", invoices, "--follow")
    assert process.stdout is not None
    assert process.stdout.readline()

    process.send_signal(signal.SIGINT)

    assert finish(process) == Ended(130, "", "")


def test_nothing_is_destroyed_where_nobody_can_be_asked(
    run: Run, invoices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{invoices}\n"))

    ended = run("stream", "destroy", invoices)

    assert (ended.code, ended.out) == (2, "")
    assert "--yes" in ended.err
    assert run("stream", "get", invoices).code == 0


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code", "left"), [("invoices", 0, 1), ("invoice", 1, 0), ("", 1, 0)])
def test_destroying_asks_for_the_name(
    run: Run, invoices: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, left: int
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(f"{typed}\n"))

    ended = run("stream", "destroy", invoices)

    assert ended.code == code
    assert "Type the name" in ended.err
    assert run("stream", "get", invoices).code == left


def test_yes_destroys_at_once_and_shows_what_was_there(run: Run, invoices: str) -> None:
    ended = run("stream", "destroy", invoices, "--yes", "--json")

    assert (ended.code, ended.json()["name"]) == (0, invoices)
    assert run("stream", "list", "--json").json() == []


def test_a_file_that_is_produced_again_by_its_idempotency_keys_adds_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.ndjson"
    path.write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n{"id": 1, "text": "a"}\n')
    run("stream", "register", "notes", "--idempotency-ttl", "7d")
    produce = ("stream", "produce", "notes", "--file", str(path), "--idempotency-key-field", "id")
    assert run(*produce, "--json").json()["duplicates"] == 1
    assert "3 of them were there before" in run(*produce).out
    (status,) = run("stream", "list", "--json").json()
    assert (status["head"], status["idempotency_ttl"]) == (2, 604_800)


def test_an_idempotency_key_goes_with_one_payload_and_tells_a_conflict(run: Run) -> None:
    run("stream", "register", "notes")
    one = ("stream", "produce", "notes", "--idempotency-key", "k", "--payload")
    assert run(*one, '"a"').code == 0
    assert run(*one, '"a"').code == 0
    refused = run(*one, '"b"')
    assert refused.code == 1
    assert "SQL0014" in refused.err
    assert run("stream", "produce", "notes", "--idempotency-key", "k").code == 2
