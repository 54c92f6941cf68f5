"""Producing from plain SQL: one message and many, in a trigger, with keys, and with what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sqlstreams import Client, Message, Receipt, Stream
from tests.produce.log import ask, stored
from tests.support import Note


@pytest.fixture
def stream(database_url: str) -> Iterator[Stream[Note]]:
    """A stream of notes."""
    with Client(database_url) as client:
        yield client.stream("notes", Note).register()


def _produce_many(url: str, messages: Any) -> list[int]:
    text = messages if isinstance(messages, str | None) else json.dumps(messages)
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("select sqlstreams.produce_many('notes', %s)", [text]).fetchall()
    return [message_id for (message_id,) in rows]


def _produce_one(url: str, text: str, key: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select sqlstreams.produce('notes', %s, idempotency_key => %s)"
        row = connection.execute(query, [json.dumps({"text": text}), key]).fetchone()
    assert row is not None
    return int(row[0])


def test_many_messages_are_appended_in_their_order_with_what_they_ask_for(
    stream: Stream[Note], database_url: str
) -> None:
    asked = {"message_key": "k", "routing_key": "r", "headers": {"a": "b"}, "concurrency": "ordered", "timeout": "2 s"}
    assert _produce_many(database_url, [{"payload": {"text": "a"}}, {"payload": {"text": "b"}, **asked}]) == [1, 2]
    assert stored(database_url) == ["a", "b"]
    first, second = stream.read()
    assert (first.key, first.headers) == (None, {})
    assert (second.key, second.routing_key, second.headers) == ("k", "r", {"a": "b"})
    assert ask(database_url, "select keyed from sqlstreams.stream_config") == [(True,)]


def test_no_messages_are_nothing(stream: Stream[Note], database_url: str) -> None:
    assert _produce_many(database_url, []) == []
    assert stream.read() == []


def test_more_messages_than_a_partition_holds_are_appended(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("notes", Note).register(partition_rows=1_000)
    messages = [{"payload": {"text": str(number)}, "idempotency_key": f"k{number}"} for number in range(2_500)]
    assert _produce_many(database_url, messages) == list(range(1, 2_501))
    assert _produce_many(database_url, messages[::-1]) == list(range(2_500, 0, -1))
    assert stored(database_url) == [str(number) for number in range(2_500)]


def test_a_key_counts_for_sql_and_the_client_alike(stream: Stream[Note], database_url: str) -> None:
    producer = stream.producer()
    assert producer.produce(Note("a"), idempotency_key="client").id == 1
    assert _produce_many(database_url, '[{"payload": {"text":"a"}, "idempotency_key": "client"}]') == [1]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("""select sqlstreams.produce('notes', '{"text":"b"}', idempotency_key => 'sql')""")
    assert producer.produce(Note("b"), idempotency_key="sql") == Receipt(2, duplicate=True)


def test_repeats_and_expired_keys_line_up_with_the_messages(stream: Stream[Note], database_url: str) -> None:
    assert _produce_one(database_url, "old", "old") == 1
    assert _produce_one(database_url, "late", "late") == 2
    ask(database_url, "update sqlstreams.idempotency_key_1 set expires_at = now() where idempotency_key = 'late'")
    messages = [
        {"payload": {"text": "b"}, "idempotency_key": "b"},
        {"payload": {"text": "plain"}},
        {"payload": {"text": "old"}, "idempotency_key": "old"},
        {"payload": {"text": "b"}, "idempotency_key": "b"},
        {"payload": {"text": "again"}, "idempotency_key": "late"},
    ]
    assert _produce_many(database_url, messages) == [3, 4, 1, 3, 5]
    assert stored(database_url) == ["old", "late", "b", "plain", "again"]
    kept = ask(database_url, "select idempotency_key, message_id from sqlstreams.idempotency_key_1 order by 1")
    assert kept == [("b", 3), ("late", 5), ("old", 1)]


def test_a_conflict_has_an_sqlstate_and_names_the_message(stream: Stream[Note], database_url: str) -> None:
    stream.producer().produce_many([Message(Note("old"), idempotency_key="old")])
    with pytest.raises(psycopg.Error, match=r"^idempotency_key 'old' is that of message 1, which") as refused:
        _produce_one(database_url, "new", "old")
    assert (refused.value.sqlstate, refused.value.diag.column_name) == ("SS014", "idempotency_key")
    new = {"payload": 1, "idempotency_key": "new"}
    with pytest.raises(psycopg.Error, match=r"^messages\[1\]\.idempotency_key 'new' is that of messages\[0\], which"):
        _produce_many(database_url, [new, {**new, "payload": 2}])
    assert stored(database_url) == ["old"]
    assert len(ask(database_url, "select 1 from sqlstreams.idempotency_key_1")) == 1


def test_of_the_ranks_of_a_key_the_greatest_is_its_head(stream: Stream[Note], database_url: str) -> None:
    ranked = [("a", 2), ("a", 1), ("b", 0), ("a", 2)]
    messages = [{"payload": {"text": key}, "message_key": key, "compaction_rank": rank} for key, rank in ranked]
    _produce_many(database_url, messages)
    heads = ask(database_url, "select message_key, rank, id from sqlstreams.compaction_head_1 order by 1")
    assert heads == [("a", 2, 4), ("b", 0, 3)]


@pytest.mark.parametrize(
    ("messages", "field", "problem"),
    [
        (None, "messages", "messages must be a JSON array of objects"),
        ("{}", "messages", "messages must be a JSON array of objects"),
        ("[[]]", "messages", r"messages\[0\] must be a JSON object"),
        ('[{"payload": 1}, 7]', "messages", r"messages\[1\] must be a JSON object"),
        ('[{"payload": 1}, {}]', "payload", r"messages\[1\]\.payload must not be null"),
        ('[{"payload": 1, "key": "k"}]', "key", r"messages\[0\]\.key is unknown; there are payload, message_key"),
        (
            '[{"payload": 1, "message_key": 7}]',
            "message_key",
            r"messages\[0\]\.message_key must be a text, got a JSON num",
        ),
        ('[{"payload": 1, "message_key": ""}]', "message_key", r"messages\[0\]\.message_key must have 1 to 512 bytes"),
        ('[{"payload": 1, "message_key": "\\u0000"}]', "messages", r"messages\[0\] cannot be read: "),
        ('[{"payload": 1, "message_key": "\\ud800"}]', "messages", r"messages\[0\] cannot be read: "),
        ('[{"payload": "\\u0000"}]', "messages", r"messages\[0\] cannot be read: "),
        ('[{"payload": 1, "timeout": "soon"}]', "messages", r"messages\[0\] cannot be read: invalid input syntax"),
        ('[{"payload": 1, "max_retries": 1.5}]', "messages", r"messages\[0\] cannot be read: invalid input syntax"),
        ('[{"payload": 1, "max_retries": 99999999999}]', "messages", r"messages\[0\] cannot be read: value"),
        ('[{"payload": 1, "max_retries": -1}]', "max_retries", r"messages\[0\]\.max_retries must be between"),
        ('[{"payload": 1, "headers": []}]', "headers", r"messages\[0\]\.headers must be a JSON object of texts"),
        ('[{"payload": 1, "concurrency": "ordered"}]', "concurrency", r"messages\[0\]\.concurrency of 'ordered' needs"),
        (
            '[{"payload": 1, "compaction_rank": 1}]',
            "compaction_rank",
            r"messages\[0\]\.compaction_rank needs a message_key",
        ),
        (
            '[{"payload": 1, "idempotency_key": ""}]',
            "idempotency_key",
            r"messages\[0\]\.idempotency_key must have 1 to",
        ),
    ],
)
def test_what_is_refused_names_its_message(
    stream: Stream[Note], database_url: str, messages: str | None, field: str, problem: str
) -> None:
    with pytest.raises(psycopg.Error, match=f"^{problem}") as refused:
        _produce_many(database_url, messages)
    assert (refused.value.sqlstate, refused.value.diag.column_name) == ("SS010", field)
    assert stream.read() == []


def test_an_absent_stream_has_a_code(database_url: str) -> None:
    with pytest.raises(psycopg.Error, match="there is no stream named 'nowhere'") as refused:
        ask(database_url, "select sqlstreams.produce_many('nowhere', '[]')")
    assert refused.value.sqlstate == "SS012"


def test_a_trigger_produces_with_the_rows_that_a_statement_changed(stream: Stream[Note], database_url: str) -> None:
    for query in (
        "create table letters (id bigint primary key, text text)",
        """create function letters_written() returns trigger language plpgsql as $$
        begin
            perform sqlstreams.produce_many('notes', json_agg(json_build_object(
                'payload', json_build_object('text', w.text),
                'message_key', w.id::text,
                'idempotency_key', 'letter-' || w.id) order by w.id))
               from written w
             having count(*) > 0;
            return null;
        end $$""",
        """create trigger letters_written after insert on letters
           referencing new table as written for each statement execute function letters_written()""",
        "insert into letters select n, 'n' || n from generate_series(1, 3) as n",
        "insert into letters select 9, 'none' where false",
    ):
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(query)
    assert stored(database_url) == ["n1", "n2", "n3"]
    with psycopg.connect(database_url) as connection:
        connection.execute("insert into letters values (4, 'rolled back')")
        connection.rollback()
    assert stored(database_url) == ["n1", "n2", "n3"]
