"""A stream with plain connections beside the library: whoever writes to the log by other means."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer, AsyncStream, meta
from tests.support import Note, eventually

Connection = psycopg.AsyncConnection[Any]


class Log:
    """One stream, one group of it, and what the group's handler has seen."""

    def __init__(self, url: str, client: AsyncClient, stream: AsyncStream[Note], stack: AsyncExitStack) -> None:
        self.url = url
        self.client = client
        self.stream = stream
        self.consumer: AsyncConsumer[Note] = stream.consumer("group")
        self.seen: list[int] = []
        self.table = ""
        self._stack = stack

    async def open(self) -> None:
        info = await self.stream.get()
        assert info is not None
        self.table = f"sqlstreams.message_log_{info.id}"
        await self.consumer.register()

    async def connect(self, url: str | None = None, *, application: str = "stranger") -> Connection:
        """Return a plain connection, with a transaction that begins at its first statement."""
        connection = await psycopg.AsyncConnection.connect(url or self.url, application_name=application)
        self._stack.push_async_callback(connection.close)
        return connection

    async def insert(self, connection: Connection, *, into: str | None = None) -> int:
        """Insert one message and leave the transaction open; return the id it took."""
        query = f"""insert into {into or self.table} (payload) values ('{{"text": "plain"}}') returning id"""
        cursor = await connection.execute(query.encode())
        (message_id,) = await cursor.fetchone() or (0,)
        return int(message_id)

    async def commit_one(self) -> int:
        """Append a message through the library."""
        return (await self.stream.producer().produce(Note("committed"))).id

    async def handle(self, note: Note) -> None:
        self.seen.append(meta().id)

    async def until_waiting(self, *, looks: int = 3) -> None:
        """Wait until the consumer stands at a hole and has looked at it a few times more."""
        await eventually(lambda: bool(self.consumer.stats.waiting_for))
        claims = self.consumer.stats.claims
        await eventually(lambda: self.consumer.stats.claims >= claims + looks)

    async def until_seen(self, ids: list[int], *, within: float = 5.0) -> None:
        """Wait until exactly these messages were handled, in this order."""
        await eventually(lambda: len(self.seen) >= len(ids), within=within)
        assert self.seen == ids


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[Log]:
    """A stream `notes` with a registered group that nobody consumes yet."""
    async with AsyncExitStack() as stack, AsyncClient(database_url) as client:
        log = Log(database_url, client, await client.stream("notes", Note).register(), stack)
        await log.open()
        yield log


@pytest.fixture
def two_phase(database_url: str) -> Iterator[None]:
    """Skip the test where the server keeps no prepared transactions; leave none behind."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        if connection.execute("show max_prepared_transactions").fetchone() == ("0",):
            pytest.skip("this server was started with max_prepared_transactions = 0")
        yield
        left = connection.execute("select gid from pg_prepared_xacts where database = current_database()").fetchall()
        for (gid,) in left:
            connection.execute(f"rollback prepared '{gid}'".encode())
