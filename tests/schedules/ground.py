"""What the tests of schedules share: a stream with a schedule, a clock moved by back-dating rows, and the duty."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import psycopg
from msgspec import Struct

from sqlstreams import AsyncClient, Client
from sqlstreams.manager.duty import Ran
from sqlstreams.manager.schedules import ScheduleProducer

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Run(Struct, frozen=True):
    """The payload."""

    schema_version: ClassVar[int] = 1
    region: str


def query(url: str, text: str, parameters: Any = None) -> list[Any]:
    """Ask the database beside the library."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def clock(url: str) -> datetime:
    """Return the time of the database, in UTC."""
    ((now,),) = query(url, "select clock_timestamp()")
    found: datetime = now.astimezone(UTC)
    return found


def half_past(url: str) -> tuple[str, datetime]:
    """Return an hourly expression, and its last slot: half an hour ago."""
    slot = (clock(url) - 30 * MINUTE).replace(second=0, microsecond=0)
    return f"{slot.minute} * * * *", slot


def back_date(url: str, slot: datetime, *names: str) -> None:
    """Have schedules (all, when none is named) stand as if nobody had fired them since before `slot`."""
    query(
        url,
        """
        update sqlstreams.schedule_cursor c
           set next_slot = %(slot)s, due_at = case when s.suspended_at is null then %(slot)s end
          from sqlstreams.schedule_config s
         where s.id = c.schedule_id
           and (s.name = any(%(names)s) or %(names)s = '{}')
        """,
        {"slot": slot, "names": list(names)},
    )


def duty(client: AsyncClient) -> ScheduleProducer:
    """Return the duty that fires schedules, as the manager of a process would have it."""
    return ScheduleProducer(client._database, client._notifier)


async def fire_all(client: AsyncClient) -> int:
    """Fire until nothing is due at once; return how many messages there were."""
    fired = 0
    for _ in range(1_000):
        ran: Ran = await duty(client).run_once()
        fired += ran.done
        if not ran.again:
            return fired
    raise AssertionError("this had no end")


def messages(url: str, stream: str = "runs") -> list[Any]:
    """Return key, payload and slot of what a stream holds, in order."""
    ((stream_id,),) = query(url, "select id from sqlstreams.stream_config where name = %s", [stream])
    rows = query(
        url,
        f"select message_key, payload, (options->>'scheduled_at')::timestamptz from sqlstreams.message_log_{stream_id}"
        " order by id",
    )
    return [(key, payload, None if slot is None else slot.astimezone(UTC)) for key, payload, slot in rows]


def slots_fired(url: str, stream: str = "runs") -> list[datetime]:
    """Return the slots of what a stream holds, in order."""
    return [slot for _, _, slot in messages(url, stream)]


def register(url: str, expression: str, *names: str, **options: Any) -> None:
    """Register a stream and schedules on it."""
    with Client(url) as client:
        client.stream("runs", Run).register()
        for name in names or ("nightly",):
            client.scheduler(name).register("runs", expression, Run("eu"), **options)
