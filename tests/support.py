"""Waiting with a deadline, and payloads that several tests share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from msgspec import Struct

from sqlstreams import AsyncConsumer


class Note(Struct, frozen=True):
    """A small payload."""

    text: str


async def eventually(is_so: Callable[[], bool | Awaitable[bool]], *, within: float = 20.0) -> None:
    """Wait until a condition holds; fail after `within` seconds."""
    until = time.monotonic() + within
    while True:
        answer = is_so()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        assert time.monotonic() < until, f"this did not come true within {within} s"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def consuming(
    consumer: AsyncConsumer[Any], handler: Callable[..., Any], **options: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """Run consume() beside the block, and cancel it at the end of the block."""
    task = asyncio.create_task(consumer.consume(handler, signals=False, **options))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def waits_for_a_lock(url: str) -> bool:
    """Say whether anybody in a database waits for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        return bool(await cursor.fetchall())
