"""A redrive of thousands that is killed half-way goes on where it broke off: nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import psycopg

from sqlstreams import AsyncClient, AsyncConsumer
from tests.dead.letters import ask, group_of, let_die
from tests.support import Note, consuming, eventually

COUNT, RATE = 5_000, 4_000
REDRIVE = f"""
import sys
from sqlstreams import Client
with Client(sys.argv[1] + " application_name=redriver") as client:
    client.stream("notes").consumer("g").redrive(error="ValueError", rate={RATE})
"""
WAITS = "select 1 from pg_stat_activity where application_name = 'redriver' and wait_event_type = 'Lock'"
LIVES = "select 1 from pg_stat_activity where application_name = 'redriver'"
STATES = "select state, count(*) from sqlstreams.exception_queue_1 where error_type = 'ValueError' group by state"


def _reason(note: Note) -> Exception:
    return ValueError("odd") if int(note.text) % 2 else TimeoutError("even")


@contextmanager
def _redriver_that_is_killed(url: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", REDRIVE, url])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _kill_a_redrive_in_its_last_transaction(url: str) -> None:
    with psycopg.connect(url) as blocker:
        blocker.execute("select from sqlstreams.exception_queue_1 where message_id = %s for update", [COUNT])
        with _redriver_that_is_killed(url):
            await eventually(lambda: bool(ask(url, WAITS)))
    await eventually(lambda: not ask(url, LIVES))


async def test_a_killed_redrive_is_resumed(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        # Given dead letters for two reasons, and a redrive of one of them that was killed within a transaction
        group = await group_of(client, [(None, str(number)) for number in range(COUNT)])
        await let_die(group, COUNT, _reason)
        await _kill_a_redrive_in_its_last_transaction(database_url)
        assert Counter(dict(ask(database_url, STATES))) == {"ready": 2_000, "dead": 500}
        (broke_off,) = ask(database_url, "select max(can_run_after) from sqlstreams.exception_queue_1")[0]

        # When it is called again
        progress: list[int] = []
        redriven = await group.redrive(error="ValueError", rate=RATE, progress=progress.append)

        # Then it moves the rest, at the pace of the first
        assert (redriven.messages, progress) == (500, [500])
        assert redriven.first_due is not None
        assert redriven.first_due > broke_off
        _assert_paced(database_url)
        handled = await _handle(group, COUNT // 2)
        assert handled == Counter(range(1, COUNT, 2))
        _assert_history(database_url)
        assert (await group.status()).dead == COUNT // 2


def _assert_paced(url: str) -> None:
    rows = ask(url, "select can_run_after from sqlstreams.exception_queue_1 where state = 'ready' order by message_id")
    pauses = [(later - earlier).total_seconds() for (earlier,), (later,) in pairwise(rows)]
    assert len(pauses) == COUNT // 2 - 1
    # The second call may begin later than the first would have gone on.
    assert min(pauses) >= 1 / RATE - 1e-5
    assert sum(pause > 1.1 / RATE for pause in pauses) <= 3


async def _handle(group: AsyncConsumer[Note], count: int) -> Counter[int]:
    handled: Counter[int] = Counter()

    async def handle(note: Note) -> None:
        handled[int(note.text)] += 1

    async with consuming(group, handle, concurrency=100):
        await eventually(lambda: handled.total() >= count, within=60)
        await eventually(lambda: _all_recorded(group))
    return handled


async def _all_recorded(group: AsyncConsumer[Any]) -> bool:
    status = await group.status()
    return status.ready == status.inflight == 0


def _assert_history(url: str) -> None:
    kept = ask(
        url,
        "select error_type, outcomes, count(*)"
        "  from (select max(error_type) as error_type, array_agg(outcome order by id) as outcomes"
        "          from sqlstreams.delivery_log_1 group by message_id) as m"
        " group by error_type, outcomes order by error_type",
    )
    assert kept == [
        ("TimeoutError", ["dead"], COUNT // 2),
        ("ValueError", ["dead", "redriven"], COUNT // 2),
    ]


async def test_two_redrives_at_once_move_each_message_once(database_url: str) -> None:
    async with AsyncClient(database_url) as one, AsyncClient(database_url) as two:
        group = await group_of(one, [(None, str(number)) for number in range(1_500)])
        await let_die(group, 1_500, lambda _: ValueError("no"))
        other = two.stream("notes", Note).consumer("g")
        moved = await asyncio.gather(group.redrive(everything=True), other.redrive(everything=True))
    assert sum(each.messages for each in moved) == 1_500
    count = "select count(*), count(distinct message_id) from sqlstreams.delivery_log_1 where outcome = 'redriven'"
    assert ask(database_url, count) == [(1_500, 1_500)]


async def test_what_dies_again_at_once_is_not_redriven_for_ever(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, str(number)) for number in range(2_500)])
        await let_die(group, 2_500, lambda _: ValueError("no"))

        def die_again(_: int) -> None:
            ask(database_url, "update sqlstreams.exception_queue_1 set state = 'dead'")

        assert (await group.redrive(everything=True, progress=die_again)).messages == 2_500
