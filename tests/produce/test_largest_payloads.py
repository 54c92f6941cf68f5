"""The largest payload that a stream takes, after another process has declared another one."""

from __future__ import annotations

import pytest

from sqlstreams import AsyncClient, Client, InvalidInput
from tests.produce.log import stored
from tests.support import Note

LARGE = Note("x" * 100)


async def test_a_payload_is_refused_only_after_the_stream_was_read_again(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url) as other:
        await client.stream("notes", Note).register(max_payload=50)
        producer = await client.stream("notes", Note).producer().register()
        with pytest.raises(InvalidInput, match="payload must have at most 50 bytes as JSON, got 111"):
            await producer.produce(LARGE)
        with pytest.raises(InvalidInput, match=r"messages\[1\].payload must have at most 50 bytes"):
            await producer.produce_many([Note("a"), LARGE])
        await other.stream("notes", Note).register(max_payload=200)
        await producer.produce_many([Note("b"), LARGE])
        await producer.produce(LARGE)
    assert len(stored(database_url)) == 3


def test_a_blocking_producer_reads_the_stream_again_too(database_url: str) -> None:
    with Client(database_url) as client, Client(database_url) as other:
        client.stream("notes", Note).register(max_payload=50)
        producer = client.stream("notes", Note).producer().register()
        with pytest.raises(InvalidInput, match="at most 50 bytes"):
            producer.produce(LARGE)
        other.stream("notes", Note).register(max_payload=200)
        producer.produce(LARGE)
        other.stream("notes", Note).register(max_payload=50)
        other.stream("notes", Note).register(max_payload=300)
        producer.produce_many([Note("y" * 250)])
    assert len(stored(database_url)) == 2
