"""Two at the same schedule: managers, edits, suspensions, destruction, backfills, and a network that loses answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, Client, statements
from sqlstreams.database import execute, is_broken
from sqlstreams.manager.catch_up import Plan, make_plan
from sqlstreams.manager.firing import Outcome, fire_plans, fire_singles
from sqlstreams.produce.batch import prepare_adapters
from sqlstreams.statements import Act, Family, Statement
from tests.produce.proxy import Moment, lossy
from tests.schedules.ground import (
    HOUR,
    MINUTE,
    Run,
    back_date,
    clock,
    duty,
    fire_all,
    half_past,
    messages,
    query,
    register,
    slots_fired,
)
from tests.support import eventually

THREADS = 20


@pytest.fixture
def due(database_url: str) -> datetime:
    """A schedule of every minute whose slot is due."""
    register(database_url, "* * * * *")
    slot = clock(database_url).replace(second=0, microsecond=0)
    back_date(database_url, slot)
    return slot


def plans(url: str, *, at: datetime | None = None) -> list[Plan]:
    """Plan what is due, now or as it would have been at another time."""
    with psycopg.connect(url) as connection:
        due = statements.due_schedules(
            execute(connection, statements.list_due_schedules("sqlstreams", within=0.1, limit=1_000))
        )
    return [make_plan(schedule, at or due.now, limit=100) for schedule in due.schedules]


@contextmanager
def firing(url: str, planned: list[Plan], *, until: str = "insert_fires") -> Iterator[psycopg.Connection[Any]]:
    """Be in the middle of a fire in the block, just before a statement of it, and commit at its end."""
    with psycopg.connect(url) as connection:
        act, statement = _begin_firing(connection, planned, until=until)
        yield connection
        with_answer = execute(connection, statement)
        try:
            while True:
                with_answer = execute(connection, act.send(with_answer))
        except StopIteration:
            connection.commit()


def _begin_firing(
    connection: psycopg.Connection[Any], planned: list[Plan], *, until: str
) -> tuple[Act[Outcome], Statement[Any]]:
    prepare_adapters(connection.adapters)
    act = fire_plans("sqlstreams", planned)
    statement = next(act)
    while statement.name != until:
        statement = act.send(execute(connection, statement))
    return act, statement


def fire_together(url: str, planned: list[Plan]) -> list[int]:
    """Fire by the one statement that is for many; return the schedules that it did not leave."""
    with psycopg.connect(url) as connection:
        return execute(connection, fire_singles(Family("sqlstreams", 1), planned))


def fire_one_by_one(url: str, planned: list[Plan]) -> list[int]:
    """Fire by the statements that look at each schedule; return the schedules that fired."""
    with firing(url, planned):
        pass
    return [plan.schedule.id for plan in planned]


def fire_in_threads(url: str) -> int:
    """Have twenty managers with connections of their own fire at the same moment."""
    begin = threading.Barrier(THREADS)

    def manage() -> int:
        async def work() -> int:
            async with AsyncClient(url, pool_size=1) as client:
                await client.list_streams()
                begin.wait(30)
                return await fire_all(client)

        return asyncio.run(work())

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(done.result() for done in [threads.submit(manage) for _ in range(THREADS)])


def test_twenty_managers_fire_a_slot_once(database_url: str, due: datetime) -> None:
    register(database_url, "* * * * *", *(f"s{number}" for number in range(5)), catch_up="all")
    back_date(database_url, due - 10 * MINUTE, *(f"s{number}" for number in range(5)))
    fired = fire_in_threads(database_url)
    assert fired >= 1 + 5 * 11  # a minute may have passed
    told = messages(database_url)
    assert len(told) == len({(key, slot) for key, _, slot in told}) == fired
    assert query(database_url, "select count(*) from sqlstreams.schedule_fire") == [(fired,)]


def test_an_edit_that_committed_first_is_what_fires(database_url: str, due: datetime) -> None:
    planned = plans(database_url)
    with Client(database_url) as client:
        client.scheduler("nightly").register("runs", "* * * * *", Run("us"))
    with firing(database_url, planned, until="wait_briefly"):
        pass
    assert messages(database_url) == []
    with firing(database_url, plans(database_url)):
        pass
    assert messages(database_url) == [("nightly", {"region": "us"}, due)]


def test_both_ways_to_fire_write_the_same(database_url: str, due: datetime) -> None:
    """Once to a key without a head, and once to one that has an older and one that has a newer head."""
    register(database_url, "* * * * *", "bare", compaction=False, concurrency="exclusive")
    written = []
    for fire in (fire_one_by_one, fire_together):
        for slot in (due, due - MINUTE, due):
            query(database_url, "delete from sqlstreams.schedule_fire where scheduled_for = %s", [slot])
            query(database_url, "delete from sqlstreams.idempotency_key_1")
            back_date(database_url, slot)
            planned = plans(database_url, at=slot)
            assert [plan.is_single for plan in planned] == [True, True]
            assert sorted(fire(database_url, planned)) == [1, 2]
        written.append(_written(database_url))
        for table in ("message_log_1", "idempotency_key_1", "compaction_head_1", "schedule_fire"):
            query(database_url, f"delete from sqlstreams.{table}")
        query(database_url, "select setval('sqlstreams.message_log_1_id', 1, false)")
    assert written[0] == written[1]
    assert all(written[0])


def _written(url: str) -> list[list[Any]]:
    # The order in which the two schedules get their ids is nobody's business.
    return [
        query(
            url,
            """
            select payload::text, message_key, routing_key, schema_version, options::text, compaction_rank
              from sqlstreams.message_log_1
             order by message_key, id
            """,
        ),
        query(
            url,
            """
            select k.idempotency_key, k.fingerprint, m.message_key, k.expires_at - m.created_at < '8 d'
              from sqlstreams.idempotency_key_1 k
              join sqlstreams.message_log_1 m on m.id = k.message_id
             order by 1
            """,
        ),
        query(
            url,
            """
            select h.message_key, h.schema_version, h.rank, m.compaction_rank, count(o.id)
              from sqlstreams.compaction_head_1 h
              join sqlstreams.message_log_1 m on m.id = h.id
              join sqlstreams.message_log_1 o on o.message_key = h.message_key and o.id <= h.id
             group by 1, 2, 3, 4
            """,
        ),
        query(
            url,
            """
            select f.schedule_id, f.scheduled_for, f.kind, f.fired_by, m.message_key
              from sqlstreams.schedule_fire f
              join sqlstreams.message_log_1 m on m.id = f.message_id
             order by 1, 2
            """,
        ),
        query(
            url,
            """
            select c.schedule_id, c.next_slot, c.due_at, c.last_slot, c.last_fired_at is not null, m.message_key,
                   c.consecutive_failures, c.zone_data
              from sqlstreams.schedule_cursor c
              join sqlstreams.message_log_1 m on m.id = c.last_message_id
             order by 1
            """,
        ),
    ]


def test_an_edit_that_committed_first_is_left_by_the_statement_for_many(database_url: str, due: datetime) -> None:
    planned = plans(database_url)
    with Client(database_url) as client:
        client.scheduler("nightly").register("runs", "* * * * *", Run("us"))
    assert fire_together(database_url, planned) == []
    assert messages(database_url) == []
    assert fire_together(database_url, plans(database_url)) == [1]
    assert messages(database_url) == [("nightly", {"region": "us"}, due)]


@pytest.mark.parametrize("change", ["suspend", "destroy"])
def test_what_was_stopped_since_it_was_planned_is_left(database_url: str, due: datetime, change: str) -> None:
    planned = plans(database_url)
    with Client(database_url, allow_destroy=True) as client:
        getattr(client.scheduler("nightly"), change)()
    assert fire_together(database_url, planned) == []
    assert messages(database_url) == []


def test_what_another_holds_is_left_and_its_neighbour_fires(database_url: str, due: datetime) -> None:
    register(database_url, "* * * * *", "other")
    back_date(database_url, due)
    planned = plans(database_url)
    with firing(database_url, [plan for plan in planned if plan.schedule.name == "nightly"]):
        assert fire_together(database_url, planned) == [2]
    assert fire_together(database_url, planned) == []
    assert [key for key, _, _ in messages(database_url)].count("nightly") == 1


async def test_a_slot_whose_key_is_taken_keeps_no_neighbour_from_firing(database_url: str, due: datetime) -> None:
    register(database_url, "* * * * *", "other")
    back_date(database_url, due)
    key = f"schedule:1:{due.isoformat()}"
    query(database_url, "select sqlstreams.produce('runs', %s, idempotency_key => %s)", ['{"region":"eu"}', key])
    async with AsyncClient(database_url, manager=False) as client:
        assert (await duty(client).run_once()).done == 2
    fires = query(database_url, "select schedule_id, message_id from sqlstreams.schedule_fire order by schedule_id")
    assert fires[0] == (1, 1)
    assert [key for key, _, _ in messages(database_url)] == [None, "other"]


async def test_what_is_due_in_a_moment_is_planned_and_waited_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(database_url, "* * * * *", "one", "two")
    monkeypatch.setattr("sqlstreams.manager.schedules._PREPARED", 60.0)
    async with AsyncClient(database_url, manager=False) as client:
        producer = duty(client)
        await client.list_streams()
        # given: two that are due soon, one a second after the other
        coming = query(
            database_url,
            """
            update sqlstreams.schedule_cursor c
               set next_slot = m.at, due_at = m.at
              from (select id, clock_timestamp() + id * interval '1 s' as at from sqlstreams.schedule_config) as m
             where c.schedule_id = m.id
            returning c.next_slot
            """,
        )
        # when
        assert [(await producer.run_once()).done for _ in range(2)] == [1, 1]
    # then
    assert [(slot,) for slot in slots_fired(database_url)] == sorted(coming)
    assert query(database_url, "select count(*) from sqlstreams.schedule_fire where fired_at >= scheduled_for") == [
        (2,)
    ]


async def test_an_edit_under_way_is_waited_for_without_waiting(database_url: str, due: datetime) -> None:
    with Client(database_url) as editing, psycopg.connect(database_url) as connection:
        editing.scheduler("nightly").register("runs", "* * * * *", Run("us"), connection=connection)
        async with AsyncClient(database_url, manager=False) as client:
            assert (await duty(client).run_once()).done == 0
            connection.commit()
            assert (await duty(client).run_once()).done == 1
    assert messages(database_url) == [("nightly", {"region": "us"}, due)]


async def test_an_edit_that_is_rolled_back_changes_nothing(database_url: str, due: datetime) -> None:
    with Client(database_url) as editing, psycopg.connect(database_url) as connection:
        editing.scheduler("nightly").register("runs", "0 0 1 1 *", Run("us"), connection=connection)
        connection.rollback()
    async with AsyncClient(database_url, manager=False) as client:
        assert await fire_all(client) >= 1
    assert messages(database_url)[0] == ("nightly", {"region": "eu"}, due)


def _while_firing(url: str, planned: list[Plan], change: Any) -> None:
    # The change waits for the fire, and goes on when it is committed.
    with ThreadPoolExecutor(1) as threads:
        with firing(url, planned) as connection:
            changing: Future[Any] = threads.submit(change)
            while not query(
                url, "select 1 from pg_locks where not granted and pid <> %s", [connection.info.backend_pid]
            ):
                assert not changing.done(), changing.result()
        changing.result(timeout=20)


def test_an_edit_waits_for_the_fire_under_way(database_url: str, due: datetime) -> None:
    with Client(database_url) as client:
        nightly = client.scheduler("nightly")
        _while_firing(database_url, plans(database_url), lambda: nightly.register("runs", "* * * * *", Run("us")))
        info = nightly.get()
    assert info is not None
    assert (info.payload, info.next_slot) == (b'{"region":"us"}', due + MINUTE)
    assert messages(database_url) == [("nightly", {"region": "eu"}, due)]


@pytest.mark.parametrize("what", ["schedule", "stream"])
def test_destroying_waits_for_the_fire_under_way(database_url: str, due: datetime, what: str) -> None:
    with Client(database_url, allow_destroy=True) as client:
        destroy = client.scheduler("nightly").destroy if what == "schedule" else client.stream("runs").destroy
        _while_firing(database_url, plans(database_url), destroy)
        assert client.list_schedules() == []
        if what == "schedule":
            assert slots_fired(database_url) == [due]


@pytest.mark.parametrize("what", ["schedule", "stream"])
async def test_what_is_destroyed_does_not_fire(database_url: str, due: datetime, what: str) -> None:
    planned = plans(database_url)
    with Client(database_url, allow_destroy=True) as client:
        (client.scheduler("nightly") if what == "schedule" else client.stream("runs")).destroy()
    with firing(database_url, planned, until="wait_briefly"):
        pass
    async with AsyncClient(database_url, manager=False) as manager:
        assert await fire_all(manager) == 0


async def test_what_is_suspended_meanwhile_does_not_fire(database_url: str, due: datetime) -> None:
    planned = plans(database_url)
    with Client(database_url) as client:
        client.scheduler("nightly").suspend()
    with firing(database_url, planned, until="wait_briefly"):
        pass
    assert messages(database_url) == []


def test_a_fire_under_way_is_left_alone_by_others(database_url: str, due: datetime) -> None:
    planned = plans(database_url)
    with firing(database_url, planned), firing(database_url, planned, until="wait_briefly"):
        pass
    assert slots_fired(database_url) == [due]


@pytest.mark.usefixtures("due")
async def test_a_manager_that_freezes_in_the_middle_of_a_fire_loses_it_to_the_next(database_url: str) -> None:
    planned = plans(database_url)
    async with AsyncClient(database_url, manager=False) as client:
        with psycopg.connect(database_url) as frozen:
            _, statement = _begin_firing(frozen, planned, until="insert_fires")
            assert frozen.execute("show idle_in_transaction_session_timeout").fetchone() == ("15s",)
            assert (await duty(client).run_once()).done == 0
            frozen.execute("set local idle_in_transaction_session_timeout = '100ms'")

            async def is_fired() -> bool:
                return (await duty(client).run_once()).done == 1

            await eventually(is_fired)
            with pytest.raises(psycopg.Error) as ended:
                execute(frozen, statement)
            assert is_broken(ended.value)
    assert len(slots_fired(database_url)) == 1


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_lost_answer_to_the_commit_fires_once(database_url: str, moment: Moment) -> None:
    register(database_url, "@every 1s", "s", catch_up="all")
    with lossy(database_url) as proxy:
        async with AsyncClient(proxy.url, manager=False) as client:
            producer = duty(client)
            for _ in range(5):
                back_date(database_url, clock(database_url).replace(microsecond=0) - timedelta(seconds=2))
                proxy.break_next(moment)
                await producer.run_once()
            receipts = []
            for _ in range(5):
                proxy.break_next(moment)
                receipts.append((await client.scheduler("s").run()).id)
        assert proxy.broken == 10
    told = messages(database_url)
    assert (
        len(told)
        == len({slot for _, _, slot in told})
        == query(database_url, "select count(*) from sqlstreams.schedule_fire")[0][0]
    )
    assert len(set(receipts)) == 5
    assert query(database_url, "select count(*) from sqlstreams.schedule_fire where kind = 'manual'") == [(5,)]


def test_backfills_and_live_firing_at_once_fire_each_slot_once(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression, catch_up="all")
    back_date(database_url, slot - 20 * HOUR)
    begin = threading.Barrier(5)

    def backfill() -> int:
        with Client(database_url, pool_size=1) as client:
            begin.wait(30)
            return client.scheduler("nightly").backfill(slot - 40 * HOUR, slot).fired

    def manage() -> int:
        async def work() -> int:
            async with AsyncClient(database_url, manager=False) as client:
                begin.wait(30)
                return await fire_all(client)

        return asyncio.run(work())

    with ThreadPoolExecutor(5) as threads:
        done = [threads.submit(work) for work in (backfill, manage, backfill, manage, backfill)]
        assert sum(each.result() for each in done) == 41
    asyncio.run(_fire_rest(database_url))
    assert sorted(slots_fired(database_url)) == [slot - number * HOUR for number in range(40, -1, -1)]


async def _fire_rest(url: str) -> None:
    async with AsyncClient(url) as client:
        await fire_all(client)


def test_runs_by_hand_at_once_are_all_there(database_url: str) -> None:
    register(database_url, "0 0 1 1 *")
    with Client(database_url) as client, ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(lambda _: client.scheduler("nightly").run().id, range(24)))
    assert len(set(receipts)) == 24
    assert query(database_url, "select count(*) from sqlstreams.schedule_fire where kind = 'manual'") == [(24,)]
