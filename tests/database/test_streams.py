"""Streams: declared, changed, renamed, listed, destroyed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, ClassVar, LiteralString

import psycopg
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, Client, DestroyRefused, InvalidInput, NotFound, PayloadShapeChanged
from tests.support import Note


def _ask(url: str, query: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def _logged(url: str) -> list[str]:
    return [action for (action,) in _ask(url, "select action from sqlstreams.stream_config_log order by id")]


async def test_registering_the_same_again_writes_nothing(database_url: str) -> None:
    rows: LiteralString = """
        select 'config', xmin::text, updated_at::text from sqlstreams.stream_config
         union all select 'shape', xmin::text, registered_at::text from sqlstreams.payload_schema
         union all select 'log', xmin::text, id::text from sqlstreams.stream_config_log
         union all select 'step', xmin::text, applied_at::text from sqlstreams.migration_log
    """
    async with AsyncClient(database_url) as client:
        await client.stream("notes", Note).register(max_payload=1_000)
        before = _ask(database_url, rows)
        await client.stream("notes", Note).register(max_payload=1_000)
        await client.stream("notes", Note).producer().register()
    assert _ask(database_url, rows) == before
    assert _logged(database_url) == ["registered"]


async def test_the_newest_declaration_wins_and_is_logged(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        before = await stream.get()
        await stream.register(max_payload=1_000, partition_rows=5_000)
        after = await stream.get()
    assert before is not None
    assert after is not None
    assert (before.max_payload, before.partition_rows) == (1_048_576, 1_000_000)
    assert (after.max_payload, after.partition_rows) == (1_000, 5_000)
    assert after.updated_at > before.updated_at
    assert after.created_at == before.created_at
    assert _logged(database_url) == ["registered", "changed"]
    last = _ask(
        database_url, "select config->>'max_payload' from sqlstreams.stream_config_log order by id desc limit 1"
    )
    assert last == [("1000",)]


def test_a_renamed_stream_keeps_its_messages_and_groups(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        stream.producer().produce(Note("a"))
        stream.consumer("g").register()
        renamed = stream.rename("letters")
        assert renamed.name == "letters"
        assert [message.payload for message in renamed.read()] == [b'{"text":"a"}']
        assert [(group.stream, group.name) for group in client.list_consumers()] == [("letters", "g")]
        assert stream.get() is None
        with pytest.raises(NotFound):
            stream.read()
    assert _logged(database_url) == ["registered", "renamed"]


async def test_a_taken_name_is_refused(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await client.stream("letters", Note).register()
        for taken in ("letters", "notes"):
            with pytest.raises(InvalidInput, match=f"new_name is taken: there is a stream named '{taken}'"):
                await stream.rename(taken)
        assert [info.name for info in await client.list_streams()] == ["letters", "notes"]


def test_of_many_that_want_one_name_at_once_one_gets_it(database_url: str) -> None:
    def rename(number: int) -> bool:
        with Client(database_url, pool_size=1) as client:
            stream = client.stream(f"notes-{number}", Note).register()
            barrier.wait()
            try:
                stream.rename("letters")
            except InvalidInput as refused:
                assert refused.field == "new_name"  # noqa: PT017  # one must not be refused
                return False
            return True

    barrier = Barrier(6)
    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(rename, range(6))) == [False] * 5 + [True]


async def test_destroying_needs_a_client_that_may(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url, allow_destroy=True) as destroyer:
        stream = await client.stream("notes", Note).register()
        await stream.consumer("g").register()
        with pytest.raises(DestroyRefused, match="stream 'notes' was not destroyed"):
            await stream.destroy()
        with pytest.raises(DestroyRefused, match="consumer group 'g' was not destroyed"):
            await stream.consumer("g").destroy()
        assert await stream.get() is not None
        await destroyer.stream("notes", Note).destroy()
        assert await stream.get() is None
        with pytest.raises(NotFound):
            await destroyer.stream("notes", Note).destroy()
    left = _ask(database_url, "select relname from pg_class where relname ~ '_1(_|$)' and relkind in ('r', 'p', 'S')")
    assert left == []
    assert _ask(database_url, "select count(*) from sqlstreams.migration_log where scope = 'stream'") == [(0,)]
    assert _ask(database_url, "select count(*) from sqlstreams.consumer_group_config") == [(0,)]
    assert _logged(database_url) == ["registered", "destroyed"]


async def test_a_destroyed_stream_can_be_registered_anew_and_is_empty(database_url: str) -> None:
    async with AsyncClient(database_url, allow_destroy=True) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce(Note("a"))
        await stream.destroy()
        await stream.register()
        assert await stream.read() == []
        assert (await stream.producer().produce(Note("b"))).id == 1


async def test_a_status_counts_what_is_there(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register(partition_rows=1_000)
        empty = await stream.status()
        await stream.consumer("g").register()
        await stream.producer().produce_many([Note("x")] * 1_500)
        full = await stream.status()
    assert (empty.name, empty.head, empty.last_at, empty.partitions, empty.groups) == ("notes", 0, None, 1, 0)
    assert (full.head, full.groups) == (1_500, 1) or full.head > 1_500
    assert full.partitions >= 3
    assert full.last_at is not None
    assert full.size > empty.size


class Wider(Struct, frozen=True):
    text: str
    more: int


class Second(Struct, frozen=True):
    schema_version: ClassVar[int] = 2
    text: str
    more: int


async def test_another_shape_under_the_same_version_is_refused_and_says_what_changed(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await client.stream("notes", Note).register()
        for refused in (client.stream("notes", Wider).register, client.stream("notes", Wider).producer().register):
            with pytest.raises(PayloadShapeChanged, match="shape of version 1 on stream 'notes': 'more' was added"):
                await refused()
        await client.stream("notes", Second).register()
        await client.stream("notes", Second).producer().produce(Second("a", 1))
        (message,) = await client.stream("notes").read()
        assert message.schema_version == 2
    assert _ask(database_url, "select schema_version from sqlstreams.payload_schema order by 1") == [(1,), (2,)]


async def test_a_refused_shape_changes_no_setting(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        await client.stream("notes", Note).register()
        with pytest.raises(PayloadShapeChanged):
            await client.stream("notes", Wider).register(max_payload=7)
        info = await client.stream("notes").get()
    assert info is not None
    assert info.max_payload == 1_048_576
    assert _logged(database_url) == ["registered"]
