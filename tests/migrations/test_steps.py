"""What a library does about steps that it lacks, does not know, or finds changed, and about a step that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest
from psycopg import errors as pg

from sqlstreams import AsyncClient, Client, MigrationChanged, NotInstalled, SchemaTooNew, migration
from sqlstreams.migration import Migration, library_version
from tests.support import Note, eventually

Ship = Callable[..., None]


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Have the library ship more migrations than it does."""

    def more(*migrations: Migration) -> None:
        everything = sorted((*released, *migrations), key=lambda each: (each.scope != "system", each.version))
        monkeypatch.setattr(migration, "shipped", lambda: tuple(everything))

    released = migration.shipped()
    return more


def _step(version: int, text: str, *, scope: str = "system") -> Migration:
    return Migration(scope=scope, version=version, name=f"step_{version}", text=text, breaking=False)


def _run(url: str, query: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def _record(url: str, *, breaking: bool) -> None:
    _run(
        url,
        "insert into sqlstreams.migration_log (scope, stream_id, version, name, checksum, breaking, library)"
        f" values ('system', 0, 99, 'from_the_future', 'x', {breaking}, '9.7.1')",
    )


async def test_a_changed_step_is_refused(database_url: str) -> None:
    _run(database_url, "update sqlstreams.migration_log set checksum = 'edited' where version = 1")
    async with AsyncClient(database_url) as client:
        with pytest.raises(MigrationChanged, match=r"system migration 0001 \(foundation\) was applied by sqlstreams"):
            await client.stream("notes", Note).register()
        with pytest.raises(MigrationChanged):
            await client.system.register()
    assert _run(database_url, "select 1 from sqlstreams.stream_config") == []


async def test_an_unknown_step_that_breaks_nothing_is_no_trouble(database_url: str) -> None:
    _record(database_url, breaking=False)
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce(Note("a"))
        assert await client.system.register() == []
        assert (await client.system.status()).applied[1].library == "9.7.1"


async def test_an_unknown_breaking_step_is_refused_with_the_version_that_is_needed(database_url: str) -> None:
    _record(database_url, breaking=True)
    async with AsyncClient(database_url) as client:
        with pytest.raises(SchemaTooNew, match=r"0099 \(from_the_future\) .* sqlstreams 9\.7\.1 or newer is needed"):
            await client.list_streams()
        with pytest.raises(SchemaTooNew, match=library_version()):
            await client.system.register()


def test_a_schema_without_an_installation_is_told(empty_database_url: str) -> None:
    with Client(empty_database_url) as client:
        with pytest.raises(NotInstalled, match="schema 'sqlstreams' holds no sqlstreams installation"):
            client.list_streams()
        with pytest.raises(NotInstalled):
            client.system.migrate()
        assert not client.system.status().installed
    assert _run(empty_database_url, "select 1 from pg_namespace where nspname = 'sqlstreams'") == []


def test_a_lacking_step_is_named_until_it_is_applied(database_url: str, ship: Ship) -> None:
    ship(_step(2, "create table {schema}.extra (id int);"))
    with Client(database_url) as client:
        with pytest.raises(NotInstalled, match=r"lacks migration 0002 \(step_2\) of the system"):
            client.list_streams()
        assert [step.version for step in client.system.status().pending] == [2]
        assert [step.name for step in client.system.migrate()] == ["step_2"]
        assert client.list_streams() == []
    assert _run(database_url, "select 1 from sqlstreams.extra") == []


def test_a_step_of_the_streams_is_applied_to_each(database_url: str, ship: Ship) -> None:
    with Client(database_url) as client:
        for name in ("one", "two"):
            client.stream(name, Note).register()
    ship(_step(2, "create table {schema}.extra_{stream} (id int);", scope="stream"))
    with Client(database_url) as client:
        with pytest.raises(NotInstalled, match=r"lacks migration 0002 \(step_2\) of stream 'one'"):
            client.stream("one", Note).status()
        assert [(step.stream, step.version) for step in client.system.register()] == [("one", 2), ("two", 2)]
        client.stream("three", Note).register()
        assert client.system.status().pending == ()
    assert _run(database_url, "select count(*) from pg_class where relname ~ '^extra_[123]$'") == [(3,)]


def test_a_step_that_fails_leaves_nothing_and_can_be_tried_again(database_url: str, ship: Ship) -> None:
    ship(_step(2, "create table {schema}.half (id int); select 1 / 0;"))
    with Client(database_url) as client:
        with pytest.raises(pg.DivisionByZero):
            client.system.register()
        assert [step.version for step in client.system.status().applied] == [1]
    assert _run(database_url, "select to_regclass('sqlstreams.half')") == [(None,)]
    ship(_step(2, "create table {schema}.half (id int);"))
    with Client(database_url) as client:
        assert [step.version for step in client.system.register()] == [2]


def test_a_first_step_that_fails_leaves_not_even_the_schema(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "shipped", lambda: (_step(1, "select 1 / 0;"),))
    with Client(empty_database_url) as client, pytest.raises(pg.DivisionByZero):
        client.system.register()
    assert _run(empty_database_url, "select 1 from pg_namespace where nspname = 'sqlstreams'") == []


async def test_a_step_cancelled_in_the_middle_leaves_nothing(database_url: str, ship: Ship) -> None:
    ship(_step(2, "create table {schema}.half (id int); select pg_advisory_xact_lock(4711);"))
    async with AsyncClient(database_url) as client:
        async with await psycopg.AsyncConnection.connect(database_url) as other:
            await other.execute("select pg_advisory_xact_lock(4711)")
            task = asyncio.create_task(client.system.register())
            await eventually(lambda: _waits(database_url))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert [step.version for step in (await client.system.status()).applied] == [1]
        assert _run(database_url, "select to_regclass('sqlstreams.half')") == [(None,)]
        assert [step.version for step in await client.system.register()] == [2]


def _waits(url: str) -> bool:
    return bool(_run(url, "select 1 from pg_locks where locktype = 'advisory' and objid = 4711 and not granted"))


def test_the_shipped_steps_are_numbered_without_a_gap() -> None:
    for scope in ("system", "stream"):
        versions = [each.version for each in migration.shipped() if each.scope == scope]
        assert versions == list(range(1, len(versions) + 1))
    assert len({each.checksum for each in migration.shipped()}) == len(migration.shipped())


def test_registering_again_applies_nothing(database_url: str) -> None:
    with Client(database_url) as client:
        before = client.system.status().applied
        assert client.system.register() == []
        assert client.system.migrate() == []
        assert client.system.status().applied == before
