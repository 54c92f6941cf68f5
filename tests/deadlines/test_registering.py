"""What can be declared, what is refused, and that whatever a user names is quoted."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any

import psycopg
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, Client, DeadlineInfo, InvalidInput, NotFound, PayloadShapeChanged, RawPayload
from tests.deadlines.ground import COLUMNS, Reservation, hold, keys, messages, move_all, query, register, states

ODD = """
create schema "Odd ""S"" chema";
create type "Odd ""S"" chema".mood as enum ('it''s held', 'expired %s');
create table "Odd ""S"" chema"."Weird Table%(x)s" (
    "the ""key"" of it" uuid primary key default gen_random_uuid(),
    "due {at}" timestamptz default now(),
    "state col" "Odd ""S"" chema".mood default 'it''s held',
    "100%" text
);
insert into "Odd ""S"" chema"."Weird Table%(x)s" ("100%") values ('yes'), ('no')
"""


async def test_names_and_values_that_need_quoting_work(url: str, client: AsyncClient) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ODD.encode())
    await client.stream("expired").register()
    odd = client.deadline("odd")
    await odd.register(
        "expired",
        table='"Odd ""S"" chema"."Weird Table%(x)s"',
        key='the "key" of it',
        deadline="due {at}",
        state="state col",
        from_state="it's held",
        to_state="expired %s",
        columns=["100%", 'the "key" of it'],
        only={"100%": "yes"},
    )
    assert (await odd.status()).due == 1
    assert await move_all(client) == 1
    ((key, payload, _),) = messages(url)
    assert payload == {"100%": "yes", 'the "key" of it': key}
    await odd.activate()
    assert await move_all(client) == 1
    replayed = await odd.replay(datetime.fromisoformat("2000-01-01T00Z"), datetime.fromisoformat("2100-01-01T00Z"))
    assert replayed.messages == 2
    assert (await odd.status()).already_final == 0


KEYS = [
    ("k integer primary key", "7"),
    ("k smallint not null unique", "7"),
    ("k text primary key", "it's"),
    ("k varchar(5) primary key", "seven"),
    ("k char(5) primary key", "abc"),
    ("k uuid primary key", "00000000-0000-0000-0000-000000000007"),
    ("k numeric primary key", "7.50"),
    ("k date primary key", "2026-01-01"),
    ("k bigint generated always as identity primary key", None),
]


async def test_a_key_may_be_of_any_type(url: str, client: AsyncClient) -> None:
    await client.stream("expired").register()
    for number, (column, value) in enumerate(KEYS):
        query(url, f"create table t{number} ({column}, at timestamptz default now(), done boolean default false)")
        if value is None:
            query(url, f"insert into t{number} default values")
        else:
            query(url, f"insert into t{number} (k) values (%s)", [value])
        await client.deadline(f"d{number}").register(
            "expired", table=f"t{number}", key="k", deadline="at", state="done", from_state=False, to_state=True
        )
    assert await move_all(client) == len(KEYS)
    assert keys(url) == [value or "1" for _, value in KEYS]
    assert query(url, "select done from t0") == [(True,)]


class State(enum.IntEnum):
    HELD = 1
    EXPIRED = 2


async def test_states_may_be_numbers_and_members_of_an_enum(url: str, client: AsyncClient) -> None:
    query(url, "create table t (id bigint primary key, at timestamptz default now(), state smallint default 1)")
    query(url, "insert into t values (1)")
    await client.stream("expired").register()
    await client.deadline("d").register(
        "expired", table="t", key="id", deadline="at", state="state", from_state=State.HELD, to_state=State.EXPIRED
    )
    assert await move_all(client) == 1


async def test_a_partitioned_table_with_one_key_works(url: str, client: AsyncClient) -> None:
    query(
        url,
        "create table t (id bigint primary key, expires_at timestamptz, state text) partition by hash (id);"
        "create table t0 partition of t for values with (modulus 2, remainder 0);"
        "create table t1 partition of t for values with (modulus 2, remainder 1);"
        "create index on t (state, expires_at);"
        "insert into t select n, now(), 'held' from generate_series(1, 10) n",
    )
    await client.stream("expired").register()
    await client.deadline("d").register("expired", **{**COLUMNS, "table": "t"})
    assert await move_all(client) == 10
    assert (await client.deadline("d").status()).warning is None


# Refusals

TABLES = """
create table local (id bigint primary key, expires_at timestamp, day date, state text);
create table pairs (a bigint, b bigint, loose bigint unique, expires_at timestamptz, state text, primary key (a, b));
create view looking as select * from reservations;
create type mood as enum ('held', 'expired');
create table moods (id bigint primary key, tags bigint[] not null unique, expires_at timestamptz, state mood)
"""


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"table": "nothing"}, "table", "does not exist"),
    ({"table": "Weird Table"}, "table", "must be a name as in SQL"),
    ({"table": "a.b.c"}, "table", "must be a name as in SQL"),
    ({"table": "reservations; drop table reservations"}, "table", "must be a name as in SQL"),
    ({"table": "res\x00"}, "table", "NUL"),
    ({"table": 5}, "table", "must be a str"),
    ({"table": "looking"}, "table", "a view"),
    ({"table": "sqlstreams.stream_config"}, "table", "must be one of your own"),
    ({"key": "nothing"}, "key", "names no column"),
    ({"key": "region"}, "key", "names a row by itself"),
    ({"key": "ID"}, "key", "names no column"),
    ({"key": "x" * 64}, "key", "1 to 63 bytes"),
    ({"table": "pairs", "key": "a"}, "key", "several columns are not taken"),
    ({"table": "pairs", "key": "loose"}, "key", "not null with a unique index"),
    ({"table": "moods", "key": "tags"}, "key", "names a row by itself"),
    ({"table": "local"}, "deadline", "at time zone"),
    ({"table": "local", "deadline": "day"}, "deadline", "at which instant"),
    ({"deadline": "region"}, "deadline", "must be timestamp with time zone"),
    ({"state": "expires_at"}, "key", "three columns"),
    ({"to_state": "held"}, "to_state", "another than from_state"),
    ({"from_state": "a\x00"}, "from_state", "NUL"),
    ({"from_state": "\ud800"}, "from_state", "surrogate"),
    ({"from_state": 2**63}, "from_state", "64 bits"),
    ({"from_state": None}, "from_state", "must be a str"),
    ({"from_state": 1.5}, "from_state", "must be a str"),
    ({"table": "moods", "from_state": "lost"}, "from_state", "must be a value of 'state', which is mood"),
    ({"table": "moods", "to_state": "lost"}, "to_state", "must be a value"),
    ({"batch": 0}, "batch", "between 1 and 10000"),
    ({"batch": 10**30}, "batch", "between 1 and 10000"),
    ({"batch": True}, "batch", ""),
    ({"columns": []}, "columns", "at least"),
    ({"columns": "id"}, "columns", "names of columns"),
    ({"columns": ["id", "id"]}, "columns", "once"),
    ({"columns": ["id", "nothing"]}, "columns[1]", "names no column"),
    ({"columns": [5]}, "columns[0]", "must be a str"),
    ({"mode": "later"}, "mode", "must be one of active, observe"),
    ({"only": {"nothing": 1}}, "only", "names no column"),
    ({"only": {"id": "x"}}, "only.id", "must be a value of 'id', which is bigint"),
    ({"only": {"id": None}}, "only.id", "must be a str"),
    ({"only": "id"}, "only", "must map columns to values"),
    ({"payload_type": dict[str, int]}, "payload_type", "does not fit the rows"),
]


async def test_what_cannot_be_is_refused_and_changes_nothing(url: str, client: AsyncClient) -> None:
    query(url, TABLES)
    hold(url)
    await client.stream("expired").register()
    for change, field, problem in REFUSED:
        declared = {"payload_type": RawPayload, **COLUMNS, **change}
        with pytest.raises(InvalidInput) as refused:
            await client.deadline("expiry").register("expired", **declared)
        assert refused.value.field == field, change
        assert problem in refused.value.problem, change
    assert await client.list_deadlines() == []
    assert query(url, "select 1 from sqlstreams.payload_schema") == []


class Other(Struct, frozen=True):
    id: str


async def test_a_type_of_another_shape_than_the_streams_is_refused(client: AsyncClient) -> None:
    await client.stream("expired", Other).register()
    with pytest.raises(PayloadShapeChanged):
        await client.deadline("expiry").register("expired", Reservation, **COLUMNS)


async def test_what_is_absent_is_not_found(client: AsyncClient) -> None:
    absent = client.deadline("absent")
    assert await absent.get() is None
    with pytest.raises(NotFound, match="stream"):
        await absent.register("absent", **COLUMNS)
    now = datetime.fromisoformat("2026-01-01T00Z")
    for asking in (absent.status, absent.observe, absent.activate, absent.suspend, absent.unsuspend, absent.destroy):
        with pytest.raises(NotFound, match="there is no deadline named 'absent'"):
            await asking()
    with pytest.raises(NotFound, match="deadline"):
        await absent.replay(now, now)
    assert await absent.edits() == []


# Declaring again


async def test_the_same_declaration_again_writes_nothing(url: str, client: AsyncClient) -> None:
    await register(client)
    first = await client.deadline("expiry").get()
    await register(client)
    assert await client.deadline("expiry").get() == first
    assert [edit.action for edit in await client.deadline("expiry").edits()] == ["registered"]


async def test_the_newest_declaration_wins_but_leaves_alone_what_operators_say(url: str, client: AsyncClient) -> None:
    await register(client, mode="observe")
    await client.deadline("expiry").activate(only={"region": "eu"})
    await register(client, batch=7, mode="observe", only={"region": "us"})
    info = await client.deadline("expiry").get()
    assert info is not None
    assert (info.batch, info.mode, info.only, info.revision) == (7, "active", {"region": "eu"}, 3)
    assert (info.table, info.key) == ("public.reservations", "id")
    edits = await client.deadline("expiry").edits()
    assert [(edit.action, edit.config["batch"]) for edit in edits] == [
        ("changed", 7),
        ("activated", 200),
        ("registered", 200),
    ]


async def test_a_declaration_may_join_a_transaction_with_the_table_it_is_about(url: str, client: AsyncClient) -> None:
    await client.stream("expired").register()
    async with client.transaction() as connection:
        await connection.execute("create table t (id bigint primary key, expires_at timestamptz, state text)")
        await client.deadline("d").register("expired", **{**COLUMNS, "table": "t"}, connection=connection)
        assert await client.deadline("d").get() is None
    assert await client.deadline("d").get() is not None


def test_both_faces_do_the_same(url: str) -> None:
    (due,) = hold(url)
    with Client(url, allow_destroy=True) as client:
        client.stream("expired", Reservation).register()
        expiry = client.deadline("expiry").register("expired", Reservation, **COLUMNS, mode="observe")
        assert expiry.status().due == 1
        expiry.activate()
        expiry.suspend()
        expiry.unsuspend()
        expiry.observe()
        info = expiry.get()
        assert isinstance(info, DeadlineInfo)
        assert client.list_deadlines("expired") == [info]
        at = datetime.fromisoformat("2026-01-01T00Z")
        assert expiry.replay(at, at).messages == 0
        assert len(expiry.edits()) == 5
        expiry.destroy()
        assert client.list_deadlines() == []
    assert states(url) == {due: "held"}
