"""Trouble with some rows, or with one table, stays there."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import psycopg
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient
from sqlstreams.manager.deadlines import DeadlineProducers
from tests.deadlines.ground import COLUMNS, Reservation, duty, hold, keys, move_all, query, register, states

REFUSE = """
create function refuse() returns trigger language plpgsql as
$$ begin if new.note = 'poison' then raise exception 'no % today', new.id; end if; return new; end $$;
create trigger refuse before update on reservations for each row execute function refuse()
"""
SUPPRESS = """
create function suppress() returns trigger language plpgsql as
$$ begin if old.note = 'poison' then return null; end if; return new; end $$;
create trigger suppress before update on reservations for each row execute function suppress()
"""
TURN_BACK = """
create function turn_back() returns trigger language plpgsql as
$$ begin if old.note = 'poison' then new.state = old.state; end if; return new; end $$;
create trigger turn_back before update on reservations for each row execute function turn_back()
"""
REFUSE_AT_COMMIT = """
create function refuse() returns trigger language plpgsql as
$$ begin if new.note = 'poison' then raise exception 'no % today', new.id; end if; return new; end $$;
create constraint trigger refuse after update on reservations initially deferred
for each row execute function refuse()
"""


def _try_again(url: str) -> None:
    query(url, "update sqlstreams.deadline_aside set retry_at = now()")
    query(url, "update sqlstreams.deadline_cursor set retry_at = now()")


@pytest.mark.parametrize("trigger", [REFUSE, SUPPRESS, TURN_BACK, REFUSE_AT_COMMIT])
async def test_a_row_that_cannot_be_moved_holds_up_no_other(url: str, client: AsyncClient, trigger: str) -> None:
    hold(url, 30)
    query(url, "update reservations set note = 'poison' where id in (1, 17)")
    query(url, trigger)
    await register(client)
    assert await move_all(client) == 28
    status = await client.deadline("expiry").status()
    assert [(each.key, each.failures) for each in status.asides] == [("1", 1), ("17", 1)]
    assert (status.aside, status.due, status.consecutive_failures) == (2, 2, 0)
    assert sorted(map(int, keys(url))) == [number for number in range(1, 31) if number not in (1, 17)]


async def test_a_row_put_aside_is_tried_again_alone(url: str, client: AsyncClient) -> None:
    hold(url, 5)
    query(url, "update reservations set note = 'poison' where id = 1")
    query(url, REFUSE)
    await register(client)
    assert await move_all(client) == 4
    assert await move_all(client) == 0  # not yet
    _try_again(url)
    assert await move_all(client) == 0
    ((aside,),) = ((await client.deadline("expiry").status()).asides,)
    assert aside.failures == 2
    assert "no 1 today" in aside.last_error
    query(url, "drop trigger refuse on reservations")
    _try_again(url)
    assert await move_all(client) == 1
    assert (await client.deadline("expiry").status()).aside == 0


async def test_a_row_put_aside_and_settled_by_hand_is_forgotten(url: str, client: AsyncClient) -> None:
    hold(url, 2)
    query(url, "update reservations set note = 'poison' where id = 1")
    query(url, REFUSE)
    await register(client)
    assert await move_all(client) == 1
    query(url, "update reservations set state = 'confirmed', note = null where id = 1")
    _try_again(url)
    assert await move_all(client) == 0
    assert (await client.deadline("expiry").status()).aside == 0
    assert keys(url) == ["2"]


async def test_a_trigger_that_refuses_all_fails_the_deadline_and_no_other(url: str, client: AsyncClient) -> None:
    query(url, "create table seats (like reservations including all)")
    query(url, "insert into seats (expires_at) select now() - interval '1 s' from generate_series(1, 3)")
    hold(url, 200, note="poison")
    query(url, REFUSE)
    await register(client)
    await client.deadline("seats").register("expired", **{**COLUMNS, "table": "seats"})
    assert await move_all(client) == 3
    status = await client.deadline("expiry").status()
    assert (status.consecutive_failures, status.aside, status.moved) == (1, 0, 0)
    assert "today" in (status.last_error or "")
    assert status.retry_at is not None
    query(url, "drop trigger refuse on reservations")
    _try_again(url)
    assert await move_all(client) == 200
    assert (await client.deadline("expiry").status()).consecutive_failures == 0


async def test_one_row_that_is_all_there_is_fails_the_deadline_too(url: str, client: AsyncClient) -> None:
    hold(url, note="poison")
    query(url, REFUSE)
    await register(client)
    assert await move_all(client) == 0
    status = await client.deadline("expiry").status()
    assert (status.consecutive_failures, status.aside) == (1, 1)


class Priced(Struct, frozen=True):
    id: int
    price: Decimal
    expires_at: datetime
    note: str


async def test_a_row_that_no_consumer_could_read_is_put_aside(url: str, client: AsyncClient) -> None:
    hold(url, 3, note="fine")
    query(url, "update reservations set note = null where id = 2")
    await client.stream("expired", Priced).register()
    await client.deadline("expiry").register("expired", Priced, **COLUMNS)
    assert await move_all(client) == 2
    ((aside,),) = ((await client.deadline("expiry").status()).asides,)
    assert aside.key == "2"
    assert "payload.note must be string, got None" in aside.last_error
    assert states(url) == {1: "expired", 2: "held", 3: "expired"}


async def test_a_row_that_is_too_large_is_put_aside(url: str, client: AsyncClient) -> None:
    await client.stream("expired", Reservation).register(max_payload=500)
    hold(url, 2, note="x")
    query(url, "update reservations set note = repeat('x', 1000) where id = 1")
    await client.deadline("expiry").register("expired", Reservation, **COLUMNS)
    assert await move_all(client) == 1
    ((aside,),) = ((await client.deadline("expiry").status()).asides,)
    assert "at most 500 bytes" in aside.last_error


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("drop table reservations", 'the table "public"."reservations" is gone'),
        ("alter table reservations rename to bookings", 'the table "public"."reservations" is gone'),
        ("alter table reservations drop column expires_at", "no column 'expires_at' any more"),
    ],
)
async def test_a_table_that_is_gone_fails_its_deadline_alone(
    url: str, client: AsyncClient, change: str, problem: str
) -> None:
    await register(client)
    query(url, "create table seats (like reservations including all)")
    query(url, "insert into seats (expires_at) values (now())")
    await client.deadline("seats").register("expired", **{**COLUMNS, "table": "seats"})
    query(url, change)
    assert await move_all(client) == 1
    status = await client.deadline("expiry").status()
    assert (status.consecutive_failures, status.due) == (1, None)
    assert problem in (status.last_error or "")
    assert problem in (status.problem or "")


async def test_a_role_without_rights_fails_the_deadline_until_it_has_them(url: str, client: AsyncClient) -> None:
    hold(url)
    await register(client)
    query(
        url,
        "drop role if exists keeper; create role keeper login;"
        "grant usage on schema sqlstreams, public to keeper; grant all on all tables in schema sqlstreams to keeper;"
        "grant all on all sequences in schema sqlstreams to keeper; grant select on reservations to keeper",
    )
    try:
        async with AsyncClient(psycopg.conninfo.make_conninfo(url, user="keeper")) as keeper:
            assert await move_all(keeper) == 0
            status = await client.deadline("expiry").status()
            assert (status.consecutive_failures, status.aside) == (1, 0)
            assert "permission denied" in (status.last_error or "")
            query(url, "grant update (state) on reservations to keeper")
            _try_again(url)
            assert await move_all(keeper) == 1
    finally:
        query(url, "drop owned by keeper; drop role keeper")


LACK_A_PARTITION = """
create table history (id bigint, at timestamptz) partition by range (at);
create function keep() returns trigger language plpgsql as
$$ begin insert into history values (new.id, now()); return new; end $$;
create trigger keep after update on reservations for each row execute function keep()
"""


async def test_a_partition_that_another_table_lacks_is_not_taken_for_the_edge_of_the_log(
    url: str, client: AsyncClient
) -> None:
    hold(url)
    query(url, LACK_A_PARTITION)
    await register(client)
    assert await move_all(client) == 0
    status = await client.deadline("expiry").status()
    assert 'no partition of relation "history" found' in (status.last_error or "")


async def test_a_failed_deadline_backs_off_in_the_next_process_too(url: str, client: AsyncClient) -> None:
    await register(client)
    query(url, "update sqlstreams.deadline_cursor set consecutive_failures = 3, retry_at = now() + interval '1 hour'")
    hold(url)
    one: DeadlineProducers = duty(client)
    assert (await one.run_once()).done == 0
    assert await move_all(client) == 0
