"""A connection that breaks around the commit: the message is there exactly once, or the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from itertools import cycle
from unittest.mock import Mock

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncProducer, Client, ProduceUncertain, statements
from tests.produce.log import ask, stored
from tests.produce.proxy import Moment, lossy
from tests.support import Note, eventually

_TIMES = 20
_MOMENTS: tuple[Moment, ...] = ("before", "during", "after")
_MANY = 500
_AT_A_TIME = 4
# The commit of every message waits here for as long as another has the lock.
_HOLD = """
create function hold() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(7); return null; end $$;
create constraint trigger hold after insert on sqlstreams.message_log_1 deferrable initially deferred
   for each row execute function hold()
"""
_END_HELD = "select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory' and not granted"


@pytest.mark.parametrize("moment", _MOMENTS)
async def test_a_commit_lost_again_and_again_appends_each_message_once(database_url: str, moment: Moment) -> None:
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url) as client:
            producer = (await client.stream("notes", Note).register()).producer()
            await producer.produce(Note("warm"))
            ids = []
            for number in range(_TIMES):
                proxy.break_next(moment)
                ids.append((await producer.produce(Note(str(number)))).id)
        assert proxy.broken == _TIMES
    assert stored(database_url) == ["warm", *map(str, range(_TIMES))]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("moment", _MOMENTS)
def test_a_lost_commit_of_a_blocking_producer_appends_each_message_once(database_url: str, moment: Moment) -> None:
    with lossy(database_url) as proxy:
        with Client(proxy.url) as client:
            producer = client.stream("notes", Note).register().producer()
            producer.produce(Note("warm"))
            for number in range(_TIMES):
                proxy.break_next(moment)
                producer.produce_many([Note(f"{number}a"), Note(f"{number}b")])
        assert proxy.broken == _TIMES
    assert stored(database_url) == ["warm", *(f"{number}{each}" for number in range(_TIMES) for each in "ab")]


async def test_many_callers_behind_lost_commits_get_their_messages_in_once(database_url: str) -> None:
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url) as client:
            stream = await client.stream("notes", Note).register()
            producer = stream.producer()
            await producer.produce(Note("0"))
            moments: Iterator[Moment] = cycle(_MOMENTS)
            for start, moment in zip(range(1, 1_001, 100), moments, strict=False):
                proxy.break_next(moment)
                calls = [producer.produce(Note(str(number))) for number in range(start, start + 100)]
                receipts = await asyncio.gather(*calls)
                assert len({receipt.id for receipt in receipts}) == 100
        assert proxy.broken == 10
    assert sorted(map(int, stored(database_url))) == list(range(1_001))


async def test_five_hundred_lost_commits_of_four_clients_append_each_message_once(database_url: str) -> None:
    with lossy(database_url) as proxy:
        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(AsyncClient(proxy.url)) for _ in range(_AT_A_TIME)]
            producers = [(await client.stream("notes", Note).register()).producer() for client in clients]
            await asyncio.gather(*(producer.produce(Note("warm")) for producer in producers))
            numbers = iter(range(_MANY))

            async def lose(producer: AsyncProducer[Note]) -> None:
                for number in numbers:
                    proxy.break_next(_MOMENTS[number % 3])
                    await producer.produce(Note(str(number)))

            await asyncio.gather(*(lose(producer) for producer in producers))
        assert proxy.broken == _MANY
    assert sorted(map(int, stored(database_url)[_AT_A_TIME:])) == list(range(_MANY))


def test_five_hundred_lost_commits_of_four_blocking_clients_append_each_message_once(database_url: str) -> None:
    with lossy(database_url) as proxy:
        with ExitStack() as opened, ThreadPoolExecutor(_AT_A_TIME) as threads:
            clients = [opened.enter_context(Client(proxy.url)) for _ in range(_AT_A_TIME)]
            producers = [client.stream("notes", Note).register().producer() for client in clients]
            list(threads.map(lambda producer: producer.produce(Note("warm")), producers))

            def lose(start: int) -> None:
                for number in range(start, _MANY, _AT_A_TIME):
                    proxy.break_next(_MOMENTS[number % 3])
                    producers[start].produce(Note(str(number)))

            list(threads.map(lose, range(_AT_A_TIME)))
        assert proxy.broken == _MANY
    assert sorted(map(int, stored(database_url)[_AT_A_TIME:])) == list(range(_MANY))


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("is_ended", [False, True], ids=["committed", "ended"])
async def test_a_commit_that_is_still_under_way_is_asked_about_until_it_is_decided(
    database_url: str, monkeypatch: pytest.MonkeyPatch, is_ended: bool, blocking: bool
) -> None:
    asked = Mock(wraps=statements.ask_commit)
    monkeypatch.setattr(statements, "ask_commit", asked)
    with lossy(database_url) as proxy, Client(proxy.url) as client:
        async with AsyncClient(proxy.url) as aclient, await psycopg.AsyncConnection.connect(database_url) as lock:
            await aclient.stream("notes", Note).register()
            producer, aproducer = client.stream("notes", Note).producer(), aclient.stream("notes", Note).producer()
            await aproducer.produce(Note("warm"))
            producer.produce(Note("warm"))
            ask(database_url, _HOLD)
            await lock.execute("select pg_advisory_xact_lock(7)")
            proxy.break_next("during")
            held = Note("held")
            call = asyncio.create_task(
                asyncio.to_thread(producer.produce, held) if blocking else aproducer.produce(held)
            )
            await eventually(lambda: asked.call_count > 1)
            assert not call.done()
            if is_ended:
                assert ask(database_url, _END_HELD) == [(True,)]
            await lock.rollback()
            receipt = await call
    assert receipt.id == (4 if is_ended else 3)
    assert stored(database_url) == ["warm", "warm", "held"]


@pytest.mark.parametrize(("moment", "texts"), [("before", ["warm"]), ("after", ["warm", "perhaps"])])
async def test_a_commit_that_cannot_be_asked_about_is_uncertain(
    database_url: str, moment: Moment, texts: list[str]
) -> None:
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url, timeout=1) as client:
            producer = (await client.stream("notes", Note).register()).producer()
            await producer.produce(Note("warm"))
            proxy.break_next(moment, close_too=True)
            with pytest.raises(ProduceUncertain, match="ids 2 to 2 may be in the log or not"):
                await producer.produce(Note("perhaps"))
    assert stored(database_url) == texts


def test_a_blocking_commit_that_cannot_be_asked_about_is_uncertain(database_url: str) -> None:
    with lossy(database_url) as proxy, Client(proxy.url, timeout=1) as client:
        producer = client.stream("notes", Note).register().producer()
        producer.produce(Note("warm"))
        proxy.break_next("after", close_too=True)
        with pytest.raises(ProduceUncertain, match="ids 2 to 3 may be in the log or not"):
            producer.produce_many([Note("perhaps"), Note("both")])
    assert stored(database_url) == ["warm", "perhaps", "both"]


async def test_a_pooled_connection_that_died_meanwhile_is_replaced(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = (await client.stream("notes", Note).register()).producer()
        await producer.produce(Note("before"))
        _end_every_session(database_url)
        await producer.produce(Note("after"))
        _end_every_session(database_url)
        await producer.produce_many([Note("many")])
    assert stored(database_url) == ["before", "after", "many"]


def test_a_pooled_connection_of_a_blocking_client_that_died_meanwhile_is_replaced(database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream("notes", Note).register().producer()
        producer.produce(Note("before"))
        _end_every_session(database_url)
        producer.produce(Note("after"))
    assert stored(database_url) == ["before", "after"]


def _end_every_session(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
