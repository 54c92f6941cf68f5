"""Producing to a stream that never was, is gone, or has another name now."""

from __future__ import annotations

import pytest

from sqlstreams import AsyncClient, Client, NotFound, NotInstalled
from tests.produce.log import stored
from tests.support import Note


async def test_an_absent_stream_is_not_found(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        producer = client.stream("nobody", Note).producer()
        with pytest.raises(NotFound, match="no stream named 'nobody'"):
            await producer.register()
        with pytest.raises(NotFound):
            await producer.produce(Note("a"))
        with pytest.raises(NotFound):
            await producer.produce_many([Note("a")])


def test_an_absent_installation_is_not_installed(empty_database_url: str) -> None:
    with Client(empty_database_url) as client:
        producer = client.stream("notes", Note).producer()
        with pytest.raises(NotInstalled, match="schema 'sqlstreams' holds no sqlstreams installation"):
            producer.produce(Note("a"))


async def test_a_stream_destroyed_by_another_is_not_found(database_url: str) -> None:
    async with AsyncClient(database_url, allow_destroy=True) as client, AsyncClient(database_url) as other:
        stream = await client.stream("notes", Note).register()
        producer = other.stream("notes", Note).producer()
        await producer.produce(Note("a"))
        await stream.destroy()
        with pytest.raises(NotFound, match="no stream named 'notes'"):
            await producer.produce(Note("b"))
        await stream.register()
        await producer.produce(Note("c"))
        assert [message.payload for message in await stream.read()] == [b'{"text":"c"}']


def test_a_stream_destroyed_by_another_is_not_found_by_a_blocking_producer(database_url: str) -> None:
    with Client(database_url, allow_destroy=True) as client, Client(database_url) as other:
        stream = client.stream("notes", Note).register()
        producer = other.stream("notes", Note).producer()
        producer.produce(Note("a"))
        stream.destroy()
        with pytest.raises(NotFound, match="no stream named 'notes'"):
            producer.produce_many([Note("b")])


async def test_a_producer_keeps_working_when_another_renames_its_stream(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url) as other:
        stream = await client.stream("notes", Note).register()
        producer = other.stream("notes", Note).producer()
        await producer.produce(Note("before"))
        renamed = await stream.rename("letters")
        await producer.produce(Note("after"))
        await renamed.producer().produce(Note("by its new name"))
    assert stored(database_url) == ["before", "after", "by its new name"]
