"""Idempotency keys: of the messages with one key the first is appended, and repeats are told from conflicts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, Client, IdempotencyConflict, InvalidInput, Message, Producer, Receipt
from sqlstreams.database import AsyncDatabase, address
from sqlstreams.manager.upkeep import IdempotencyKeys
from tests.produce.log import ask, stored
from tests.produce.proxy import Moment, lossy
from tests.support import Note


@pytest.fixture
def producer(database_url: str) -> Iterator[Producer[Note]]:
    """A producer of notes."""
    with Client(database_url) as client:
        yield client.stream("notes", Note).register().producer()


def _expire(url: str) -> None:
    ask(url, "update sqlstreams.idempotency_key_1 set expires_at = now() - interval '1 second'")


def _keys(url: str) -> list[tuple[Any, ...]]:
    return ask(url, "select idempotency_key, message_id from sqlstreams.idempotency_key_1 order by 1")


def test_the_same_key_again_is_a_duplicate_of_the_first(producer: Producer[Note], database_url: str) -> None:
    first = producer.produce(Note("a"), idempotency_key="k")
    again = producer.produce(Note("a"), idempotency_key="k")
    other = producer.produce(Note("b"), idempotency_key="other")
    assert first == Receipt(1)
    assert again == Receipt(1, duplicate=True)
    assert other == Receipt(2), "a duplicate takes no id"
    assert stored(database_url) == ["a", "b"]


def test_another_payload_under_the_same_key_is_a_conflict_that_names_the_first(
    producer: Producer[Note], database_url: str
) -> None:
    producer.produce(Note("a"), idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match=r"^idempotency_key 'k' is that of message 1, which") as refused:
        producer.produce(Note("b"), idempotency_key="k")
    assert (refused.value.id, refused.value.code) == (1, "SQL0014")
    assert stored(database_url) == ["a"]


@pytest.mark.parametrize("key", ["", "k" * 513, "\x00", "\ud800", 7, b"k"])
def test_a_key_that_cannot_be_stored_is_refused(producer: Producer[Note], database_url: str, key: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^idempotency_key must"):
        producer.produce(Note("a"), idempotency_key=key)
    with pytest.raises(InvalidInput, match=r"^messages\[1\]\.idempotency_key must"):
        producer.produce_many([Note("a"), Message(Note("b"), idempotency_key=key)])
    assert stored(database_url) == []


def test_the_longest_key_is_taken(producer: Producer[Note]) -> None:
    assert not producer.produce(Note("a"), idempotency_key="k" * 512).duplicate
    assert producer.produce(Note("a"), idempotency_key="k" * 512).duplicate


async def test_fifty_connections_that_send_one_key_append_one_message(database_url: str) -> None:
    with Client(database_url, pool_size=50) as client, ThreadPoolExecutor(50) as pool:
        stream = client.stream("notes", Note).register()
        stream.producer().produce_many([Note("before")])

        def send(_: int) -> Receipt:
            return stream.producer().produce_many([Message(Note("a"), idempotency_key="k")])[0]

        receipts = list(pool.map(send, range(50)))
    assert {receipt.id for receipt in receipts} == {2}
    assert sum(not receipt.duplicate for receipt in receipts) == 1
    assert stored(database_url) == ["before", "a"]


async def test_fifty_calls_of_one_client_share_commits_and_a_conflict_fails_its_caller_alone(
    database_url: str,
) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        calls = [producer.produce(Note("a"), idempotency_key="k") for _ in range(50)]
        calls += [producer.produce(Note("b"), idempotency_key="k"), producer.produce(Note("plain"))]
        *receipts, conflict, plain = await asyncio.gather(*calls, return_exceptions=True)
    assert receipts == [Receipt(1), *[Receipt(1, duplicate=True)] * 49]
    assert isinstance(conflict, IdempotencyConflict)
    assert (conflict.id, conflict.field) == (1, "idempotency_key")
    assert plain == Receipt(2)
    assert stored(database_url) == ["a", "plain"]


def test_a_key_is_free_again_after_a_rollback_of_the_first(producer: Producer[Note], database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert not producer.produce(Note("a"), idempotency_key="k", connection=connection).duplicate
        assert producer.produce(Note("a"), idempotency_key="k", connection=connection).duplicate
        connection.rollback()
    receipt = producer.produce(Note("b"), idempotency_key="k")
    assert not receipt.duplicate
    assert stored(database_url) == ["b"]


@pytest.mark.parametrize("commits", [True, False])
async def test_who_has_the_same_key_waits_for_an_open_transaction(database_url: str, commits: bool) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            first = await producer.produce(Note("a"), idempotency_key="k", connection=connection)
            second = asyncio.create_task(producer.produce(Note("a"), idempotency_key="k"))
            await _until_somebody_waits(database_url)
            assert not second.done()
            await (connection.commit() if commits else connection.rollback())
        receipt = await asyncio.wait_for(second, 20)
    assert receipt.duplicate == commits
    assert (receipt.id == first.id) == commits
    assert stored(database_url) == ["a"]


async def _until_somebody_waits(url: str) -> None:
    async with asyncio.timeout(20), await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        while not await (await connection.execute(waiting)).fetchone():
            pass


def test_a_key_is_taken_anew_once_it_expired(producer: Producer[Note], database_url: str) -> None:
    producer.produce(Note("a"), idempotency_key="k")
    _expire(database_url)
    assert producer.produce(Note("b"), idempotency_key="k") == Receipt(2)
    assert producer.produce(Note("b"), idempotency_key="k") == Receipt(2, duplicate=True)
    assert stored(database_url) == ["a", "b"]


def test_a_key_is_kept_for_the_ttl_that_the_stream_has_when_it_is_taken(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        stream.producer().produce(Note("a"), idempotency_key="day")
        with Client(database_url) as another:
            another.stream("notes", Note).register(idempotency_ttl=timedelta(minutes=5))
        stream.producer().produce(Note("b"), idempotency_key="minutes")
        info = stream.get()
    assert info is not None
    assert info.idempotency_ttl == timedelta(minutes=5)
    kept = ask(
        database_url, "select round(extract(epoch from expires_at - now()) / 60) from sqlstreams.idempotency_key_1"
    )
    assert [int(minutes) for (minutes,) in kept] == [24 * 60, 5]


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(days=-1), 5, None, timedelta(days=4_000)])
def test_a_ttl_that_keeps_nothing_is_refused(database_url: str, ttl: Any) -> None:
    with Client(database_url) as client, pytest.raises(InvalidInput, match="idempotency_ttl"):
        client.stream("notes", Note).register(idempotency_ttl=ttl)


def test_a_batch_with_repeats_lines_up_with_its_messages(producer: Producer[Note], database_url: str) -> None:
    producer.produce(Note("old"), idempotency_key="old")
    receipts = producer.produce_many(
        [
            Message(Note("b"), idempotency_key="b"),
            Note("plain"),
            Message(Note("old"), idempotency_key="old"),
            Message(Note("a"), idempotency_key="a"),
            Message(Note("b"), idempotency_key="b"),
            Note("plain"),
        ]
    )
    assert receipts == [Receipt(2), Receipt(3), Receipt(1, True), Receipt(4), Receipt(2, True), Receipt(5)]
    assert stored(database_url) == ["old", "b", "plain", "a", "plain"]
    assert _keys(database_url) == [("a", 4), ("b", 2), ("old", 1)]


@pytest.mark.parametrize("within", [False, True])
def test_a_conflict_refuses_the_whole_batch_and_names_the_message(
    producer: Producer[Note], database_url: str, within: bool
) -> None:
    producer.produce(Note("old"), idempotency_key="old")
    known: list[Note | Message[Note]]
    known = [Message(Note("a"), idempotency_key="a"), Note("b"), Message(Note("new"), idempotency_key="old")]
    repeated: list[Note | Message[Note]]
    repeated = [Message(Note("a"), idempotency_key="a"), Note("b"), Message(Note("c"), idempotency_key="a")]
    with psycopg.connect(database_url) as connection:
        options: dict[str, Any] = {"connection": connection} if within else {}
        with pytest.raises(IdempotencyConflict, match=r"^messages\[2\]\.idempotency_key 'old' is that of message 1,"):
            producer.produce_many(known, **options)
        with pytest.raises(IdempotencyConflict, match=r"^messages\[2\]\.idempotency_key 'a' is that of messages\[0\]"):
            producer.produce_many(repeated, **options)
    assert stored(database_url) == ["old"]
    assert _keys(database_url) == [("old", 1)], "also when the caller's transaction goes on"


def test_a_batch_of_duplicates_alone_appends_nothing(producer: Producer[Note], database_url: str) -> None:
    messages = [Message(Note(str(number)), idempotency_key=str(number)) for number in range(2_500)]
    first = producer.produce_many(messages)
    again = producer.produce_many(messages)
    assert [receipt.id for receipt in again] == [receipt.id for receipt in first]
    assert all(receipt.duplicate for receipt in again)
    assert len(stored(database_url)) == 2_500


def test_producers_of_the_same_keys_in_other_orders_never_deadlock(database_url: str) -> None:
    with Client(database_url, pool_size=8) as client, ThreadPoolExecutor(8) as pool:
        producer = client.stream("notes", Note).register().producer()
        messages = [Message(Note(str(number)), idempotency_key=str(number)) for number in range(200)]
        batches = [messages, messages[::-1]] * 20
        for receipts in pool.map(producer.produce_many, batches):
            assert len(receipts) == 200
        assert len(stored(database_url)) == 200
        (deadlocks,) = ask(database_url, "select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks == (0,)


def test_keys_go_together_with_compaction(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        message = Message(Note("a"), key="k", compaction_rank=1, idempotency_key="first")
        later = Message(Note("b"), key="k", compaction_rank=2, idempotency_key="second")
        stream.producer().produce_many([message])
        stream.producer().produce_many([message, later])
        head = stream.head("k")
    assert head is not None
    assert head.id == 2
    assert stored(database_url) == ["a", "b"]


def test_a_duplicate_of_a_message_that_the_log_does_not_hold_any_more_has_its_id(
    producer: Producer[Note], database_url: str
) -> None:
    producer.produce(Note("a"), idempotency_key="k")
    ask(database_url, "delete from sqlstreams.message_log_1")
    assert producer.produce(Note("a"), idempotency_key="k") == Receipt(1, duplicate=True)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_keys_hold_when_transactions_are_isolated_more_strictly(database_url: str, isolation: str) -> None:
    escaped = isolation.replace(" ", r"\ ")
    strict = make_conninfo(database_url, options=f"-c default_transaction_isolation={escaped}")
    with Client(strict, pool_size=8) as client, ThreadPoolExecutor(8) as pool:
        producer = client.stream("notes", Note).register().producer()
        receipts = list(pool.map(producer.produce_many, [[Message(Note("a"), idempotency_key="k")]] * 16))
    assert {receipt.id for (receipt,) in receipts} == {receipts[0][0].id}
    assert stored(database_url) == ["a"]


# Lost connections


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_lost_commit_appends_a_message_with_a_key_once(database_url: str, moment: Moment) -> None:
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url) as client:
            producer = (await client.stream("notes", Note).register()).producer()
            await producer.produce(Note("warm"))
            for number in range(5):
                proxy.break_next(moment)
                receipt = await producer.produce(Note(str(number)), idempotency_key=str(number))
                assert not receipt.duplicate
        assert proxy.broken == 5
    assert stored(database_url) == ["warm", *map(str, range(5))]
    assert len({message_id for _, message_id in _keys(database_url)}) == 5


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_produce_that_remained_uncertain_may_be_repeated_with_its_key(database_url: str, moment: Moment) -> None:
    message = Message(Note("perhaps"), idempotency_key="k")
    with lossy(database_url) as proxy, Client(proxy.url, timeout=1) as client:
        producer = client.stream("notes", Note).register().producer()
        producer.produce(Note("warm"))
        proxy.break_next(moment, close_too=True)
        with pytest.raises(ConnectionError):
            producer.produce_many([message])
    with Client(database_url) as client:
        (receipt,) = client.stream("notes", Note).producer().produce_many([message])
    assert receipt.duplicate == (moment == "after")
    assert stored(database_url) == ["warm", "perhaps"]


# Upkeep


async def test_the_duty_forgets_what_expired_and_leaves_the_rest(producer: Producer[Note], database_url: str) -> None:
    producer.produce_many([Message(Note("a"), idempotency_key=str(number)) for number in range(3)])
    _expire(database_url)
    producer.produce(Note("b"), idempotency_key="kept")
    with Client(database_url) as client:
        client.stream("other", Note).register()
    database = AsyncDatabase(address(database_url, schema="sqlstreams", pool_size=2, timeout=20))
    await database.open()
    try:
        duty = IdempotencyKeys(database)
        assert (await duty.run_once()).done == 3
        assert (await duty.run_once()).done == 0
    finally:
        await database.close()
    assert _keys(database_url) == [("kept", 4)]


async def test_a_stream_whose_tables_are_gone_keeps_no_others_keys(producer: Producer[Note], database_url: str) -> None:
    producer.produce(Note("a"), idempotency_key="expired")
    _expire(database_url)
    with Client(database_url) as client:
        for name in ("b", "c", "d"):
            client.stream(name, Note).register()
    ask(database_url, "drop table sqlstreams.idempotency_key_3")
    database = AsyncDatabase(address(database_url, schema="sqlstreams", pool_size=2, timeout=20))
    await database.open()
    try:
        ran = await IdempotencyKeys(database).run_once()
    finally:
        await database.close()
    assert (ran.done, ran.again) == (1, False)
    assert _keys(database_url) == []


# A small model


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from("xy")), min_size=1, max_size=4),
        max_size=6,
    )
)
def test_batches_do_what_a_dictionary_would(
    producer: Producer[Note], database_url: str, batches: list[list[tuple[str | None, str]]]
) -> None:
    ask(database_url, "delete from sqlstreams.idempotency_key_1")
    known: dict[str, tuple[int, str]] = {}
    for batch in batches:
        messages = [Message(Note(text), idempotency_key=key) for key, text in batch]
        first = dict(reversed([(key, text) for key, text in batch if key is not None]))
        wanted = {key: known[key][1] if key in known else text for key, text in first.items()}
        if any(key is not None and text != wanted[key] for key, text in batch):
            with pytest.raises(IdempotencyConflict):
                producer.produce_many(messages)
            continue
        for (key, text), receipt in zip(batch, producer.produce_many(messages), strict=True):
            assert receipt.duplicate == (key in known)
            if key is not None:
                assert receipt.id == known.setdefault(key, (receipt.id, text))[0]
