"""Measure how long after its slot a schedule's message is committed, and how fast missed slots are made up for."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from _measure import STREAM, Arguments, Order, Place, Report, arguments, end, place, register, run_async

from sqlstreams import AsyncClient

_MINUTE: Final = timedelta(minutes=1)
_MISSED: Final = 43_200
_AHEAD: Final = 6.0
"""The slot lies so many seconds ahead when the rows are ready: time to look at what comes."""

_INSERT = """
with made as (
    insert into sqlstreams.schedule_config
           (name, stream_id, expression, timezone, payload, schema_version, concurrency, timeout_ns, catch_up,
            catch_up_window, compaction)
    select %(prefix)s || n, (select id from sqlstreams.stream_config), %(expression)s, 'Europe/Berlin',
           '{"region": "eu"}', 1, 'parallel', 30000000000, %(catch_up)s, interval '365 days', true
      from generate_series(1, %(count)s) as n
    returning id
)
insert into sqlstreams.schedule_cursor (schedule_id, next_slot, due_at, zone_data)
select id, %(slot)s, %(slot)s, (select zone_data from sqlstreams.schedule_cursor limit 1) from made
"""
_LATENESS = """
select extract(epoch from pg_xact_commit_timestamp(f.xmin) - f.scheduled_for)::double precision * 1000
  from sqlstreams.schedule_fire f
  join sqlstreams.schedule_config s on s.id = f.schedule_id
 where s.name like %s
 order by 1
"""


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given, track_commit_timestamp="on") as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    idle, most = given.size(100_000, tiny=200), given.size(10_000, tiny=50)
    run_async(_prepare(where))
    _insert(where, "idle", count=idle, slot=datetime.now(UTC) + timedelta(days=300), expression="0 0 1 1 *")
    where.execute("vacuum (analyze) sqlstreams.schedule_config, sqlstreams.schedule_cursor")
    missed = given.size(_MISSED, tiny=300)
    report.sizes(idle=idle, missed_minutes=missed)
    for count in (1, most // 10, most):
        samples = [_late(where, count) for _ in range(given.rounds)]
        report.figure(f"{count:,} due at once, median", [each[len(each) // 2] for each in samples], "ms")
        late = [each[int(len(each) * 0.99)] for each in samples]
        if count == 1_000:
            report.at_most(f"{count:,} due at once, p99", late, 100, unit="ms")
        else:
            report.figure(f"{count:,} due at once, p99", late, "ms")
    for catch_up in ("newest", "oldest", "skip", "all"):
        seconds = [_made_up_for(where, catch_up, missed) for _ in range(given.rounds)]
        report.figure(f"missed minutes made up for, {catch_up}", seconds, "s")


async def _prepare(where: Place) -> None:
    async with AsyncClient(where.url) as client:
        await register(client)
        await client.scheduler("first").register(STREAM, "0 0 1 1 *", Order(1, "", "eu", []))


def _insert(
    where: Place, prefix: str, *, count: int, slot: datetime, expression: str, catch_up: str = "newest"
) -> None:
    parameters = {"prefix": prefix, "count": count, "slot": slot, "expression": expression, "catch_up": catch_up}
    where.execute(_INSERT, parameters)  # type: ignore[arg-type]  # named ones will do as well


def _late(where: Place, count: int) -> list[float]:
    slot = (datetime.now(UTC) + timedelta(seconds=_AHEAD)).replace(microsecond=0)
    # A day's other minutes are never met: each schedule fires once.
    _insert(where, "due", count=count, slot=slot, expression=f"{slot.minute} {slot.hour} * * *")
    try:
        asyncio.run(_run_until_fired(where, "due", count))
        return [late for (late,) in where.execute(_LATENESS, ["due%"])]
    finally:
        where.execute("delete from sqlstreams.schedule_config where name like 'due%'")
        where.settle()


def _made_up_for(where: Place, catch_up: str, missed: int) -> float:
    slot = datetime.now(UTC).replace(second=0, microsecond=0) - missed * _MINUTE
    _insert(where, "missed", count=1, slot=slot, expression="* * * * *", catch_up=catch_up)
    try:
        return asyncio.run(_run_until_caught_up(where))
    finally:
        where.execute("delete from sqlstreams.schedule_config where name like 'missed%'")
        where.settle()


async def _run_until_fired(where: Place, prefix: str, count: int) -> None:
    query = """
        select count(*) >= %s
          from sqlstreams.schedule_fire f
          join sqlstreams.schedule_config s on s.id = f.schedule_id
         where s.name like %s
    """
    await _run_until(where, query, [count, f"{prefix}%"], pause=0.5)


async def _run_until_caught_up(where: Place) -> float:
    query = """
        select count(*) = 0
          from sqlstreams.schedule_cursor c
          join sqlstreams.schedule_config s on s.id = c.schedule_id
         where s.name like 'missed%%'
           and c.next_slot <= now()
    """
    return await _run_until(where, query, [], pause=0.02)


async def _run_until(where: Place, query: str, parameters: list[Any], *, pause: float) -> float:
    async with AsyncClient(where.url) as client:
        began = time.perf_counter()
        running = asyncio.create_task(client.manager.run(signals=False))
        # In a thread: what looks on must not hold up what it looks at.
        while await asyncio.to_thread(where.execute, query, parameters) != [(True,)]:  # noqa: ASYNC110  # it is asked
            await asyncio.sleep(pause)
        seconds = time.perf_counter() - began
        await end(running)
    return seconds


if __name__ == "__main__":
    main()
