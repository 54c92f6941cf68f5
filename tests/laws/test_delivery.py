"""Laws of delivery, for random messages, outcomes and processes that come, go and crash.

Nothing is lost; ordered keys are first handled in order; a key is never handled twice at a time; and only deliveries
that began are ever counted as failures.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sqlstreams import AsyncClient, AsyncConsumer, Client, Delay, Message, Terminal, meta
from tests.support import Note, eventually

_LEASE = timedelta(milliseconds=400)


class Planned(Struct, frozen=True):
    """One message: its key, and how its deliveries end before one succeeds."""

    key: str | None
    ends: tuple[str, ...]


class Scenario(Struct, frozen=True):
    """What happens: messages in batches, and what becomes of each process after how many milliseconds."""

    concurrency: str
    messages: tuple[Planned, ...]
    processes: tuple[tuple[str, int], ...]


_ends = st.lists(st.sampled_from(["fail", "delay", "fail"]), max_size=2).map(tuple)
_planned = st.builds(
    Planned,
    key=st.sampled_from([None, "a", "b", "c"]),
    ends=st.one_of(st.just(()), _ends, st.just(("dead",))),
)
_scenarios = st.builds(
    Scenario,
    concurrency=st.sampled_from(["ordered", "exclusive", "parallel"]),
    messages=st.lists(_planned, min_size=1, max_size=40).map(tuple),
    processes=st.lists(
        st.tuples(st.sampled_from(["stop", "crash", "crash"]), st.integers(0, 80)), min_size=1, max_size=4
    ).map(tuple),
)


class World:
    """Everything that was seen, by all processes together."""

    def __init__(self, scenario: Scenario) -> None:
        self._plan = {str(number): planned for number, planned in enumerate(scenario.messages)}
        self._keys_matter = scenario.concurrency != "parallel"
        self.running: dict[str, set[int]] = defaultdict(set)
        self.succeeded: dict[int, list[int]] = defaultdict(list)
        self.first_successes: list[tuple[str | None, int]] = []
        self.raised: dict[int, int] = defaultdict(int)
        self.tries: dict[int, int] = defaultdict(int)
        self.crashed_in: dict[int, int] = defaultdict(int)

    async def handle(self, note: Note) -> None:
        about, planned = meta(), self._plan[note.text]
        key = planned.key
        if key is not None:
            assert not (self._keys_matter and self.running[key]), f"two deliveries of key {key} at a time"
            self.running[key].add(about.id)
        try:
            await asyncio.sleep(0.002)
            self._end(about.id, planned)
        finally:
            if key is not None:
                self.running[key].discard(about.id)
        if not self.succeeded[about.id]:
            self.first_successes.append((key, about.id))
        self.succeeded[about.id].append(about.failures)

    def _end(self, message_id: int, planned: Planned) -> None:
        tried = self.tries[message_id]
        self.tries[message_id] += 1
        match planned.ends[tried] if tried < len(planned.ends) else "ok":
            case "fail":
                self.raised[message_id] += 1
                raise ValueError("as planned")
            case "delay":
                raise Delay(timedelta(milliseconds=5))
            case "dead":
                self.tries[message_id] = 0
                raise Terminal("as planned")


class Process:
    """A client that consumes in this loop, and can be made to vanish as a killed process does."""

    def __init__(self, url: str, world: World) -> None:
        self._url = url
        self._client = AsyncClient(url, lease_ttl=_LEASE)
        self._world = world
        self._running: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._client.__aenter__()
        consumer = self._client.stream("notes", Note).consumer("g")
        self._task = asyncio.create_task(consumer.consume(self._handle, signals=False, concurrency=4, prefetch=7))

    async def _handle(self, note: Note) -> None:
        message_id = meta().id
        self._running.add(message_id)
        await self._world.handle(note)
        self._running.discard(message_id)

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def crash(self) -> None:
        """End without giving anything back: leases and rows stay as they are, until they expire."""
        assert self._task is not None
        presence: Any = self._client._presence
        for member in presence._members:
            member._clean_up = _vanish
        presence.leave = _nothing
        if presence._heartbeat is not None:
            presence._heartbeat.stop()
        await self.stop()
        for task in presence._tasks:
            task.cancel()
        await asyncio.gather(*presence._tasks, return_exceptions=True)
        # A retry counts as begun when it was about to: nobody can tell the two apart after a kill.
        for message_id in self._running | await self._retries_in_flight():
            self._world.crashed_in[message_id] += 1

    async def _retries_in_flight(self) -> set[int]:
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            (stream,) = await (await connection.execute("select id from sqlstreams.stream_config")).fetchone() or (0,)
            table = f"sqlstreams.exception_queue_{stream}"
            rows = await connection.execute(f"select message_id from {table} where state = 'inflight'".encode())
            return {message_id async for (message_id,) in rows}


async def _vanish(recorder: asyncio.Task[None]) -> None:
    recorder.cancel()
    await asyncio.gather(recorder, return_exceptions=True)


async def _nothing(*_: object) -> None:
    pass


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(scenario=_scenarios)
def test_whatever_happens_the_laws_of_delivery_hold(database_url: str, scenario: Scenario) -> None:
    with Client(database_url, allow_destroy=True) as admin:
        if admin.stream("notes", Note).get() is not None:
            admin.stream("notes", Note).destroy()
        stream = admin.stream("notes", Note).register()
        stream.consumer("g").register(
            concurrency=scenario.concurrency, retry_base=timedelta(milliseconds=5), retry_exponent=1, max_retries=50
        )
        stream.producer().produce_many(
            [Message(Note(str(number)), key=each.key) for number, each in enumerate(scenario.messages)]
        )
    asyncio.run(_play(database_url, scenario))


async def _play(url: str, scenario: Scenario) -> None:
    world = World(scenario)
    for end, milliseconds in scenario.processes:
        process = Process(url, world)
        await process.start()
        await asyncio.sleep(milliseconds / 1000)
        await (process.crash() if end == "crash" else process.stop())
    last = Process(url, world)
    await last.start()
    try:
        async with AsyncClient(url) as client:
            group = client.stream("notes", Note).consumer("g")
            await eventually(lambda: _is_settled(group), within=30)
            dead = (await group.status()).dead
            await eventually(lambda: _no_keys_are_held(client))
    finally:
        await last.stop()
    _check(world, scenario, dead)


async def _is_settled(group: AsyncConsumer[Note]) -> bool:
    status = await group.status()
    return (status.lag, status.leases, status.ready, status.inflight, status.deferred) == (0, 0, 0, 0, 0)


async def _no_keys_are_held(client: AsyncClient) -> bool:
    async with client._database.connection() as connection:
        found = await (await connection.execute("select count(*) from sqlstreams.message_key_lease")).fetchone()
    return found == (0,)


def _check(world: World, scenario: Scenario, dead: int) -> None:
    planned = dict(enumerate(scenario.messages, start=1))
    doomed = {message_id for message_id, each in planned.items() if each.ends == ("dead",)}
    assert world.succeeded.keys() == planned.keys() - doomed, "a message was lost"
    assert dead == len(doomed)
    if scenario.concurrency == "ordered":
        for key in ("a", "b", "c"):
            ids = [message_id for each, message_id in world.first_successes if each == key]
            assert ids == sorted(ids), f"key {key} out of order"
    for message_id, failures in world.succeeded.items():
        # A crash may also take with it the news that a delivery had succeeded.
        most = world.raised[message_id] + world.crashed_in[message_id] + len(failures) - 1
        assert max(failures) <= most, f"message {message_id} was charged for what did not happen"
