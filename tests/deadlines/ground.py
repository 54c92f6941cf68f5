"""What the tests of deadlines share: a table of reservations, the duty that moves its rows, and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
from msgspec import Struct

from sqlstreams import AsyncClient
from sqlstreams.manager.deadlines import DeadlineProducers
from sqlstreams.manager.duty import Ran

TABLE = """
create table reservations (
    id         bigint generated always as identity primary key,
    region     text not null default 'eu',
    price      numeric(10, 2) not null default 9.50,
    expires_at timestamptz,
    state      text not null default 'held',
    note       text
);
create index on reservations (state, expires_at);
"""
COLUMNS: dict[str, Any] = {
    "table": "reservations",
    "key": "id",
    "deadline": "expires_at",
    "state": "state",
    "from_state": "held",
    "to_state": "expired",
}


class Reservation(Struct, frozen=True):
    """The payload: a row of reservations."""

    id: int
    region: str
    price: Decimal
    expires_at: datetime
    state: str
    note: str | None = None


def query(url: str, text: str, parameters: Any = None) -> list[Any]:
    """Ask the database beside the library."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def hold(url: str, count: int = 1, *, due: str = "-1 minute", **columns: Any) -> list[int]:
    """Insert reservations whose deadline is so far from now; the later ones are due a moment later."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", %({name})s" for name in columns)
    rows = query(
        url,
        f"insert into reservations (expires_at{names})"
        f" select now() + %(due)s::interval + n * interval '1 ms'{values}"
        " from generate_series(1, %(count)s) n returning id",
        {"due": due, "count": count, **columns},
    )
    return [row[0] for row in rows]


async def register(client: AsyncClient, **options: Any) -> None:
    """Register a stream and a deadline of reservations."""
    await client.stream("expired", Reservation).register()
    await client.deadline("expiry").register("expired", Reservation, **{**COLUMNS, **options})


def duty(client: AsyncClient) -> DeadlineProducers:
    """Return the duty that moves rows, as the manager of a process would have it."""
    return DeadlineProducers(client._database, client._notifier)


async def move_all(client: AsyncClient) -> int:
    """Move rows until none is due at once; return how many they were."""
    one, moved = duty(client), 0
    for _ in range(1_000):
        ran: Ran = await one.run_once()
        moved += ran.done
        if not ran.again:
            return moved
    raise AssertionError("this had no end")


def states(url: str) -> dict[int, str]:
    """Return the state of each reservation."""
    return dict(query(url, "select id, state from reservations order by id"))


def messages(url: str, stream: str = "expired") -> list[Any]:
    """Return key, payload and scheduled_at of what a stream holds, in order."""
    ((stream_id,),) = query(url, "select id from sqlstreams.stream_config where name = %s", [stream])
    rows = query(
        url,
        f"select message_key, payload, (options->>'scheduled_at')::timestamptz from sqlstreams.message_log_{stream_id}"
        " order by id",
    )
    return [(key, payload, None if at is None else at.astimezone(UTC)) for key, payload, at in rows]


def keys(url: str, stream: str = "expired") -> list[str]:
    """Return the keys of what a stream holds, in order."""
    return [key for key, _, _ in messages(url, stream)]
