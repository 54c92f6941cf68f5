"""A connection that breaks around the commit: the message is there exactly once, or the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle

import psycopg
import pytest

from sqlstreams import AsyncClient, Client, ProduceUncertain
from tests.produce.log import stored
from tests.produce.proxy import Moment, lossy
from tests.support import Note

_TIMES = 20


@pytest.mark.parametrize("moment", ["before", "after"])
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


@pytest.mark.parametrize("moment", ["before", "after"])
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
            moments: Iterator[Moment] = cycle(("before", "after"))
            for start, moment in zip(range(1, 1_001, 100), moments, strict=False):
                proxy.break_next(moment)
                calls = [producer.produce(Note(str(number))) for number in range(start, start + 100)]
                receipts = await asyncio.gather(*calls)
                assert len({receipt.id for receipt in receipts}) == 100
        assert proxy.broken == 10
    assert sorted(map(int, stored(database_url))) == list(range(1_001))


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
