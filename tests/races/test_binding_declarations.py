"""Processes of one group that declare different bindings: those in force stay while they are held."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, Client, meta
from sqlstreams.sql import statement_texts
from tests.support import Note, consuming, eventually

OLD, NEW, NEWER = ("old.*",), ("new.*",), ("newer.*",)


async def _ignore(note: Note) -> None:
    pass


@asynccontextmanager
async def _process(url: str, bindings: tuple[str, ...]) -> AsyncIterator[AsyncConsumer[Note]]:
    """A process that declares bindings and consumes by now."""
    async with AsyncClient(url) as client:
        consumer = await client.stream("notes", Note).consumer("g").register(bindings=bindings)
        before = await _processes(consumer)
        async with consuming(consumer, _ignore):
            await eventually(lambda: _are(consumer, before + 1))
            yield consumer


async def _processes(consumer: AsyncConsumer[Note]) -> int:
    state = await consumer.bindings()
    return sum(each.pid is not None for each in state.held_by + state.waiting)


async def _are(consumer: AsyncConsumer[Note], count: int) -> bool:
    return await _processes(consumer) == count


async def _in_force(consumer: AsyncConsumer[Note]) -> tuple[str, ...]:
    return (await consumer.bindings()).bindings


async def _is_in_force(consumer: AsyncConsumer[Note], bindings: tuple[str, ...]) -> bool:
    return await _in_force(consumer) == bindings


@pytest.fixture
async def group(database_url: str) -> AsyncIterator[AsyncConsumer[Note]]:
    """A group that nobody has registered yet."""
    async with AsyncClient(database_url) as client:
        yield (await client.stream("notes", Note).register()).consumer("g")


async def test_in_a_rolling_deploy_the_new_bindings_come_when_the_last_old_process_has_gone(
    database_url: str, group: AsyncConsumer[Note]
) -> None:
    async with AsyncExitStack() as new_ones:
        async with _process(database_url, OLD) as first:
            assert first.binding_outcome == "installed"
            async with _process(database_url, OLD) as second:
                assert second.binding_outcome == "joined"
                new = await new_ones.enter_async_context(_process(database_url, NEW))
                assert new.binding_outcome == "waiting"
            # An old one that is started again flips nothing.
            async with _process(database_url, OLD) as again:
                assert again.binding_outcome == "joined"
                state = await group.bindings()
                assert (state.bindings, len(state.held_by)) == (OLD, 2)
                assert [each.bindings for each in state.waiting] == [NEW]
        await eventually(lambda: _is_in_force(group, NEW))
        async with _process(database_url, OLD) as late:
            assert late.binding_outcome == "waiting"
            assert await _in_force(group) == NEW


async def test_the_declaration_of_a_process_goes_with_it(database_url: str, group: AsyncConsumer[Note]) -> None:
    async with _process(database_url, OLD):
        async with _process(database_url, NEW):
            assert [each.bindings for each in (await group.bindings()).waiting] == [NEW]
        state = await group.bindings()
    assert (state.bindings, state.waiting) == (OLD, ())


async def test_of_those_that_wait_the_newest_comes_first(database_url: str, group: AsyncConsumer[Note]) -> None:
    async with _process(database_url, OLD):
        await group.register(bindings=NEW)
        await group.register(bindings=NEWER)
        assert group.binding_outcome == "waiting"
        declared = (await group.bindings()).waiting
        await group.register(bindings=NEWER)
        assert (await group.bindings()).waiting == declared
        assert [(each.bindings, each.pid) for each in declared] == [(NEWER, None)]
    async with AsyncClient(database_url) as client, consuming(client.stream("notes", Note).consumer("g"), _ignore):
        await eventually(lambda: _is_in_force(group, NEWER))
    assert (await group.bindings()).waiting == ()


async def test_without_processes_the_newest_declaration_counts_at_once(group: AsyncConsumer[Note]) -> None:
    for bindings, outcome in ((OLD, "installed"), (NEW, "installed"), (NEW, "joined"), ((), "installed")):
        await group.register(bindings=bindings)
        assert (group.binding_outcome, await _in_force(group)) == (outcome, bindings)


async def test_whoever_has_bindings_in_force_and_dies_makes_room(database_url: str, group: AsyncConsumer[Note]) -> None:
    async with _process(database_url, OLD), _process(database_url, NEW) as new:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(_FREEZE)
            connection.execute(
                """update sqlstreams.consumer_instance set expires_at = now()
                    where id in (select instance_id from sqlstreams.binding_declaration where bindings = '{old.*}')"""
            )
        await eventually(lambda: _is_in_force(new, NEW))


# Whatever the heartbeat of the one that counts as dead says later, it changes nothing.
_FREEZE = """
    create function sqlstreams.stay_expired() returns trigger language plpgsql as $$ begin return old; end $$;
    create trigger stay_expired before update on sqlstreams.consumer_instance
        for each row when (old.expires_at <= now()) execute function sqlstreams.stay_expired();
"""


def test_of_two_that_declare_at_once_one_is_installed_last_and_each_knows_its_outcome(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("notes", Note).register().consumer("g").register()
    for _ in range(10):
        outcomes = _declare_at_once(database_url)
        with Client(database_url) as client:
            final = client.stream("notes", Note).consumer("g").bindings()
        assert outcomes == {OLD: "installed", NEW: "installed"} or set(outcomes.values()) == {"installed", "joined"}
        assert final.bindings in (OLD, NEW)
        assert final.waiting == ()
        with psycopg.connect(database_url) as connection:
            assert connection.execute("select bindings from sqlstreams.consumer_group_cursor").fetchone() == (
                [final.bindings[0].replace("*", "%")],
            )


def _declare_at_once(url: str) -> dict[tuple[str, ...], str | None]:
    barrier = threading.Barrier(2)

    def declare(bindings: tuple[str, ...]) -> str | None:
        with Client(url) as client:
            client.list_streams()
            barrier.wait(timeout=10)
            return client.stream("notes", Note).consumer("g").register(bindings=bindings).binding_outcome

    with ThreadPoolExecutor(2) as threads:
        return dict(zip((OLD, NEW), threads.map(declare, (OLD, NEW)), strict=True))


def test_a_declaration_that_waited_for_a_process_to_join_sees_it(database_url: str) -> None:
    # given: a process that joins with the old bindings, and has not committed yet
    with Client(database_url) as client, psycopg.connect(database_url) as joining, ThreadPoolExecutor(1) as threads:
        group = client.stream("notes", Note).register().consumer("g").register(bindings=OLD)
        joining.execute(
            """insert into sqlstreams.consumer_instance (token, hostname, pid, library, expires_at)
               values (gen_random_uuid(), 'here', 1, '0', now() + interval '1 hour')"""
        )
        joining.execute(statement_texts()["lock_bindings"].format(schema="sqlstreams"), {"group_id": 1})
        joining.execute(
            """insert into sqlstreams.binding_declaration (token, group_id, instance_id, bindings)
               select token, 1, id, '{old.*}' from sqlstreams.consumer_instance"""
        )
        # when: another one declares new bindings
        declaring = threads.submit(group.register, bindings=NEW)
        _until_somebody_waits(database_url)
        joining.commit()
        # then
        assert declaring.result(timeout=10).binding_outcome == "waiting"
        assert group.bindings().bindings == OLD


async def test_a_message_claimed_before_keeps_the_bindings_of_its_claim(group: AsyncConsumer[Note]) -> None:
    seen: list[str | None] = []

    async def handle(note: Note) -> None:
        if not seen:
            await group.register(bindings=NEW)
        seen.append(meta().routing_key)

    await group.register(bindings=OLD)
    producer = group._stream.producer()
    for routing_key in ("old.1", "new.1", "old.2"):
        await producer.produce(Note("x"), routing_key=routing_key)
    another = group._stream.consumer("g")
    async with consuming(another, handle, concurrency=1):
        await eventually(lambda: len(seen) == 2)
        await producer.produce(Note("x"), routing_key="new.2")
        await eventually(lambda: len(seen) == 3)
    assert seen == ["old.1", "old.2", "new.2"]


def _until_somebody_waits(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1_000):
            waiting: Any = connection.execute(
                "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            ).fetchone()
            if waiting is not None:
                return
            connection.execute("select pg_sleep(0.01)")
    raise AssertionError("nobody waited for a lock")
