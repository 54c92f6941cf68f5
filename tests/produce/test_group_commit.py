"""Concurrent produce() calls share commits, and what happens to one of them stays its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from sqlstreams import AsyncClient, Client, DatabaseUnavailable, InvalidInput
from tests.produce.log import commits, stored
from tests.support import Note, eventually


async def test_tasks_share_commits(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        receipts = await asyncio.gather(*(producer.produce(Note(str(number))) for number in range(500)))
    assert len({receipt.id for receipt in receipts}) == 500
    assert sorted(stored(database_url), key=int) == [str(number) for number in range(500)]
    assert commits(database_url) <= 5


async def test_each_caller_gets_the_id_of_its_own_message(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        producer = stream.producer()
        receipts = await asyncio.gather(*(producer.produce(Note(str(number))) for number in range(300)))
        by_id = {message.id: message.payload for message in await stream.read(limit=1_000)}
    for number, receipt in enumerate(receipts):
        assert by_id[receipt.id] == b'{"text":"%d"}' % number


def test_threads_share_commits(database_url: str) -> None:
    with Client(database_url) as client, ThreadPoolExecutor(32) as threads:
        stream = client.stream("notes", Note).register()
        producer = stream.producer()
        receipts = list(threads.map(lambda number: producer.produce(Note(str(number))), range(1_000)))
        by_id = {message.id: message.payload for message in stream.read(limit=2_000)}
    assert [by_id[receipt.id] for receipt in receipts] == [b'{"text":"%d"}' % number for number in range(1_000)]
    assert commits(database_url) < 500


# What is refused, by the number of its call, among twenty: NUL, a lone surrogate, too large, a bad key.
_TEXTS = {3: "\x00", 7: "\ud800", 11: "x" * 2_000}
_KEYS = {15: "k" * 513, 19: ""}
_REFUSED = [3, 7, 11, 15, 19]


async def test_a_refused_message_fails_its_own_caller_only(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register(max_payload=1_000)).producer()
        calls = [producer.produce(Note(_TEXTS.get(each, "good")), key=_KEYS.get(each)) for each in range(20)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, InvalidInput)] == _REFUSED
    assert stored(database_url) == ["good"] * 15


def test_a_refused_message_fails_its_own_thread_only(database_url: str) -> None:
    def attempt(number: int) -> bool:
        try:
            producer.produce(Note(_TEXTS.get(number, "good")), key=_KEYS.get(number))
        except InvalidInput:
            return False
        return True

    with Client(database_url) as client, ThreadPoolExecutor(8) as threads:
        producer = client.stream("notes", Note).register(max_payload=1_000).producer()
        assert [number for number, done in enumerate(threads.map(attempt, range(20))) if not done] == _REFUSED
    assert stored(database_url) == ["good"] * 15


async def test_a_caller_cancelled_before_its_message_was_sent_takes_it_back(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        producer = stream.producer()
        await producer.produce(Note("warm"))
        async with await _locked(database_url) as lock:
            first = asyncio.create_task(producer.produce(Note("first")))
            await eventually(lambda: _waits(database_url))
            others = [asyncio.create_task(producer.produce(Note(name))) for name in ("left", "taken back", "right")]
            await asyncio.sleep(0)
            others[1].cancel()
            await lock.rollback()
            answers = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Receipt", "Receipt", "CancelledError", "Receipt"]
    assert stored(database_url) == ["warm", "first", "left", "right"]


async def test_a_caller_cancelled_during_the_commit_harms_nobody(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("warm"))
        async with await _locked(database_url) as lock:
            calls = [asyncio.create_task(producer.produce(Note(name))) for name in ("cancelled", "other")]
            await eventually(lambda: _waits(database_url))
            calls[0].cancel()
            await lock.rollback()
            answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["CancelledError", "Receipt"]
    assert stored(database_url) == ["warm", "cancelled", "other"]


async def test_a_cancelled_batch_is_there_whole_or_not_at_all(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("warm"))
        async with await _locked(database_url) as lock:
            call = asyncio.create_task(producer.produce_many([Note("a")] * 2_500))
            await eventually(lambda: _waits(database_url))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await lock.rollback()
        await producer.produce(Note("after"))
    assert stored(database_url) == ["warm", "after"]


async def test_no_more_than_max_pending_messages_wait(database_url: str) -> None:
    async with AsyncClient(database_url, max_pending=3) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("warm"))
        async with await _locked(database_url) as lock:
            calls = [asyncio.create_task(producer.produce(Note(str(number)))) for number in range(10)]
            await eventually(lambda: _waits(database_url))
            (log,) = client._logs.values()
            assert len(log.commits._pending) <= 3
            await lock.rollback()
            await asyncio.gather(*calls)
    assert len(stored(database_url)) == 11
    assert commits(database_url) >= 4  # 10 calls cannot share fewer than 3 commits of 3 or 4


async def test_closing_the_client_commits_what_is_pending(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("warm"))
        calls = [asyncio.create_task(producer.produce(Note(str(number)))) for number in range(5)]
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(DatabaseUnavailable, match="the client is closed; nothing was written"):
            await producer.produce(Note("late"))
    await asyncio.gather(*calls)
    assert len(stored(database_url)) == 6


async def test_closing_the_client_waits_for_threads_that_produce(database_url: str) -> None:
    with Client(database_url) as client, ThreadPoolExecutor(6) as threads:
        producer = client.stream("notes", Note).register().producer()
        producer.produce(Note("warm"))
        (log,) = client._logs.values()
        async with await _locked(database_url) as lock:
            calls = [threads.submit(producer.produce, Note("first"))]
            await eventually(lambda: _waits(database_url))
            calls += [threads.submit(producer.produce, Note(str(number))) for number in range(4)]
            await eventually(lambda: len(log.commits._pending) == 4)
            client.stream("notes", Note).register()  # from here on another producer reads the stream anew
            assert client._logs == {}
            closing = threads.submit(client.close)
            await eventually(lambda: log.commits._is_closed)
            await lock.rollback()
            assert len({(await asyncio.wrap_future(call)).id for call in calls}) == 5
            await asyncio.wrap_future(closing)
        with pytest.raises(DatabaseUnavailable, match="closed"):
            producer.produce(Note("late"))
    assert len(stored(database_url)) == 6


async def test_a_cancelled_close_cancels_no_commit(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("warm"))
        async with await _locked(database_url) as lock:
            call = asyncio.create_task(producer.produce(Note("pending")))
            await eventually(lambda: _waits(database_url))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.close(), 0.05)
            await lock.rollback()
            assert (await call).id > 1
    assert stored(database_url) == ["warm", "pending"]


async def _locked(url: str) -> psycopg.AsyncConnection:
    connection = await psycopg.AsyncConnection.connect(url)
    await connection.execute("lock table sqlstreams.message_log_1 in share mode")
    return connection


async def _waits(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute("select from pg_locks where not granted and database is not null")
        return await cursor.fetchone() is not None
