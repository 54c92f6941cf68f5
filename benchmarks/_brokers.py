"""The brokers of this machine: a place in each for one measurement, and the least that its library needs to publish."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from uuid import uuid4

import aio_pika
import confluent_kafka
import nats
import redis.asyncio
from msgspec import Struct

AT_A_TIME = 500
"""How many messages wait for their confirms at a time, as in a relay."""


class Ground(Struct, frozen=True):
    """Where to publish: the URL of a relay, and a bare publisher that returns when all is confirmed."""

    to: str
    publish: Callable[[Sequence[bytes]], Awaitable[None]]


@asynccontextmanager
async def _nats() -> AsyncIterator[Ground]:
    connection = await nats.connect("nats://127.0.0.1:4222")
    stream, subject = connection.jetstream(publish_async_max_pending=AT_A_TIME), _name()
    await stream.add_stream(name=subject, subjects=[subject])

    async def publish(payloads: Sequence[bytes]) -> None:
        ids = count()
        for some in _parts(payloads):
            acks = [
                await stream.publish_async(subject, each, headers={"Nats-Msg-Id": f"{subject}-{next(ids)}"})
                for each in some
            ]
            await asyncio.gather(*acks)

    try:
        yield Ground(f"nats://127.0.0.1:4222/{subject}", publish)
    finally:
        await stream.delete_stream(subject)
        await connection.close()


@asynccontextmanager
async def _rabbitmq() -> AsyncIterator[Ground]:
    async with await aio_pika.connect("amqp://guest:guest@127.0.0.1:5672/") as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        queue = await channel.declare_queue(_name(), durable=True)

        async def publish(payloads: Sequence[bytes]) -> None:
            for some in _parts(payloads):
                persistent = aio_pika.DeliveryMode.PERSISTENT
                messages = [aio_pika.Message(each, delivery_mode=persistent) for each in some]
                await asyncio.gather(*(channel.default_exchange.publish(each, queue.name) for each in messages))

        try:
            yield Ground(f"amqp://guest:guest@127.0.0.1:5672/?routing_key={queue.name}", publish)
        finally:
            await queue.delete(if_unused=False, if_empty=False)


@asynccontextmanager
async def _redis() -> AsyncIterator[Ground]:
    async with redis.asyncio.Redis.from_url("redis://127.0.0.1:6379/0") as connection:
        stream = _name()

        async def publish(payloads: Sequence[bytes]) -> None:
            for some in _parts(payloads):
                pipeline = connection.pipeline(transaction=False)
                for each in some:
                    pipeline.xadd(stream, {"payload": each})
                await pipeline.execute()

        try:
            yield Ground(f"redis://127.0.0.1:6379/0?stream={stream}", publish)
        finally:
            await connection.delete(stream)


@asynccontextmanager
async def _kafka() -> AsyncIterator[Ground]:
    cluster = confluent_kafka.Producer({"bootstrap.servers": "nowhere", "test.mock.num.brokers": 3, "log_level": 3})
    brokers = cluster.list_topics(timeout=10).brokers.values()
    hosts, topic = ",".join(f"{each.host}:{each.port}" for each in brokers), _name()

    async def publish(payloads: Sequence[bytes]) -> None:
        settings = {"bootstrap.servers": hosts, "enable.idempotence": True, "acks": "all", "linger.ms": 0}
        producer = confluent_kafka.Producer(settings)
        for some in _parts(payloads):
            for each in some:
                producer.produce(topic, each)
            producer.flush()

    yield Ground(f"kafka://{hosts}/{topic}", publish)


BROKERS: dict[str, tuple[int, Callable[[], AbstractAsyncContextManager[Ground]]]] = {
    "NATS": (4222, _nats),
    "RabbitMQ": (5672, _rabbitmq),
    "Redis": (6379, _redis),
    "Kafka": (0, _kafka),  # the brokers that its library brings for tests, within the process that publishes
}


def present() -> list[str]:
    """Return the names of the brokers that answer here."""
    return [name for name, (port, _) in BROKERS.items() if port == 0 or _answers(port)]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _name() -> str:
    return f"sqlstreams-benchmark-{uuid4().hex[:12]}"


def _parts(payloads: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (payloads[first : first + AT_A_TIME] for first in range(0, len(payloads), AT_A_TIME))
