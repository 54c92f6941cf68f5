"""Put the reservations through a bad quarter of an hour, and explain from the stored rows what became of each.

python examples/reservations/drill.py                  50,000 deadlines at one instant, on a server of its own
python examples/reservations/drill.py --size 500
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
from msgspec import Struct
from reservations import DEADLINE, GROUP, HELD_FOR, STREAM, Reservation, confirm, hold, release, set_up

import sqlstreams
from sqlstreams import embedded

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
# Local times at which seats were held, and the instants at which they expire: 15 minutes of elapsed time later.
LOCAL_TIMES = [
    (datetime(2025, 3, 30, 1, 50, tzinfo=BERLIN), "2025-03-30T01:05Z"),  # 03:05 there: an hour is skipped
    (datetime(2025, 10, 26, 2, 50, tzinfo=BERLIN, fold=0), "2025-10-26T01:05Z"),  # 02:05 there, the second time
    (datetime(2025, 10, 26, 2, 50, tzinfo=BERLIN, fold=1), "2025-10-26T02:05Z"),
    (datetime(2025, 3, 9, 1, 50, tzinfo=NEW_YORK), "2025-03-09T07:05Z"),  # 03:05 there: an hour is skipped
    (datetime(2025, 11, 2, 1, 50, tzinfo=NEW_YORK, fold=0), "2025-11-02T06:05Z"),  # 01:05 there, the second time
    (datetime(2025, 11, 2, 1, 50, tzinfo=NEW_YORK, fold=1), "2025-11-02T07:05Z"),
    (datetime(2025, 3, 30, 1, 50, tzinfo=timezone(timedelta(hours=-3))), "2025-03-30T05:05Z"),  # the same all year
]
# Stops the server within the transaction that expires one seat, behind the change of its state.
STOP = """
create or replace function stop_here() returns trigger language plpgsql as
$$ begin if new.state = 'expired' then perform pg_advisory_xact_lock(424242); end if; return null; end $$;
create trigger stop_here after update on reservations for each row
when (new.seat = 'restarted') execute function stop_here()
"""
WITHIN = 120.0


class Story(Struct):
    """The reservations that something happened to."""

    dense: list[int]
    confirmed: list[int]
    just_in_time: int
    restarted: int
    local: dict[int, datetime]


async def drill(url: str, size: int) -> bool:
    """Run it all; print what was found and return whether it is as promised."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(sqlstreams.AsyncClient(url, manager=False))
        connection = await stack.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))
        await set_up(client, connection)
        await client.deadline(DEADLINE).suspend()  # a quarter of an hour in which nothing is dispatched
        story = await _make(connection, size)
        await _resume(url, client, connection, story)
        await _deliver_twice(client, connection, story)
        return await _explain(client, connection, story)


async def _make(connection: psycopg.AsyncConnection[Any], size: int) -> Story:
    await connection.execute(STOP.encode())
    rows = await connection.execute(
        "insert into reservations (seat, expires_at) select 'seat ' || n, now() - interval '14 minutes'"
        " from generate_series(1, %s) n returning id",
        [size],
    )
    dense = [row[0] for row in await rows.fetchall()]
    confirmed = dense[::10]
    await connection.execute("update reservations set state = 'confirmed' where id = any(%s)", [confirmed])
    local = {}
    for number, (held_at, expires_at) in enumerate(LOCAL_TIMES):
        reservation = await hold(connection, f"local {number}", at=held_at.astimezone(UTC))
        local[reservation] = datetime.fromisoformat(expires_at)
    quarter_ago = datetime.now(UTC) - HELD_FOR - timedelta(seconds=1)
    return Story(
        dense,
        confirmed,
        just_in_time=await hold(connection, "just in time", at=quarter_ago),
        restarted=await hold(connection, "restarted", at=quarter_ago - timedelta(days=2_000)),
        local=local,
    )


async def _resume(
    url: str, client: sqlstreams.AsyncClient, connection: psycopg.AsyncConnection[Any], story: Story
) -> None:
    async with await psycopg.AsyncConnection.connect(url) as confirming:
        # It becomes due, and somebody is about to confirm it.
        await confirm(confirming, story.just_in_time)
        await connection.execute("select pg_advisory_lock(424242)")
        await client.deadline(DEADLINE).unsuspend()
        await _die_within(url, connection)
        # Two, and the one that was killed until its lease ends.
        await connection.execute("update sqlstreams.worker_config set target_instances = 3 where name = 'manager'")
        async with _managing(url), _managing(url):
            await _until(lambda: _is_nothing_left(connection, but=1))
            await confirming.commit()
            await _until(lambda: _is_nothing_left(connection, but=0))
    consumer = client.stream(STREAM, Reservation).consumer(GROUP)
    async with _running(consumer.consume(release, transactional=True, batch=500, signals=False)):
        await _until(lambda: _is_all_done(client))


async def _die_within(url: str, connection: psycopg.AsyncConnection[Any]) -> None:
    """Kill a manager between the new state of a row and everything that comes after it."""
    manager = await asyncio.create_subprocess_exec(sys.executable, __file__, "--database-url", url, "--manage")
    try:
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        await _until(lambda: _is(connection, waiting, 1))
    finally:
        manager.send_signal(signal.SIGKILL)
        await manager.wait()
    await connection.execute("select pg_advisory_unlock(424242)")
    # Its server process finds nobody to answer to, and rolls back.
    await _until(lambda: _is(connection, "select count(*) from pg_locks where locktype = 'advisory'", 0))


async def _deliver_twice(
    client: sqlstreams.AsyncClient, connection: psycopg.AsyncConnection[Any], story: Story
) -> None:
    at = next(iter(story.local.values()))
    replayed = await client.deadline(DEADLINE).replay(at, at)
    assert replayed.messages == 1
    consumer = client.stream(STREAM, Reservation).consumer(GROUP)
    async with _running(consumer.consume(release, transactional=True, batch=500, signals=False)):
        await _until(lambda: _is_all_done(client))


async def _explain(client: sqlstreams.AsyncClient, connection: psycopg.AsyncConnection[Any], story: Story) -> bool:
    stream = await client.stream(STREAM).get()
    status = await client.deadline(DEADLINE).status()
    assert stream is not None
    log = f"sqlstreams.message_log_{stream.id}"
    first = f"(select message_key, options from {log} where options->'headers'->'sqlstreams-replay' is null)"
    states = dict(await _rows(connection, "select id, state from reservations"))
    expired = {reservation for reservation, state in states.items() if state == "expired"}
    messages = await _rows(connection, f"select message_key::bigint, count(*) from {first} m group by 1")
    deadlines = dict(
        await _rows(connection, f"select message_key::bigint, (options->>'scheduled_at')::timestamptz from {first} m")
    )
    released = [row[0] for row in await _rows(connection, "select reservation_id from released_seats")]
    produced = (await _rows(connection, f"select count(*) from {log}"))[0][0]
    print("What the rows say:")
    for edit in reversed(await client.deadline(DEADLINE).edits()):
        print(f"  {edit.changed_at:%H:%M:%S} {edit.action} by {edit.changed_by}")
    print(f"  {status.moved:,} reservations moved, {produced:,} messages, {status.replayed} of them by a replay")
    print(
        f"  {status.already_final:,} were past their time and in another state already, {status.aside} were put aside"
    )
    settled = {*story.confirmed, story.just_in_time}
    findings = {
        "whatever was confirmed stays confirmed": all(states[each] == "confirmed" for each in settled),
        "the one confirmed just as it was due has no message": story.just_in_time not in deadlines,
        "everything else has expired": expired == states.keys() - settled,
        "each expired reservation has exactly one message, and nothing else has one": dict(messages)
        == dict.fromkeys(expired, 1),
        "every seat was released once, though one message came twice": sorted(released) == sorted(expired)
        and produced == len(expired) + 1,
        "the restart lost nothing and doubled nothing": dict(messages).get(story.restarted) == 1,
        "deadlines of local times are the instants that were meant": all(
            # The server may tell of an hour that its clock repeats, and that equals no time of another zone.
            deadlines[reservation].astimezone(UTC) == instant
            for reservation, instant in story.local.items()
        ),
        "the books agree: as many moved as have expired": status.moved == len(expired) and status.due == 0,
    }
    for finding, is_so in findings.items():
        print(f"  {'ok    ' if is_so else 'FAILED'} {finding}")
    return all(findings.values())


# Waiting and running


async def _rows(connection: psycopg.AsyncConnection[Any], query: str) -> list[Any]:
    return await (await connection.execute(query.encode())).fetchall()


async def _is(connection: psycopg.AsyncConnection[Any], query: str, count: int) -> bool:
    return bool(await _rows(connection, query) == [(count,)])


async def _is_nothing_left(connection: psycopg.AsyncConnection[Any], *, but: int) -> bool:
    query = "select count(*) from reservations where state = 'held' and expires_at <= now()"
    return await _is(connection, query, but)


async def _is_all_done(client: sqlstreams.AsyncClient) -> bool:
    status = await client.stream(STREAM).consumer(GROUP).status()
    return status.lag == 0 and not status.leases


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    until = time.monotonic() + WITHIN
    while not await is_so():
        if time.monotonic() > until:
            raise TimeoutError("the drill did not get on")
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _managing(url: str) -> AsyncIterator[None]:
    async with sqlstreams.AsyncClient(url) as client, _running(client.manager.run(signals=False)):
        yield


@asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _manage(url: str) -> None:
    async with sqlstreams.AsyncClient(url, lease_ttl=timedelta(seconds=1)) as client:
        await client.manager.run()


def main() -> int:
    options = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    options.add_argument("--size", type=int, default=50_000, help="how many deadlines there are at one instant")
    options.add_argument("--database-url", help="a database that may be filled; else a server of its own")
    options.add_argument("--manage", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.manage:
        asyncio.run(_manage(given.database_url))
        return 0
    if given.database_url:
        return 0 if asyncio.run(drill(given.database_url, given.size)) else 1
    with tempfile.TemporaryDirectory(prefix="reservations-") as directory:
        Path(directory).chmod(0o755)
        with embedded.serve(Path(directory) / "pg") as server:
            return 0 if asyncio.run(drill(server.url, given.size)) else 1


if __name__ == "__main__":
    sys.exit(main())
