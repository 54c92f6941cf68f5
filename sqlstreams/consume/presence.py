"""This process among the consumers: its row, its heartbeat, the wake-ups and polls that all its groups share."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import psycopg
from msgspec import Struct

from sqlstreams import statements
from sqlstreams.database import Address, AsyncDatabase, execute
from sqlstreams.errors import DatabaseUnavailable, NotInstalled
from sqlstreams.migration import library_version
from sqlstreams.statements import Polled
from sqlstreams.wake import RETRIES_DUE, Hearing, Listener, News

_log = logging.getLogger("sqlstreams.consume")

_POLL_FASTEST: Final = 0.05
# With the heartbeat and the manager, an idle process asks less than one statement a second.
_POLL_SLOWEST: Final = 2.0
_BEATS_PER_LEASE: Final = 3
_SHORTEST_ANSWER: Final = 1.0
_FAREWELL: Final = 5.0


class Progress(Struct, frozen=True):
    """How far a leased range is: everything up to `resolved`, and `done` beyond it."""

    token: UUID
    resolved: int
    done: list[int]


def columns(held: list[Progress]) -> dict[str, Any]:
    """Return the state of ranges column by column, as the statements that write it down take it."""
    return {
        "tokens": [progress.token for progress in held],
        "resolved": [progress.resolved for progress in held],
        "done": [progress.done for progress in held],
    }


class Member(Protocol):
    """What the presence needs to know of one running consumption."""

    stream_id: int
    group_id: int

    def progress(self) -> list[Progress]:
        """Return the state of the ranges that are held; any thread may ask."""

    def tokens(self) -> list[UUID]:
        """Return the tokens of everything that is held or about to be given back."""

    def held_keys(self) -> list[str]:
        """Return every key that is held."""

    def lost(self, token: UUID) -> None:
        """Hear that a range is not ours any more."""

    def woken(self) -> None:
        """Hear that the stream has news."""

    def polled(self, found: Polled | None) -> None:
        """Hear what a poll found; None when the group is gone."""

    def doubt(self) -> None:
        """Hear that a connection broke, so that the server may remember something else than we do."""


class Identity(Struct, frozen=True):
    """The row that stands for this process, and the proof that it is ours."""

    id: int
    token: UUID


class Presence:
    """Holds one row in consumer_instance while at least one consumption runs."""

    def __init__(self, database: AsyncDatabase, *, lease_ttl: float, hearing: Hearing) -> None:
        self._database = database
        self._ttl = lease_ttl
        self._hearing = hearing
        self._members: list[Member] = []
        self._identity: Identity | None = None
        self._heartbeat: _Heartbeat | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._poll_now = asyncio.Event()
        self._turns: dict[int, asyncio.Lock] = {}

    @property
    def listener(self) -> Listener | None:
        """The listening connection, if there is one."""
        return self._hearing.listener

    @property
    def instance_id(self) -> int:
        """The id of this process's row."""
        assert self._identity is not None
        return self._identity.id

    async def join(self, member: Member) -> None:
        """Add a consumption; the first one enters the process's row and starts the heartbeat."""
        async with self._changing:
            if self._identity is None:
                await self._enter()
            self._members.append(member)
        self.poll_soon()

    async def leave(self, member: Member) -> None:
        """Remove a consumption that joined or tried to; with the last one the row goes, and its work is free."""
        async with self._changing:
            if member in self._members:
                self._members.remove(member)
            if not self._members and self._identity is not None:
                await self._exit()

    def await_end(self, running: asyncio.Task[None]) -> None:
        """Have `close` wait for a consumption that nobody may wait for any more."""
        self._ending.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._ending.discard(running)
        if not running.cancelled():
            running.exception()  # or asyncio complains that nobody has asked

    async def close(self) -> None:
        """Wait until consumptions that were cancelled have given back their work."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def poll_soon(self) -> None:
        """Have the next poll done now."""
        self._poll_now.set()

    def turn(self, group_id: int) -> asyncio.Lock:
        """Return the lock that lets one of a group's consumptions ask for work, or disown it, at a time."""
        return self._turns.setdefault(group_id, asyncio.Lock())

    def known(self, group_id: int) -> list[UUID]:
        """Return every token that the consumptions of a group know of. Exact only while `turn` is held."""
        return [token for member in self._members if member.group_id == group_id for token in member.tokens()]

    def known_keys(self, group_id: int) -> list[str]:
        """Return every key that the consumptions of a group hold. Exact only while `turn` is held."""
        return [key for member in self._members if member.group_id == group_id for key in member.held_keys()]

    async def _enter(self) -> None:
        await self._enter_row()
        await self._database.query(statements.delete_forgotten_instances(self._database.schema))
        self._tasks = [asyncio.create_task(self._poll(), name="sqlstreams-poll")]
        self._hearing.join(self._wake)

    async def _enter_row(self) -> None:
        token = uuid4()
        entered = await self._database.query(
            statements.insert_instance(
                self._database.schema,
                token=token,
                hostname=socket.gethostname()[:255],
                pid=os.getpid(),
                library=library_version(),
                ttl=self._ttl,
            )
        )
        self._identity = Identity(entered[0].id, token)
        self._heartbeat = _Heartbeat(
            self._database.address, self._identity, ttl=self._ttl, presence=self, loop=asyncio.get_running_loop()
        )
        self._heartbeat.start()

    async def _exit(self) -> None:
        assert self._identity is not None
        assert self._heartbeat is not None
        identity, self._identity = self._identity, None
        self._heartbeat.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._hearing.leave(self._wake)
        # Without it the leases end by themselves, a lease's time later.
        with suppress(psycopg.Error, DatabaseUnavailable, NotInstalled, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._database.query(
                    statements.delete_instance(self._database.schema, instance_id=identity.id, token=identity.token)
                )

    def _wake(self, news: News) -> None:
        if news == RETRIES_DUE:
            self.poll_soon()
        for member in self._members:
            if news is None or member.stream_id == news:
                member.woken()

    async def _poll(self) -> None:
        pause = _POLL_FASTEST
        while True:
            try:
                found_any = await self._poll_once()
                pushed = self.listener is not None and self.listener.connected
                pause = _POLL_FASTEST if found_any and not pushed else min(pause * 2, _POLL_SLOWEST)
            except (psycopg.Error, DatabaseUnavailable) as error:
                pause = min(max(pause, 0.1) * 2, _POLL_SLOWEST)
                _log.warning("SQL0105 a poll failed, next one in %.2f s: %s", pause, error)
                self.doubt()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for may swallow a cancellation before Python 3.12
                    await self._poll_now.wait()
            self._poll_now.clear()

    async def _poll_once(self) -> bool:
        groups: dict[int, list[int]] = {}
        for member in self._members:
            groups.setdefault(member.stream_id, []).append(member.group_id)
        if not groups:
            return False
        asked = list(self._members)
        try:
            rows = await self._database.query_once(statements.poll(self._database.schema, groups=groups))
        except NotInstalled:
            rows = await self._poll_one_by_one(groups)
        found = {row.group_id: row for row in rows}
        for member in asked:
            member.polled(found.get(member.group_id))
        return any(row.fresh for row in rows)

    async def _poll_one_by_one(self, groups: dict[int, list[int]]) -> list[Polled]:
        # A stream was destroyed, and one statement for all fails: its groups get no answer, the others theirs.
        rows: list[Polled] = []
        for stream, group_ids in groups.items():
            with suppress(NotInstalled):
                rows += await self._database.query_once(
                    statements.poll(self._database.schema, groups={stream: group_ids})
                )
        return rows

    # The heartbeat's side

    def progress(self) -> list[Progress]:
        """Return the state of every range that is held; any thread may ask."""
        return [progress for member in list(self._members) for progress in member.progress()]

    def lost(self, tokens: list[UUID]) -> None:
        """Tell the consumptions which ranges are not ours any more."""
        for member in list(self._members):
            for token in tokens:
                member.lost(token)

    def doubt(self) -> None:
        """Tell the consumptions that the server may remember something else than they do."""
        for member in list(self._members):
            member.doubt()

    async def reenter(self) -> None:
        """Enter a new row after the old one was removed while this process was frozen."""
        async with self._changing:
            if self._identity is not None:
                await self._enter_row()


class _Heartbeat(threading.Thread):
    """Renews the process's row and checkpoints its ranges.

    On a thread and connection of its own, so that a blocked event loop does not lose the leases.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        *,
        ttl: float,
        presence: Presence,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(name="sqlstreams-heartbeat", daemon=True)
        self._address = address
        self._identity = identity
        self._ttl = ttl
        self._presence = presence
        self._loop = loop
        self._stopped = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None

    def stop(self) -> None:
        """End after the beat that may be under way."""
        self._stopped.set()

    def run(self) -> None:
        """Beat three times per lease; after a failure five times as often until it works again."""
        period = self._ttl / _BEATS_PER_LEASE
        pause = period
        while not self._stopped.wait(pause):
            try:
                self._beat()
                pause = period
            except psycopg.Error as error:
                pause = period / 5
                self._reconnect_after(error)
        if self._connection is not None:
            self._connection.close()

    def _beat(self) -> None:
        if self._connection is None:
            self._connection = psycopg.connect(self._address.conninfo, autocommit=True, prepare_threshold=None)
        with _answering_within(max(self._ttl / _BEATS_PER_LEASE, _SHORTEST_ANSWER), self._connection):
            self._renew(self._connection)

    def _renew(self, connection: psycopg.Connection[Any]) -> None:
        held = self._presence.progress()
        renewed = execute(
            connection,
            statements.renew_instance(
                self._address.schema, instance_id=self._identity.id, token=self._identity.token, ttl=self._ttl
            ),
        )
        if not renewed:
            self._tell(self._presence.lost, [progress.token for progress in held])
            self._tell(_start, self._presence.reenter)
            self.stop()
        elif held:
            self._checkpoint(connection, held)

    def _checkpoint(self, connection: psycopg.Connection[Any], held: list[Progress]) -> None:
        owned = execute(
            connection,
            statements.checkpoint(
                self._address.schema,
                instance_id=self._identity.id,
                **columns(held),
            ),
        )
        kept = {row.token for row in owned}
        if missing := [progress.token for progress in held if progress.token not in kept]:
            self._tell(self._presence.lost, missing)

    def _reconnect_after(self, error: psycopg.Error) -> None:
        _log.warning("SQL0105 a heartbeat failed and is repeated: %s", str(error).strip())
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._tell(self._presence.doubt)

    def _tell(self, function: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(function, *arguments)


@contextmanager
def _answering_within(seconds: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Break a connection that is still used after some seconds: a blocking call has no deadline of its own."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        timer = threading.Timer(seconds, _shut_down, [end])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _shut_down(end: socket.socket) -> None:
    with suppress(OSError):  # it was closed just now
        end.shutdown(socket.SHUT_RDWR)


_background: set[asyncio.Task[None]] = set()


def _start(function: Any) -> None:
    task = asyncio.ensure_future(function())
    _background.add(task)
    task.add_done_callback(_background.discard)
