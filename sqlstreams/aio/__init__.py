"""The client for asyncio. `sqlstreams.Client` has the same names, blocking."""

from sqlstreams.aio.client import AsyncClient
from sqlstreams.aio.consumer import AsyncConsumer
from sqlstreams.aio.deadline import AsyncDeadline
from sqlstreams.aio.manager import AsyncManager
from sqlstreams.aio.producer import AsyncProducer
from sqlstreams.aio.scheduler import AsyncScheduler
from sqlstreams.aio.stream import AsyncStream
from sqlstreams.aio.system import AsyncSystem

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeadline",
    "AsyncManager",
    "AsyncProducer",
    "AsyncScheduler",
    "AsyncStream",
    "AsyncSystem",
]
