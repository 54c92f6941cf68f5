"""Dead letters as the tests make and see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from sqlstreams import AsyncClient, AsyncConsumer, Message
from tests.support import Note, consuming, eventually


async def group_of(client: AsyncClient, notes: Sequence[tuple[str | None, str]], **options: Any) -> AsyncConsumer[Note]:
    """Return a group without retries, and a stream with these keys and texts: their ids count from 1."""
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(**{"max_retries": 0, **options})
    await stream.producer().produce_many([Message(Note(text), key=key) for key, text in notes])
    return group


async def let_die(group: AsyncConsumer[Note], count: int, reason: Callable[[Note], Exception]) -> None:
    """Have so many messages of the group die."""

    async def handle(note: Note) -> None:
        raise reason(note)

    async with consuming(group, handle, concurrency=100):
        await eventually(lambda: group.stats.dead >= count, within=60)


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    """Ask the database something directly."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []
