"""`sqlstreams dead`: what died is listed, shown, redriven and discarded, and everything only when meant."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import psycopg
import pytest

from sqlstreams import Client, Message, RawPayload
from tests.cli.command import Ended

Run = Callable[..., Ended]
OF_G = ["g", "--stream", "notes"]


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def dead(database_url: str) -> None:
    """Three dead messages: the first two for one reason."""
    with Client(database_url) as client:
        stream = client.stream("notes").register()
        stream.consumer("g").register()
        stream.producer().produce_many([Message(RawPayload(b'{"n":%d}' % n), key=f"k{n}") for n in (1, 2, 3)])
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update sqlstreams.consumer_group_cursor set claimed = 3")
        connection.execute(
            "insert into sqlstreams.exception_queue_1"
            " (group_id, message_id, state, failures, can_run_after, error_type, error)"
            " select 1, n, 'dead', 2, now(), case n when 3 then 'ValueError' else 'TimeoutError' end, E'no\\nat x.py:1'"
            "   from generate_series(1, 3) as n"
        )
        connection.execute(
            "insert into sqlstreams.delivery_log_1"
            " (group_id, message_id, attempt, outcome, error_type, error, hostname, pid)"
            " values (1, 1, 1, 'failed', 'TimeoutError', 'no', 'h', 7), (1, 1, 2, 'dead', 'TimeoutError', 'no', 'h', 7)"
        )


def left(run: Run) -> list[int]:
    return [each["id"] for each in run("dead", "list", *OF_G, "--json").json()]


def test_dead_messages_are_listed_by_what_they_are(run: Run) -> None:
    (second,) = run("dead", "list", *OF_G, "--error", "Timeout", "--after", "1", "--json").json()
    assert (second["id"], second["key"], second["error_type"], second["failures"]) == (2, "k2", "TimeoutError", 2)
    assert [each["id"] for each in run("dead", "list", *OF_G, "--key", "k3", "--json").json()] == [3]
    assert run("dead", "list", *OF_G, "--until", "2026-01-01T00:00Z", "--json").json() == []
    assert len(run("dead", "list", *OF_G, "--limit", "2", "--json").json()) == 2
    for_people = run("dead", "list", *OF_G).out
    assert "TimeoutError" in for_people
    assert "x.py" not in for_people


def test_a_dead_message_is_shown_with_its_payload_and_its_deliveries(run: Run) -> None:
    shown = run("dead", "show", "g", "1", "--stream", "notes", "--json").json()
    assert (shown["id"], shown["key"], shown["payload"], shown["headers"]) == (1, "k1", {"n": 1}, {})
    assert [(each["outcome"], each["pid"]) for each in shown["deliveries"]] == [("failed", 7), ("dead", 7)]
    for_people = run("dead", "show", "g", "1", "--stream", "notes").out
    assert '{"n":1}' in for_people
    assert "at x.py:1" in for_people
    assert "failed" in for_people


def test_a_message_that_is_not_dead_has_a_history_all_the_same(run: Run) -> None:
    run("dead", "redrive", "g", "1", "--stream", "notes")

    ended = run("dead", "show", "g", "1", "--stream", "notes")

    assert ended.code == 1
    assert "message 1 is not dead in group g of stream notes" in ended.err
    assert "sqlstreams dead history g 1 --stream notes" in ended.err
    history = run("dead", "history", "g", "1", "--stream", "notes", "--json").json()
    assert [each["outcome"] for each in history] == ["failed", "dead", "redriven"]


def test_what_is_named_or_filtered_is_redriven(run: Run) -> None:
    assert run("dead", "redrive", "g", "3", "9", "--stream", "notes", "--json").json()["messages"] == 1
    redriven = run("dead", "redrive", *OF_G, "--error", "Timeout", "--rate", "10", "--json").json()
    assert redriven["messages"] == 2
    assert redriven["first_due"] < redriven["last_due"]
    assert left(run) == []


def test_what_is_discarded_keeps_its_reason(run: Run) -> None:
    assert run("dead", "discard", "g", "1", "--stream", "notes", "--reason", "paid", "--json").json() == {"messages": 1}
    assert left(run) == [2, 3]
    *_, last = run("dead", "history", "g", "1", "--stream", "notes", "--json").json()
    assert (last["outcome"], last["error"]) == ("discarded", "paid")


@pytest.mark.parametrize("verb", [["redrive"], ["discard", "--reason", "no"]], ids=["redrive", "discard"])
def test_everything_is_moved_only_when_meant(run: Run, monkeypatch: pytest.MonkeyPatch, verb: list[str]) -> None:
    command = ["dead", *verb, *OF_G]
    assert run(*command).code == 2
    nobody = run(*command, "--all")
    assert (nobody.code, "give --yes" in nobody.err) == (2, True)
    monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
    declined = run(*command, "--all")
    assert (declined.code, "nothing was" in declined.err) == (1, True)
    assert left(run) == [1, 2, 3]

    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    meant = run(*command, "--all")

    assert meant.code == 0
    assert "all 3 dead messages of group g of stream notes" in meant.err
    assert left(run) == []


def test_everything_is_moved_without_a_question_with_yes(run: Run) -> None:
    assert run("dead", "redrive", *OF_G, "--all", "--yes", "--json").json()["messages"] == 3


def test_a_terminal_sees_how_far_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run("dead", "redrive", *OF_G, "--all", "--yes")
    assert "\r3 redriven" in terminal.getvalue()
