"""Rows that are due are moved, each with one message, and nothing else is touched."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest

from sqlstreams import AsyncClient, meta
from tests.deadlines.ground import (
    COLUMNS,
    Reservation,
    duty,
    hold,
    keys,
    messages,
    move_all,
    query,
    register,
    states,
)
from tests.produce.proxy import Moment, lossy
from tests.support import consuming, eventually


async def test_a_row_that_is_due_is_moved_and_becomes_a_message(url: str, client: AsyncClient) -> None:
    (due,) = hold(url)
    (later,) = hold(url, due="1 hour")
    (confirmed,) = hold(url, state="confirmed")
    (timeless,) = query(url, "insert into reservations default values returning id")[0]
    await register(client)
    assert await move_all(client) == 1
    assert states(url) == {due: "expired", later: "held", confirmed: "confirmed", timeless: "held"}
    ((key, payload, scheduled_at),) = messages(url)
    ((deadline,),) = query(url, "select expires_at from reservations where id = %s", [due])
    assert (key, payload["state"], scheduled_at) == (str(due), "expired", deadline)
    assert payload.keys() == {"id", "region", "price", "expires_at", "state", "note"}
    assert await move_all(client) == 0


async def test_a_consumer_has_the_row_and_its_deadline(url: str, client: AsyncClient) -> None:
    (due,) = hold(url, price="12.30")
    await register(client)
    seen: list[tuple[Reservation, str | None, datetime | None]] = []

    async def handle(row: Reservation) -> None:
        seen.append((row, meta().key, meta().scheduled_at))

    consumer = await client.stream("expired", Reservation).consumer("g").register()
    async with consuming(consumer, handle):  # which runs the manager, too
        await eventually(lambda: bool(seen))
    ((row, key, scheduled_at),) = seen
    assert (row.id, key, row.state, str(row.price)) == (due, str(due), "expired", "12.30")
    assert scheduled_at == row.expires_at


async def test_chosen_columns_alone_are_in_the_payload(url: str, client: AsyncClient) -> None:
    hold(url)
    await client.stream("expired").register()
    await client.deadline("expiry").register("expired", **COLUMNS, columns=["region", "id"])
    await move_all(client)
    ((_, payload, _),) = messages(url)
    assert payload == {"region": "eu", "id": 1}


async def test_many_are_moved_in_batches_by_their_deadlines(url: str, client: AsyncClient) -> None:
    hold(url, 25)
    query(url, "update reservations set expires_at = now() - id * interval '1 s'")
    await register(client, batch=10)
    one = duty(client)
    first = await one.run_once()
    assert (first.done, first.again) == (10, True)
    assert await move_all(client) == 15
    assert keys(url) == [str(number) for number in range(25, 0, -1)]


async def test_it_sleeps_until_the_next_deadline(url: str, client: AsyncClient) -> None:
    await register(client)
    one = duty(client)
    assert (await one.run_once()).due_in == pytest.approx(5, abs=0.5)
    hold(url, due="2 seconds")
    ran = await duty(client).run_once()
    assert not ran.again
    assert ran.due_in == pytest.approx(2, abs=0.5)


async def test_a_log_at_its_edge_is_extended(url: str, client: AsyncClient) -> None:
    await client.stream("expired", Reservation).register(partition_rows=1_000)
    await client.deadline("expiry").register("expired", Reservation, **COLUMNS, batch=5_000)
    hold(url, 3_000)
    ((stream_id,),) = query(url, "select id from sqlstreams.stream_config")
    query(url, f"select setval('sqlstreams.message_log_{stream_id}_id', 900)")
    assert await move_all(client) == 3_000
    assert len(keys(url)) == 3_000


# Confirmations


async def test_a_confirmation_that_is_first_wins(url: str, client: AsyncClient) -> None:
    (due, other) = hold(url, 2)
    await register(client)
    one = duty(client)
    with psycopg.connect(url) as confirming:
        confirming.execute("update reservations set state = 'confirmed' where id = %s and state = 'held'", [due])
        ran = await one.run_once()  # it does not wait for whoever confirms
        assert (ran.done, states(url)[other]) == (1, "expired")
        confirming.commit()
    assert await move_all(client) == 0
    assert states(url)[due] == "confirmed"
    assert keys(url) == [str(other)]


async def test_a_confirmation_that_is_given_up_leaves_the_row_due(url: str, client: AsyncClient) -> None:
    (due,) = hold(url)
    await register(client)
    one = duty(client)
    with psycopg.connect(url) as confirming:
        confirming.execute("update reservations set state = 'confirmed' where id = %s", [due])
        ran = await one.run_once()
        assert ran.done == 0
        assert ran.due_in is not None
        assert ran.due_in <= 0.1  # it looks again soon
        confirming.rollback()
    assert await move_all(client) == 1
    assert states(url)[due] == "expired"


async def test_a_confirmation_that_is_second_finds_the_row_expired(url: str, client: AsyncClient) -> None:
    (due,) = hold(url)
    await register(client)
    with psycopg.connect(url) as triggers:
        triggers.execute("select pg_advisory_lock(1)")
        query(url, _WAITING)
        moving = asyncio.create_task(move_all(client))
        await eventually(lambda: bool(query(url, "select 1 from pg_locks where locktype = 'advisory' and not granted")))
        confirming = asyncio.create_task(asyncio.to_thread(_confirm, url, due))
        await eventually(
            lambda: bool(
                query(url, "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'confirmed'")
            )
        )
        triggers.execute("select pg_advisory_unlock(1)")
        assert await moving == 1
        assert await confirming == 0
    assert states(url)[due] == "expired"


_WAITING = """
create function wait() returns trigger language plpgsql as
$$ begin if new.state = 'expired' then perform pg_advisory_xact_lock(1); end if; return new; end $$;
create trigger wait before update on reservations for each row execute function wait()
"""


def _confirm(url: str, row: int) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(
            "update reservations set state = 'confirmed' where id = %s and state = 'held'", [row]
        ).rowcount


async def test_who_only_refers_to_a_row_does_not_keep_it(url: str, client: AsyncClient) -> None:
    (due,) = hold(url)
    query(url, "create table items (reservation_id bigint references reservations)")
    await register(client)
    with psycopg.connect(url) as adding:
        adding.execute("insert into items values (%s)", [due])
        assert await move_all(client) == 1


# Several managers, and ends in the middle


async def test_two_managers_share_the_rows(url: str, client: AsyncClient) -> None:
    hold(url, 300)
    await register(client, batch=20)
    async with AsyncClient(url) as other:
        moved = await asyncio.gather(move_all(client), move_all(other))
    assert sum(moved) + await move_all(client) == 300
    assert sorted(map(int, keys(url))) == list(range(1, 301))
    assert (await client.deadline("expiry").status()).moved == 300


async def test_what_is_killed_before_the_commit_has_done_nothing(url: str, client: AsyncClient) -> None:
    (due,) = hold(url)
    await register(client)
    query(url, _WAITING)
    with psycopg.connect(url) as triggers:
        triggers.execute("select pg_advisory_lock(1)")
        moving = asyncio.create_task(move_all(client))
        await eventually(lambda: bool(query(url, "select 1 from pg_locks where locktype = 'advisory' and not granted")))
        # Its connection goes between the new state and the message, and is replaced by another.
        query(url, "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and not granted")
        triggers.execute("select pg_advisory_unlock(1)")
        assert await moving == 1
    assert (states(url), keys(url)) == ({due: "expired"}, [str(due)])


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_lost_answer_to_the_commit_doubles_nothing(url: str, client: AsyncClient, moment: Moment) -> None:
    hold(url, 5)
    await register(client)
    with lossy(url) as proxy:
        async with AsyncClient(proxy.url) as cut_off:
            proxy.break_next(moment)
            assert await move_all(cut_off) == 5
        assert proxy.broken == 1
    assert keys(url) == ["1", "2", "3", "4", "5"]
    assert (await client.deadline("expiry").status()).moved == 5


async def test_a_change_does_not_wait_for_the_batch_that_is_under_way(url: str, client: AsyncClient) -> None:
    hold(url, 2)
    await register(client, batch=1)
    query(url, _WAITING)
    with psycopg.connect(url) as triggers:
        triggers.execute("select pg_advisory_lock(1)")
        moving = asyncio.create_task(move_all(client))
        await eventually(lambda: bool(query(url, "select 1 from pg_locks where locktype = 'advisory' and not granted")))
        await client.deadline("expiry").suspend()
        triggers.execute("select pg_advisory_unlock(1)")
        assert await moving == 1  # and not the next
    assert states(url) == {1: "expired", 2: "held"}


async def test_the_message_has_the_deadline_that_came_whatever_a_trigger_makes_of_it(
    url: str, client: AsyncClient
) -> None:
    hold(url)
    ((deadline,),) = query(url, "select expires_at from reservations")
    query(
        url,
        "create function clear() returns trigger language plpgsql as"
        " $$ begin new.expires_at = null; return new; end $$;"
        "create trigger clear before update on reservations for each row execute function clear()",
    )
    await client.stream("raw").register()
    await client.deadline("expiry").register("raw", **COLUMNS)
    assert await move_all(client) == 1
    ((_, payload, scheduled_at),) = messages(url, "raw")
    assert (payload["expires_at"], scheduled_at) == (None, deadline)


async def test_the_message_and_the_state_are_one_transaction(url: str, client: AsyncClient) -> None:
    (due,) = hold(url)
    await register(client)
    await move_all(client)
    ((row,),) = query(url, "select xmin::text from reservations where id = %s", [due])
    ((stream_id,),) = query(url, "select id from sqlstreams.stream_config")
    assert query(url, f"select xmin::text from sqlstreams.message_log_{stream_id}") == [(row,)]


# Deadlines from local times


@pytest.mark.parametrize(
    ("local", "zone", "instant"),
    [
        ("2026-03-29 02:30", "Europe/Berlin", datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),  # a time that was skipped
        ("2026-10-25 03:30", "Europe/Berlin", datetime(2026, 10, 25, 2, 30, tzinfo=UTC)),
        ("2026-03-08 01:59", "America/New_York", datetime(2026, 3, 8, 6, 59, tzinfo=UTC)),
        ("2026-03-08 03:00", "America/New_York", datetime(2026, 3, 8, 7, 0, tzinfo=UTC)),
        ("2026-11-01 02:00", "America/New_York", datetime(2026, 11, 1, 7, 0, tzinfo=UTC)),
        ("2026-03-29 02:30", "-05:30", None),
    ],
)
async def test_a_deadline_is_an_instant_whatever_it_was_made_from(
    url: str, client: AsyncClient, local: str, zone: str, instant: datetime | None
) -> None:
    if instant is None:  # a fixed offset: the same all year
        stored = datetime.fromisoformat(f"{local}{zone}")
        instant = stored.astimezone(UTC)
        query(url, "insert into reservations (expires_at) values (%s)", [stored])
    else:
        query(url, "insert into reservations (expires_at) values (%s::timestamp at time zone %s)", [local, zone])
    await register(client)
    # As seen just before and just after, by rows a second off the wall clock.
    query(
        url,
        # In seconds: a day less is another number of hours where the server's zone changes its clocks.
        "update reservations set expires_at = expires_at - make_interval(secs => extract(epoch from %s - now()))",
        [instant + timedelta(seconds=5)],
    )
    assert await move_all(client) == 1
    ((_, payload, scheduled_at),) = messages(url)
    assert msgspec.convert(payload["expires_at"], datetime) == scheduled_at
