"""Laws of delivery, for random messages, outcomes and processes that come, go, crash and freeze.

Nothing is lost; ordered keys are first handled in order; a key is never handled twice at a time; only deliveries that
began are ever counted as failures; and whatever a process says of work that was taken from it while it was frozen
changes nothing. All the while dead letters are redriven, and the group is rewound.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
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


class Life(Struct, frozen=True):
    """A process: how it ends after how many milliseconds, and what somebody does with the group meanwhile."""

    end: str
    milliseconds: int
    meanwhile: str = "nothing"


class Scenario(Struct, frozen=True):
    """What happens: messages, and one process after the other. Who froze wakes up when its work is with others."""

    concurrency: str
    messages: tuple[Planned, ...]
    processes: tuple[Life, ...]


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
        st.builds(
            Life,
            end=st.sampled_from(["stop", "crash", "freeze"]),
            milliseconds=st.integers(0, 80),
            meanwhile=st.sampled_from(["nothing", "redrive", "rewind"]),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
)
# What asks for work, and what a process that woke up therefore never does again here: so all it has is of old.
_ASKING = ("claim", "claim_bound", "take_over", "gate", "claim_exceptions")


class World:
    """Everything that was seen, by all processes together."""

    def __init__(self, scenario: Scenario, exceptions: str) -> None:
        self.exceptions = exceptions
        self._plan = {str(number): planned for number, planned in enumerate(scenario.messages)}
        self._keys_matter = scenario.concurrency != "parallel"
        self.running: dict[str, set[tuple[Process, int]]] = defaultdict(set)
        self.healed = False
        self.succeeded: dict[int, list[int]] = defaultdict(list)
        self.first_successes: list[tuple[str | None, int]] = []
        self.raised: dict[int, int] = defaultdict(int)
        self.tries: dict[int, int] = defaultdict(int)
        self.crashed_in: dict[int, int] = defaultdict(int)
        self.broken: list[str] = []

    async def handle(self, note: Note, process: Process) -> None:
        about, planned = meta(), self._plan[note.text]
        key = planned.key
        if key is not None:
            if self._keys_matter and self.running[key]:
                self.broken.append(f"two deliveries of key {key} at a time: {about.id} beside {self.running[key]}")
            self.running[key].add((process, about.id))
        try:
            await asyncio.sleep(0.002)
            if await process.slept():
                _end_of_old_work(about.id)
                return
            self._end(about.id, planned)
        finally:
            if key is not None:
                self.running[key].discard((process, about.id))
        if not self.succeeded[about.id]:
            self.first_successes.append((key, about.id))
        self.succeeded[about.id].append(about.failures)

    def gone(self, process: Process) -> None:
        """Count nothing that a process does any more."""
        for running in self.running.values():
            running -= {each for each in running if each[0] is process}

    def _end(self, message_id: int, planned: Planned) -> None:
        tried = self.tries[message_id]
        self.tries[message_id] += 1
        match planned.ends[tried] if tried < len(planned.ends) else "ok":
            case "fail":
                self.raised[message_id] += 1
                raise ValueError("as planned")
            case "delay":
                raise Delay(timedelta(milliseconds=5))
            case "dead" if not self.healed:
                self.tries[message_id] = 0
                raise Terminal("as planned")


def _end_of_old_work(message_id: int) -> None:
    # Whatever it says: it must not count.
    match message_id % 4:
        case 1:
            raise ValueError("of old")
        case 2:
            raise Terminal("of old")
        case 3:
            raise Delay(timedelta(hours=1))


class Process:
    """A client that consumes in this loop, and can be made to vanish or stand still as whole processes do."""

    def __init__(self, url: str, world: World) -> None:
        self._url = url
        self._client = AsyncClient(url, lease_ttl=_LEASE)
        self._world = world
        self._running: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._frozen = False
        self._thawed = asyncio.Event()
        self._heart = threading.Event()
        self._asked = 0

    async def start(self) -> None:
        await self._client.__aenter__()
        database: Any = self._client._database
        database.query_once = self._standing_still(database.query_once)
        database.query_together = self._standing_still(database.query_together)
        consumer = self._client.stream("notes", Note).consumer("g")
        self._task = asyncio.create_task(consumer.consume(self._handle, signals=False, concurrency=4, prefetch=7))

    async def _handle(self, note: Note) -> None:
        message_id = meta().id
        if await self.slept():
            _end_of_old_work(message_id)
            return
        self._running.add(message_id)
        try:
            await self._world.handle(note, self)
        finally:
            self._running.discard(message_id)

    async def slept(self) -> bool:
        """Stand still while this process is frozen; say whether it was."""
        if self._frozen:
            await self._thawed.wait()
        return self._frozen

    def _standing_still(self, query: Callable[..., Any]) -> Callable[..., Any]:
        async def query_unless_frozen(*statements: Any) -> Any:
            if await self.slept() and any(statement.name in _ASKING for statement in statements):
                await asyncio.Event().wait()
            self._asked += 1
            try:
                return await query(*statements)
            finally:
                self._asked -= 1
                await self.slept()

        return query_unless_frozen

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
        running = set(self._running)
        await self.stop()
        for task in presence._tasks:
            task.cancel()
        await asyncio.gather(*presence._tasks, return_exceptions=True)
        await self._count_as_died(running)

    async def freeze(self) -> None:
        """Do nothing any more, nor beat; what the server was asked it may still do, and nobody hears the answer."""
        self._frozen = True
        self._world.gone(self)
        heartbeat: Any = self._client._presence._heartbeat
        if heartbeat is not None:
            beat = heartbeat._beat
            heartbeat._beat = lambda: (self._heart.wait(), beat())
        await eventually(lambda: not self._asked)
        await self._count_as_died(self._running)
        await self._ask(b"update sqlstreams.consumer_instance set expires_at = now() where id = %s")

    async def thaw(self) -> None:
        """Wake up once all the work is others', say what became of it, and end."""
        await eventually(self._holds_nothing)
        self._heart.set()
        self._thawed.set()
        await asyncio.sleep(0.02)
        await self.stop()

    async def _holds_nothing(self) -> bool:
        leases = await self._ask(b"select low from sqlstreams.claim_lease where instance_id = %s")
        return not leases and not await self._rows_in_flight()

    async def _count_as_died(self, running: set[int]) -> None:
        # A delivery counts as begun when it was about to: nobody can tell the two apart after a kill.
        alone = await self._ask(b"select running from sqlstreams.claim_lease where instance_id = %s")
        for message_id in (
            running | await self._rows_in_flight() | {message_id for (message_id,) in alone if message_id}
        ):
            self._world.crashed_in[message_id] += 1

    async def _rows_in_flight(self) -> set[int]:
        query = f"select message_id from {self._world.exceptions} where state = 'inflight' and instance_id = %s"
        rows = await self._ask(query.encode())
        return {message_id for (message_id,) in rows}

    async def _ask(self, query: bytes) -> list[Any]:
        identity = self._client._presence._identity
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            cursor = await connection.execute(query, [identity and identity.id])
            return await cursor.fetchall() if cursor.description else []


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
        info = stream.get()
        assert info is not None
    asyncio.run(_play(database_url, scenario, f"sqlstreams.exception_queue_{info.id}"))


async def _play(url: str, scenario: Scenario, exceptions: str) -> None:
    world = World(scenario, exceptions)
    frozen: list[Process] = []
    async with AsyncClient(url) as client:
        group = client.stream("notes", Note).consumer("g")
        for life in scenario.processes:
            process = Process(url, world)
            await process.start()
            await asyncio.sleep(life.milliseconds / 2_000)
            if life.meanwhile == "redrive":
                await group.redrive(everything=True)
            await asyncio.sleep(life.milliseconds / 2_000)
            await {"stop": process.stop, "crash": process.crash, "freeze": process.freeze}[life.end]()
            if life.end == "freeze":
                frozen.append(process)
            if life.meanwhile == "rewind":
                await group.rewind("beginning")
        last = Process(url, world)
        await last.start()
        try:
            for process in frozen:
                await process.thaw()
            await eventually(lambda: _is_settled(group), within=30)
            dead = (await group.status()).dead
            world.healed = True
            await group.redrive(everything=True)
            await eventually(lambda: _is_settled(group), within=30)
            await eventually(lambda: _no_keys_are_held(client))
            left = (await group.status()).dead
        finally:
            await last.stop()
    _check(world, scenario, dead, left)


async def _is_settled(group: AsyncConsumer[Note]) -> bool:
    status = await group.status()
    return (status.lag, status.leases, status.ready, status.inflight, status.deferred) == (0, 0, 0, 0, 0)


async def _no_keys_are_held(client: AsyncClient) -> bool:
    async with client._database.connection() as connection:
        found = await (await connection.execute("select count(*) from sqlstreams.message_key_lease")).fetchone()
    return found == (0,)


def _check(world: World, scenario: Scenario, dead: int, left: int) -> None:
    assert not world.broken
    planned = dict(enumerate(scenario.messages, start=1))
    doomed = {message_id for message_id, each in planned.items() if each.ends == ("dead",)}
    assert world.succeeded.keys() == planned.keys(), "a message was lost"
    assert (dead, left) == (len(doomed), 0)
    if scenario.concurrency == "ordered":
        for key in ("a", "b", "c"):
            ids = [message_id for each, message_id in world.first_successes if each == key and message_id not in doomed]
            assert ids == sorted(ids), f"key {key} out of order"
    for message_id, failures in world.succeeded.items():
        # A crash may also take with it the news that a delivery had succeeded.
        most = world.raised[message_id] + world.crashed_in[message_id] + len(failures) - 1
        assert max(failures) <= most, f"message {message_id} was charged for what did not happen"
