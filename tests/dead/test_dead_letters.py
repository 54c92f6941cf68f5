"""Dead letters are found by what they are, redriven or discarded when asked for, and otherwise left alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlstreams import AsyncClient, AsyncConsumer, Client, InvalidInput, Message, NotFound, RawPayload, Redriven
from tests.dead.letters import ask, group_of, let_die
from tests.support import Note, consuming, eventually

NOTES = [("a", "one"), ("b", "two"), ("a", "three"), (None, "four")]


def _reason(note: Note) -> Exception:
    return TimeoutError("slow bank") if note.text in ("one", "two") else ValueError("no such account")


async def _dead(client: AsyncClient) -> AsyncConsumer[Note]:
    group = await group_of(client, NOTES)
    await let_die(group, len(NOTES), _reason)
    return group


async def _ids(group: AsyncConsumer[Note], **filters: Any) -> list[int]:
    return [each.id for each in await group.dead_letters(**filters)]


async def test_dead_letters_are_listed_by_what_they_are(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await _dead(client)
        assert await _ids(group) == [1, 2, 3, 4]
        assert await _ids(group, error="TimeoutError") == [1, 2]
        assert await _ids(group, error="ValueError: no such") == [3, 4]
        assert await _ids(group, key="a") == [1, 3]
        assert await _ids(group, key="a", error="bank") == [1]
        assert await _ids(group, limit=2) == [1, 2]
        assert await _ids(group, limit=2, after=2) == [3, 4]
        first = (await group.dead_letters())[0]
        assert (first.key, first.error_type, first.failures, first.delays) == ("a", "TimeoutError", 1, 0)
        assert (first.error or "").startswith("slow bank\nat ")


async def test_dead_letters_are_listed_by_when_they_died(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await _dead(client)
        ask(database_url, "update sqlstreams.exception_queue_1 set updated_at = '2026-01-01Z' where message_id = 2")
        then = datetime(2026, 1, 1, tzinfo=UTC)
        assert await _ids(group, since=then, until=then + timedelta(seconds=1)) == [2]
        assert await _ids(group, until=then) == []
        assert await _ids(group, since=then + timedelta(seconds=1)) == [1, 3, 4]


async def test_a_dead_letter_is_shown_with_its_message_and_its_deliveries(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [], max_retries=1, retry_base=timedelta(milliseconds=1))
        producer = client.stream("notes", Note).producer()
        await producer.produce_many([Message(Note("a"), key="k", routing_key="r", headers={"trace": "1"})])
        await let_die(group, 1, lambda _: ValueError("no"))
        shown = await group.dead_letter(1)
        assert shown is not None
        assert shown.message is not None
        assert (shown.message.payload, shown.message.headers) == (RawPayload(b'{"text":"a"}'), {"trace": "1"})
        assert (shown.letter.failures, shown.letter.key, shown.message.routing_key) == (2, "k", "r")
        assert [each.outcome for each in shown.deliveries] == ["failed", "dead"]
        assert await group.dead_letter(2) is None


MEANT: list[tuple[dict[str, Any], list[int]]] = [
    ({"message_ids": [3, 1, 3, 99]}, [1, 3]),
    ({"message_ids": []}, []),
    ({"message_ids": [1, 2, 3], "key": "a"}, [1, 3]),
    ({"error": "ValueError"}, [3, 4]),
    ({"until": datetime(2026, 1, 1, tzinfo=UTC)}, []),
    ({"everything": True}, [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("meant", "moved"), MEANT, ids=str)
async def test_only_what_was_meant_is_redriven(database_url: str, meant: dict[str, Any], moved: list[int]) -> None:
    async with AsyncClient(database_url) as client:
        group = await _dead(client)
        assert (await group.redrive(**meant)).messages == len(moved)
        handled: list[str] = []

        async def handle(note: Note) -> None:
            handled.append(note.text)

        async with consuming(group, handle):
            await eventually(lambda: len(handled) == len(moved))
        assert sorted(handled) == sorted(NOTES[each - 1][1] for each in moved)
        assert await _ids(group) == [each for each in (1, 2, 3, 4) if each not in moved]


@pytest.mark.parametrize(("meant", "moved"), MEANT, ids=str)
async def test_only_what_was_meant_is_discarded(database_url: str, meant: dict[str, Any], moved: list[int]) -> None:
    async with AsyncClient(database_url) as client:
        group = await _dead(client)
        assert await group.discard(**meant, reason="known trouble") == len(moved)
        assert await _ids(group) == [each for each in (1, 2, 3, 4) if each not in moved]
        for message_id in moved:
            *_, last = await group.deliveries(message_id)
            assert (last.outcome, last.error, last.pid) == ("discarded", "known trouble", None)
            assert (last.changed_by,) == ask(database_url, "select session_user::text")[0]


async def test_a_redriven_message_has_all_its_retries_again_and_keeps_its_history(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, "a")], max_retries=1, retry_base=timedelta(milliseconds=1))
        await let_die(group, 1, lambda _: ValueError("first"))
        await group.redrive([1])
        await let_die(group, 2, lambda _: KeyError("second"))
        assert [(each.attempt, each.outcome, each.error_type) for each in await group.deliveries(1)] == [
            (1, "failed", "ValueError"),
            (2, "dead", "ValueError"),
            (2, "redriven", None),
            (1, "failed", "KeyError"),
            (2, "dead", "KeyError"),
        ]
        assert await _ids(group, error="KeyError") == [1]


async def test_what_waits_or_runs_is_neither_redriven_nor_discarded(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, "a"), (None, "b")], max_retries=5, retry_base=timedelta(minutes=5))
        running, end = asyncio.Event(), asyncio.Event()

        async def handle(note: Note) -> None:
            if note.text == "a":
                raise ValueError("no")
            running.set()
            await end.wait()

        async with consuming(group, handle):
            await running.wait()
            await eventually(lambda: group.stats.failed == 1)
            assert await group.redrive(everything=True) == Redriven(0, None, None)
            assert await group.discard([1, 2], reason="no") == 0
            assert (await group.status()).ready == 1
            end.set()


async def test_dead_messages_of_an_ordered_key_that_are_redriven_together_run_in_order(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(f"k{number % 3}", str(number)) for number in range(30)], concurrency="ordered")
        await let_die(group, 30, lambda _: ValueError("no"))
        # The rows lie in another order than that of their ids.
        ask(database_url, "update sqlstreams.exception_queue_1 set error = 'x' where message_id % 2 = 0")
        await group.redrive(everything=True)
        handled: list[int] = []

        async def handle(note: Note) -> None:
            await asyncio.sleep(0)
            handled.append(int(note.text))

        async with consuming(group, handle, concurrency=4):
            await eventually(lambda: len(handled) == 30)
        for key in range(3):
            assert [each for each in handled if each % 3 == key] == list(range(key, 30, 3))


@pytest.mark.parametrize("concurrency", ["ordered", "exclusive"])
async def test_a_redriven_message_does_not_run_beside_another_of_its_key(database_url: str, concurrency: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [("k", "dead")], concurrency=concurrency)
        await let_die(group, 1, lambda _: ValueError("no"))
        events: list[str] = []
        running, end = asyncio.Event(), asyncio.Event()

        async def handle(note: Note) -> None:
            events.append(f"{note.text} begins")
            if note.text == "later":
                running.set()
                await end.wait()
            events.append(f"{note.text} ends")

        async with consuming(group, handle):
            # Given a later message of the key that runs
            await client.stream("notes", Note).producer().produce(Note("later"), key="k")
            await running.wait()
            # When the dead one is redriven, and somebody tried to take it
            await group.redrive([1])
            state = "select state from sqlstreams.exception_queue_1 where message_id = 1"
            await eventually(lambda: ask(database_url, state) == [("deferred",)])
            end.set()
            # Then it runs once its key is free
            await eventually(lambda: len(events) == 4)
        assert events == ["later begins", "later ends", "dead begins", "dead ends"]


async def test_an_ordered_key_waits_for_what_is_redriven_of_it(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [("k", "dead")], concurrency="ordered")
        await let_die(group, 1, lambda _: ValueError("no"))
        await group.redrive([1], rate=2)
        await client.stream("notes", Note).producer().produce(Note("later"), key="k")
        handled: list[str] = []

        async def handle(note: Note) -> None:
            handled.append(note.text)

        async with consuming(group, handle):
            await eventually(lambda: len(handled) == 2)
        assert handled == ["dead", "later"]


def test_a_view_shows_the_dead_letters_of_every_stream(database_url: str) -> None:
    with Client(database_url) as client:
        for name in ("notes", "letters"):
            stream = client.stream(name).register()
            stream.consumer("g").register()
            stream.producer().produce(RawPayload(b'{"n":1}'), key="k")
    for stream_id in (1, 2):
        ask(
            database_url,
            f"insert into sqlstreams.exception_queue_{stream_id}"
            " (group_id, message_id, state, failures, can_run_after, error_type)"
            f" values ({stream_id}, 1, 'dead', 3, now(), 'E')",
        )
    seen = ask(
        database_url,
        "select stream, consumer_group, message_id, message_key, error_type, failures, payload"
        "  from sqlstreams.dead_letters order by stream",
    )
    assert seen == [(name, "g", 1, "k", "E", 3, {"n": 1}) for name in ("letters", "notes")]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "message_ids or a filter must be given, or everything=True"),
        ({"everything": True, "key": "a"}, "everything must not be given together"),
        ({"everything": True, "message_ids": []}, "everything must not be given together"),
        ({"message_ids": "12"}, "message_ids must be several ids, got str"),
        ({"message_ids": 12}, "message_ids must be several ids, got int"),
        ({"message_ids": [0]}, "message_ids must be between 1 and"),
        ({"message_ids": [2**63]}, "message_ids must be between 1 and"),
        ({"message_ids": ["1"]}, "message_ids must be an int, got str"),
        ({"message_ids": range(1, 100_002)}, "message_ids must be at most 100000 ids, got 100001"),
        ({"error": ""}, "error must have 1 to"),
        ({"error": "\x00"}, "error must not contain the character NUL"),
        ({"error": 3}, "error must be a str"),
        ({"key": ""}, "key must have 1 to 512 bytes"),
        ({"since": datetime(2026, 1, 1)}, "since must be an aware datetime"),  # noqa: DTZ001  # what it is about
        ({"until": "today"}, "until must be a datetime, got str"),
    ],
    ids=str,
)
def test_a_selection_that_cannot_be_meant_is_refused(
    database_url: str, arguments: dict[str, Any], problem: str
) -> None:
    with Client(database_url) as client:
        group = client.stream("notes").consumer("g")
        with pytest.raises(InvalidInput, match=problem):
            group.redrive(**arguments)
        with pytest.raises(InvalidInput, match=problem):
            group.discard(**arguments, reason="x")


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "fast", True])
def test_a_rate_that_cannot_be_kept_is_refused(database_url: str, rate: Any) -> None:
    with Client(database_url) as client, pytest.raises(InvalidInput, match="rate"):
        client.stream("notes").consumer("g").redrive([1], rate=rate)


@pytest.mark.parametrize("reason", ["", None, "\ud800", 3])
def test_discarding_needs_a_reason(database_url: str, reason: Any) -> None:
    with Client(database_url) as client, pytest.raises(InvalidInput, match="reason"):
        client.stream("notes").consumer("g").discard([1], reason=reason)


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"after": -1}, {"key": ""}, {"error": ""}], ids=str)
def test_a_list_that_cannot_be_meant_is_refused(database_url: str, arguments: dict[str, Any]) -> None:
    with Client(database_url) as client, pytest.raises(InvalidInput):
        client.stream("notes").consumer("g").dead_letters(**arguments)


def test_an_absent_group_has_no_dead_letters(database_url: str) -> None:
    with Client(database_url) as client:
        group = client.stream("notes").register().consumer("g")
        for ask_for in (
            group.dead_letters,
            lambda: group.dead_letter(1),
            lambda: group.deliveries(1),
            lambda: group.redrive([1]),
            lambda: group.discard([1], reason="x"),
        ):
            with pytest.raises(NotFound, match="g on notes"):
                ask_for()
