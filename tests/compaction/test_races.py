"""Heads between transactions: what is not committed supersedes nothing, and producers wait for each other in order."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlstreams import AsyncClient, Client, Message, Stream, Terminal
from tests.support import Note, consuming, eventually


@pytest.mark.parametrize("commits", [True, False])
async def test_a_newer_message_that_is_not_committed_supersedes_nothing(database_url: str, commits: bool) -> None:
    async with (
        AsyncClient(database_url) as client,
        await psycopg.AsyncConnection.connect(database_url) as newer,
    ):
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register()
        producer = stream.producer()
        handled: list[str] = []

        async def handle(note: Note) -> None:
            handled.append(note.text)

        # Given an older message, and a newer one in an open transaction
        await producer.produce(Note("old"), key="k", compaction_rank=0)
        await producer.produce(Note("new"), key="k", compaction_rank=0, connection=newer)
        # When a group claims
        async with consuming(consumer, handle):
            # Then the older one is delivered, and the newer one if it comes to be
            await eventually(lambda: handled == ["old"])
            await (newer.commit() if commits else newer.rollback())
            await producer.produce(Note("end"), key="other")
            await eventually(lambda: "end" in handled)
        assert handled == (["old", "new", "end"] if commits else ["old", "end"])
        head = await stream.head("k")
        assert head is not None
        assert head.id == (2 if commits else 1)


def test_two_transactions_of_one_key_leave_the_greater_one(database_url: str) -> None:
    with (
        Client(database_url) as client,
        psycopg.connect(database_url) as first,
        psycopg.connect(database_url) as second,
        ThreadPoolExecutor(1) as threads,
    ):
        producer = client.stream("notes", Note).register().producer()
        # Given a transaction that has the lower id and the greater rank
        greater = producer.produce(Note("a"), key="k", compaction_rank=2, connection=first)
        # When another produces the key, and waits
        waiting = threads.submit(producer.produce, Note("b"), key="k", compaction_rank=1, connection=second)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        first.commit()
        waiting.result(timeout=10)
        second.commit()
        # Then the greater one is the head
        head = client.stream("notes").head("k")
        assert head is not None
        assert head.id == greater.id


def test_producers_of_the_same_keys_in_any_order_never_deadlock(database_url: str) -> None:
    keys = [f"k{number}" for number in range(300)]
    with Client(database_url) as client, ThreadPoolExecutor(2) as threads:
        producer = client.stream("notes", Note).register().producer()
        both = threading.Barrier(2)

        def produce(step: int) -> None:
            for _ in range(5):
                both.wait(10)
                producer.produce_many([Message(Note("x"), key=key, compaction_rank=0) for key in keys[::step]])

        for each in [threads.submit(produce, step) for step in (1, -1)]:
            each.result()
        with psycopg.connect(database_url) as connection:
            found = connection.execute("select deadlocks from pg_stat_database where datname = current_database()")
            assert found.fetchone() == (0,)


def test_a_batch_of_ours_survives_a_deadlock_with_a_transaction_of_somebody_else(database_url: str) -> None:
    with (
        Client(database_url) as client,
        psycopg.connect(database_url, options="-c deadlock_timeout=60s") as theirs,
        ThreadPoolExecutor(1) as threads,
    ):
        producer = client.stream("notes", Note).register().producer()
        # Given a transaction that has the later key
        producer.produce(Note("x"), key="b", compaction_rank=0, connection=theirs)
        ours = threads.submit(
            producer.produce_many, [Message(Note("y"), key=key, compaction_rank=0) for key in ("a", "b")]
        )
        with psycopg.connect(database_url, autocommit=True) as looking:
            while not looking.execute("select from pg_locks where not granted").fetchall():
                assert not ours.done()
        # When it asks for the earlier one, which our batch has
        producer.produce(Note("x"), key="a", compaction_rank=0, connection=theirs)
        theirs.commit()
        # Then our batch is tried again, and nothing of it is there twice
        assert len(ours.result(timeout=10)) == 2
        stream = client.stream("notes")
        assert [len(stream.history(key)) for key in ("a", "b")] == [2, 2]


class _Undone(Exception):
    """Ends a transaction."""


_messages = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([None, -1, 0, 1, 5])), min_size=1, max_size=6
)
_transactions = st.lists(st.tuples(st.booleans(), _messages), min_size=1, max_size=6)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transactions=_transactions)
def test_whatever_commits_or_rolls_back_the_head_is_the_greatest(
    database_url: str, transactions: list[tuple[bool, list[tuple[str, int | None]]]]
) -> None:
    with Client(database_url, allow_destroy=True) as client, psycopg.connect(database_url) as connection:
        stream = client.stream("notes", Note)
        if stream.get() is not None:
            stream.destroy()
        producer = stream.register().producer()
        heads: dict[str, tuple[int, int]] = {}
        for commits, messages in transactions:
            sent = [Message(Note("x"), key=key, compaction_rank=rank) for key, rank in messages]
            receipts = producer.produce_many(sent, connection=connection)
            if not commits:
                connection.rollback()
                continue
            connection.commit()
            for receipt, (key, rank) in zip(receipts, messages, strict=True):
                if rank is not None:
                    heads[key] = max(heads.get(key, (rank, receipt.id)), (rank, receipt.id))
        found = {key: head.id for key in ("a", "b", "c") if (head := stream.head(key)) is not None}
        assert found == {key: head_id for key, (_, head_id) in heads.items()}


_plans = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([None, 0, 1, 2]), st.sampled_from(["ok", "fail", "dead"])),
    min_size=1,
    max_size=20,
)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(plans=_plans, concurrency=st.sampled_from(["parallel", "exclusive", "ordered"]))
def test_the_head_of_every_key_is_delivered_and_all_others_are_accounted_for(
    database_url: str, plans: list[tuple[str, int | None, str]], concurrency: str
) -> None:
    with Client(database_url, allow_destroy=True) as client:
        stream = client.stream("notes", Note)
        if stream.get() is not None:
            stream.destroy()
        stream.register()
        asyncio.run(_play(database_url, plans, concurrency))
        _check_heads(stream, plans)


async def _play(url: str, plans: list[tuple[str, int | None, str]], concurrency: str) -> None:
    begun: list[str] = []
    async with AsyncClient(url) as client:
        stream = client.stream("notes", Note)
        consumer = await stream.consumer("g").register(concurrency=concurrency, max_retries=1)

        async def handle(note: Note) -> None:
            begun.append(note.text)
            await asyncio.sleep(0)
            match plans[int(note.text)][2]:
                case "fail" if begun.count(note.text) == 1:
                    raise ValueError("as planned")
                case "dead":
                    raise Terminal("as planned")

        async with consuming(consumer, handle, concurrency=2):
            for number, (key, rank, _) in enumerate(plans):
                await stream.producer().produce(Note(str(number)), key=key, compaction_rank=rank)
            await eventually(lambda: _counted(consumer.stats, len(plans)))
        for key in ("a", "b"):
            head = await stream.head(key)
            assert head is None or str(head.id - 1) in begun
        for number, (_, rank, _) in enumerate(plans):
            assert rank is not None or str(number) in begun


def _counted(stats: object, messages: int) -> bool:
    handled, dead, superseded = (getattr(stats, name) for name in ("handled", "dead", "superseded"))
    return bool(handled + dead + superseded == messages)


def _check_heads(stream: Stream[Note], plans: list[tuple[str, int | None, str]]) -> None:
    for key in ("a", "b"):
        ranked = [(rank, number) for number, (each, rank, _) in enumerate(plans, 1) if each == key and rank is not None]
        head = stream.head(key)
        assert (head.id if head else None) == (max(ranked)[1] if ranked else None)
