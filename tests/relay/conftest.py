"""A client, a stream in its database, and relays that run beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from sqlstreams import AsyncClient, AsyncStream, RawPayload
from sqlstreams.relay import Relay
from tests.relay.brokers import BROKERS, Broker, a_place


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database_url) as client:
        yield client


@pytest.fixture
async def orders(client: AsyncClient) -> AsyncStream[RawPayload]:
    return await client.stream("orders").register()


@pytest.fixture(params=BROKERS)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    async with a_place(request.param) as broker:
        yield broker


@asynccontextmanager
async def relaying(relay: Relay, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Run a relay beside the block, and cancel it at the end of the block."""
    task = asyncio.create_task(relay.run(signals=False, **options))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
