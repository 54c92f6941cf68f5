"""Reservations of seats that are held for 15 minutes: a small service on two tables, one stream and one deadline."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Struct

import sqlstreams

HELD_FOR = timedelta(minutes=15)
STREAM = "reservations.expired"
DEADLINE = "reservations.expiry"
GROUP = "seat-releaser"

_SCHEMA = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")


class Reservation(Struct, frozen=True):
    """A row of reservations, and the payload of the message that it becomes."""

    id: int
    seat: str
    expires_at: datetime
    state: str


async def set_up(client: sqlstreams.AsyncClient, connection: psycopg.AsyncConnection[Any]) -> None:
    """Make the tables, and declare the stream, the deadline and the group. Does nothing the second time."""
    await connection.execute(_SCHEMA.encode())
    stream = await client.stream(STREAM, Reservation).register()
    await client.deadline(DEADLINE).register(
        STREAM,
        Reservation,
        table="reservations",
        key="id",
        deadline="expires_at",
        state="state",
        from_state="held",
        to_state="expired",
    )
    await stream.consumer(GROUP).register()


async def hold(connection: psycopg.AsyncConnection[Any], seat: str, *, at: datetime | None = None) -> int:
    """Hold a seat for 15 minutes from now, or from another instant, and return the reservation's id.

    An instant: whoever has a local time says in which zone, or at which offset, it was meant.
    """
    cursor = await connection.execute(
        "insert into reservations (seat, expires_at) values (%s, coalesce(%s, now()) + %s) returning id",
        [seat, at, HELD_FOR],
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def confirm(connection: psycopg.AsyncConnection[Any], reservation: int) -> bool:
    """Confirm a reservation; return whether it was still held. Who is first wins: this, or the deadline."""
    cursor = await connection.execute(
        "update reservations set state = 'confirmed' where id = %s and state = 'held'", [reservation]
    )
    return cursor.rowcount == 1


async def release(expired: list[Reservation], connection: psycopg.AsyncConnection[Any]) -> None:
    """Release the seats of expired reservations: the handler of the group, in a transaction with its deliveries."""
    ids = [meta.id for meta in sqlstreams.metas()]
    # A message may be delivered twice, and one may be produced twice by a replay: the reservation's id tells.
    async with connection.cursor() as cursor:
        await cursor.executemany(
            "insert into released_seats (reservation_id, seat, message_id) values (%s, %s, %s)"
            " on conflict (reservation_id) do nothing",
            [(each.id, each.seat, message_id) for each, message_id in zip(expired, ids, strict=True)],
        )


async def serve(client: sqlstreams.AsyncClient) -> None:
    """Release seats until cancelled. The manager, which expires reservations, runs beside it."""
    await client.stream(STREAM, Reservation).consumer(GROUP).consume(release, transactional=True, batch=500)
