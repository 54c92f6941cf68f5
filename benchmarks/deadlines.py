"""Measure how fast rows that are due are moved, each with its message, out of a table of a million."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from _measure import Arguments, Place, Report, arguments, end, place, ratios, rounds, run_async

from sqlstreams import AsyncClient

_TABLE: Final = """
create table reservations (
    id         bigint generated always as identity primary key,
    expires_at timestamptz not null,
    state      text not null,
    seat       text not null,
    price      numeric(10, 2) not null
)
"""
_FILL: Final = """
insert into reservations (expires_at, state, seat, price)
select now() + interval '30 days' + n * interval '1 s', case n %% 4 when 0 then 'held' else 'confirmed' end,
       'seat ' || n, 9.50
  from generate_series(1, %(count)s) as n
"""
_COME_DUE: Final = """
update reservations
   set expires_at = now() - interval '1 minute', state = 'held'
 where id in (select id from reservations where state <> 'expired' order by id limit %(count)s)
"""
_BARE: Final = """
with due as (
    select id from reservations where state = 'held' and expires_at <= now()
     order by expires_at limit 200 for no key update skip locked
), moved as (
    update reservations r set state = 'expired' from due where r.id = due.id
    returning row_to_json(r.*) as payload
)
insert into expired (payload) select payload from moved returning 1
"""


def main() -> None:
    given = arguments(str(__doc__), rounds=3)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    rows, due = given.size(1_000_000, tiny=2_000), given.size(10_000, tiny=300)
    report.sizes(rows=rows, due=due, batch=200)
    where.execute(_TABLE)
    where.execute("create table expired (id bigint generated always as identity primary key, payload json)")
    where.execute(_FILL, {"count": rows})  # type: ignore[arg-type]  # named ones will do as well
    where.execute("create index on reservations (state, expires_at)")
    where.execute("vacuum (analyze) reservations")
    run_async(_register(where))
    taken = rounds(where, {"moved": lambda: _moved(where, due), "bare": lambda: _bare(where, due)}, count=given.rounds)
    report.figure("all moved, each with its message", taken["moved"], "s")
    report.figure("rows moved", [due / seconds for seconds in taken["moved"]], "rows/s")
    report.figure("time beside the bare statements", ratios(taken["moved"], taken["bare"]), "×")
    report.sizes(plan=run_async(_plan(where)))


async def _register(where: Place) -> None:
    async with AsyncClient(where.url) as client:
        await client.stream("expired").register()
        await client.deadline("expiry").register(
            "expired",
            table="reservations",
            key="id",
            deadline="expires_at",
            state="state",
            from_state="held",
            to_state="expired",
            mode="observe",
        )


def _come_due(where: Place, due: int) -> None:
    where.execute(_COME_DUE, {"count": due})  # type: ignore[arg-type]  # named ones will do as well


def _moved(where: Place, due: int) -> float:
    _come_due(where, due)
    return run_async(_run_until_moved(where))


async def _run_until_moved(where: Place) -> float:
    query = "select not exists (select from reservations where state = 'held' and expires_at <= now())"
    async with AsyncClient(where.url) as client:
        running = asyncio.create_task(client.manager.run(signals=False))
        while where.execute("select count(*) from sqlstreams.worker_instance") == [(0,)]:  # noqa: ASYNC110  # the database is asked
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        await client.deadline("expiry").activate()
        while where.execute(query) != [(True,)]:  # noqa: ASYNC110  # the database is asked
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - began
        await client.deadline("expiry").observe()
        await end(running)
    return seconds


def _bare(where: Place, due: int) -> float:
    _come_due(where, due)
    began = time.perf_counter()
    while where.execute(_BARE):
        pass
    return time.perf_counter() - began


async def _plan(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        status = await client.deadline("expiry").status()
    return f"{status.plan}, cost {status.scan_cost}"


if __name__ == "__main__":
    main()
