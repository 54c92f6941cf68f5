"""The blocking client: the names of `sqlstreams.AsyncClient`, for programs without asyncio."""

from sqlstreams.client.client import Client
from sqlstreams.client.consumer import Consumer
from sqlstreams.client.deadline import Deadline
from sqlstreams.client.manager import Manager
from sqlstreams.client.producer import Producer
from sqlstreams.client.scheduler import Scheduler
from sqlstreams.client.stream import Stream
from sqlstreams.client.system import System

__all__ = ["Client", "Consumer", "Deadline", "Manager", "Producer", "Scheduler", "Stream", "System"]
