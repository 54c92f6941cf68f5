"""Connections that are cut under a consuming process, and an event loop that stands still: no lease is lost by it."""

from __future__ import annotations

import contextlib
import signal
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, AsyncConsumer, RawPayload, meta
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import Process, finished, twice_delivered
from tests.support import Note, consuming, eventually

_BACKENDS = """
    select pid
      from pg_stat_activity
     where datname = current_database()
       and application_name = 'victim'
     order by backend_start
"""


async def test_a_process_lives_on_when_any_of_its_connections_is_cut(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str, start: Start
) -> None:
    victim = start(url=make_conninfo(database_url, application_name="victim"), handler="flaky", lease=2, produces=True)
    await _goes_on(victim)
    cut: set[int] = set()
    with psycopg.connect(database_url, autocommit=True) as admin:
        # The pool's, the heartbeat's, the listener's and the notifier's, and those that took their place.
        for _ in range(10):
            backends = [pid for (pid,) in admin.execute(_BACKENDS)]
            pid = next((each for each in backends if each not in cut), backends[0])
            admin.execute("select pg_terminate_backend(%s)", [pid])
            cut.add(pid)
            await _goes_on(victim)
        await _stop_and_check(client, group, victim, start)


async def test_a_process_lives_on_when_all_its_connections_are_cut_at_once(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str, start: Start
) -> None:
    victim = start(url=make_conninfo(database_url, application_name="victim"), handler="flaky", lease=3, produces=True)
    await _goes_on(victim)
    with psycopg.connect(database_url, autocommit=True) as admin:
        for _ in range(3):
            admin.execute(f"select pg_terminate_backend(pid) from ({_BACKENDS}) as backends (pid)")
            await _goes_on(victim)
    await _stop_and_check(client, group, victim, start)


async def test_a_pool_full_of_dead_connections_delays_a_consumer_by_little(
    database_url: str, client: AsyncClient, group: AsyncConsumer[Note]
) -> None:
    url = make_conninfo(database_url, application_name="victim")
    async with AsyncClient(url, pool_size=10) as victim, contextlib.AsyncExitStack() as stack:
        consumer = victim.stream("notes", Note).consumer("g")
        for _ in range(10):
            await stack.enter_async_context(victim._database.connection())
        await stack.aclose()
        async with consuming(consumer, _succeed):
            await eventually(lambda: consumer.stats.claims > 0)
            with psycopg.connect(database_url, autocommit=True) as admin:
                admin.execute(f"select pg_terminate_backend(pid) from ({_BACKENDS}) as backends (pid)")
            await produce(client, 1)
            await eventually(lambda: consumer.stats.handled == 1, within=3)


async def test_a_blocked_event_loop_keeps_its_leases(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 2)
    blocked = start(handler="blocking", seconds=3, concurrency=1, prefetch=2)
    await eventually(lambda: len(blocked.deliveries("start")) == 1)
    waiting = start()
    await eventually(lambda: len(blocked.ids()) == 1)
    assert waiting.ids("start") == []
    assert await group.reclaims() == []
    await eventually(lambda: finished([blocked, waiting]) == dict.fromkeys(ids, 1))
    assert await group.reclaims() == []


async def test_a_claim_whose_answer_was_lost_is_freed_when_the_loss_is_noticed(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    ids = await produce(client, 5)
    seen: list[int] = []

    async def handle(note: Note) -> None:
        seen.append(meta().id)

    async with consuming(group, handle):
        await eventually(lambda: seen == ids)
        await _lose_a_claim(database_url, ids=range(6, 11))
        await produce(client, 5)
        # The heartbeat keeps the lease alive, so nothing else would ever free it.
        await eventually(lambda: _cut_the_heartbeat(database_url))
        await eventually(lambda: sorted(seen) == list(range(1, 11)), within=10)
        await all_is_done(group)
    assert await group.reclaims() == []


async def test_a_retry_whose_claim_was_lost_is_freed_uncharged(
    client: AsyncClient, group: AsyncConsumer[Note], database_url: str
) -> None:
    attempts: list[int] = []

    async def handle(note: Note) -> None:
        attempts.append(meta().attempt)
        if meta().attempt == 1:
            raise ValueError("once")

    await produce(client, 1)
    async with consuming(group, handle):
        await eventually(lambda: group.stats.failed == 1)
        with psycopg.connect(database_url, autocommit=True) as admin:
            admin.execute(
                """
                update sqlstreams.exception_queue_1
                   set state = 'inflight', token = %s, instance_id = (select id from sqlstreams.consumer_instance)
                """,
                [uuid4()],
            )
        await eventually(lambda: _cut_the_heartbeat(database_url))
        await all_is_done(group)
    assert attempts == [1, 2]


async def _succeed(note: Note) -> None:
    """Succeed."""


async def _lose_a_claim(url: str, *, ids: range) -> None:
    """Leave what a claim leaves whose answer never came."""
    lease = """
        insert into sqlstreams.claim_lease (token, group_id, instance_id, low, high, resolved)
        select %s, 1, id, %s, %s, %s from sqlstreams.consumer_instance
    """
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(lease, [uuid4(), ids[0], ids[-1], ids[0] - 1])
        await connection.execute("update sqlstreams.consumer_group_cursor set claimed = %s", [ids[-1]])


async def _cut_the_heartbeat(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute("""
            select pg_terminate_backend(pid)
              from pg_stat_activity
             where datname = current_database()
               and pid <> pg_backend_pid()
               and query ~ 'set renewed_at'
        """)
        return bool(await cursor.fetchall())


async def _goes_on(process: Process) -> None:
    before = len(process.ids())
    await eventually(lambda: len(process.ids()) >= before + 15, within=8)


async def _stop_and_check(client: AsyncClient, group: AsyncConsumer[Any], victim: Process, start: Start) -> None:
    victim.send(signal.SIGTERM)
    await eventually(lambda: not victim.runs)
    assert victim.exit_code == 0
    heir = start(concurrency=20)
    await all_is_done(group)
    messages = await client.stream("notes", RawPayload).read(limit=10_000)
    assert finished([victim, heir]) == {message.id: 1 for message in messages}
    assert twice_delivered([victim, heir]) == set()
    assert await group.reclaims() == []
