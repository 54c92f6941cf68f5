"""The brokers that the tests publish to: what is asked of each, and servers of our own that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import aio_pika
import confluent_kafka
import nats
import pytest
import redis.asyncio
from aio_pika.abc import AbstractChannel
from msgspec import Struct
from nats.aio.client import Client

from sqlstreams.relay import Relay
from tests.chaos.proxy import Network
from tests.support import eventually

RABBITMQ = "127.0.0.1:5672"


class Received(Struct, frozen=True):
    """A message as it lies in a broker."""

    payload: bytes
    headers: Mapping[str, str]
    place: str = ""

    @property
    def key(self) -> str | None:
        return self.headers.get("sqlstreams-key")


class Broker(Protocol):
    """A place of this test alone in a running broker."""

    name: str
    to: str
    drops_duplicates: bool

    async def read(self, count: int) -> list[Received]:
        """Return all messages, in their order, as soon as there are `count`."""


class Nats:
    """A stream of JetStream with the subjects `name` and `name.>`."""

    name = "nats"
    drops_duplicates = True

    def __init__(self, place: str, *, subject: str) -> None:
        self.subject = subject
        self.place = place
        self.to = f"nats://{place}/{subject}"

    async def create(self) -> None:
        async with self._connected() as connection:
            await connection.jetstream().add_stream(name=self.subject, subjects=[self.subject, f"{self.subject}.>"])

    async def destroy(self) -> None:
        async with self._connected() as connection:
            await connection.jetstream().delete_stream(self.subject)

    async def read(self, count: int) -> list[Received]:
        async with self._connected() as connection:
            stream = connection.jetstream()

            async def is_there() -> bool:
                return bool((await stream.stream_info(self.subject)).state.messages >= count)

            await eventually(is_there)
            info = await stream.stream_info(self.subject)
            found = [await stream.get_msg(self.subject, seq=seq + 1) for seq in range(info.state.messages)]
            return [Received(each.data or b"", each.headers or {}) for each in found]

    async def subjects(self) -> list[str]:
        async with self._connected() as connection:
            stream = connection.jetstream()
            count = (await stream.stream_info(self.subject)).state.messages
            return [str((await stream.get_msg(self.subject, seq=seq + 1)).subject) for seq in range(count)]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        connection = await nats.connect(f"nats://{self.place}", allow_reconnect=False)
        try:
            yield connection
        finally:
            await connection.close()


class Redis:
    """A stream of Redis, and others whose names begin with its name."""

    name = "redis"
    drops_duplicates = False

    def __init__(self, place: str, *, stream: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(f"redis://{place}/0")
        self._stream = stream
        self.to = f"redis://{place}/0?stream={stream}"

    async def read(self, count: int) -> list[Received]:
        async def is_there() -> bool:
            return bool(await self._redis.xlen(self._stream) >= count)

        await eventually(is_there)
        entries: Any = await self._redis.xrange(self._stream)
        return [_received(fields) for _, fields in entries]

    async def occupy(self, suffix: str) -> None:
        """Have something that is no stream under a name."""
        await self._redis.set(f"{self._stream}-{suffix}", "taken")

    async def destroy(self) -> None:
        keys = [
            key
            async for key in self._redis.scan_iter(f"*{self._stream}*", count=10_000)
            if self._stream.encode() in key
        ]
        if keys:
            await self._redis.delete(*keys)
        await self.close()

    async def close(self) -> None:
        await self._redis.aclose()


def _received(fields: Mapping[bytes, bytes]) -> Received:
    told = {name.decode(): value for name, value in fields.items()}
    payload = told.pop("payload")
    return Received(payload, {name: value.decode() for name, value in told.items()})


class Rabbitmq:
    """A queue of RabbitMQ that is bound to an exchange of its own, with every routing key that begins with "to"."""

    name = "rabbitmq"
    drops_duplicates = False

    def __init__(self, place: str, *, exchange: str) -> None:
        self.place = place
        self.exchange = exchange
        self.to = f"amqp://guest:guest@{place}/?exchange={exchange}&routing_key=to.{{routing_key|none}}"
        self._found: list[Received] = []

    async def create(self) -> None:
        async with self._channel() as channel:
            exchange = await channel.declare_exchange(self.exchange, aio_pika.ExchangeType.TOPIC)
            queue = await channel.declare_queue(self.exchange)
            await queue.bind(exchange, "to.#")

    async def destroy(self) -> None:
        async with self._channel() as channel:
            await channel.queue_delete(self.exchange)
            await channel.exchange_delete(self.exchange)

    async def read(self, count: int) -> list[Received]:
        async with self._channel() as channel:
            queue = await channel.get_queue(self.exchange)

            async def is_there() -> bool:
                while (found := await queue.get(no_ack=True, fail=False)) is not None:
                    headers = {name: str(value) for name, value in found.headers.items()}
                    assert headers["sqlstreams-id"] == found.message_id
                    self._found.append(Received(found.body, headers))
                return len(self._found) >= count

            await eventually(is_there)
        return self._found

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        async with await aio_pika.connect(f"amqp://guest:guest@{RABBITMQ}/") as connection:
            yield await connection.channel()


class TcpNetwork(Network):
    """A network in front of a port, which can be cut as if the broker behind it were killed."""

    def __init__(self, port: int) -> None:
        super().__init__("host=127.0.0.1 port=5432")
        self._port = port

    @property
    def place(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    def kill(self) -> None:
        self.refuse()

    def start(self) -> None:
        self.heal()


class Killable(Protocol):
    """A broker that can be killed and started again, or one that looks so through a network."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class Kafka:
    """A topic of the brokers that the library brings for tests: their cluster lives within a producer."""

    name = "kafka"
    drops_duplicates = False

    def __init__(self, hosts: str, *, topic: str) -> None:
        self.hosts = hosts
        self.topic = topic
        self.to = f"kafka://{hosts}/{topic}"

    async def read(self, count: int) -> list[Received]:
        return await asyncio.to_thread(self._read, count)

    def _read(self, count: int) -> list[Received]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.hosts, "group.id": new_name()})
        try:
            partitions = consumer.list_topics(self.topic, timeout=10).topics[self.topic].partitions
            consumer.assign([confluent_kafka.TopicPartition(self.topic, each, 0) for each in partitions])
            found: list[Received] = []
            until = time.monotonic() + 20
            while (messages := consumer.consume(50, timeout=0.1)) or len(found) < count:
                assert time.monotonic() < until
                found += [_of_kafka(each) for each in messages]
            return found
        finally:
            consumer.close()


def _of_kafka(message: confluent_kafka.Message) -> Received:
    headers: Any = message.headers()
    received = Received(
        message.value() or b"", {name: value.decode() for name, value in headers}, str(message.partition())
    )
    assert message.key() == (None if received.key is None else received.key.encode())
    return received


@contextmanager
def kafka_brokers() -> Iterator[str]:
    """Run three brokers within this process, and return where they are."""
    cluster = confluent_kafka.Producer({"bootstrap.servers": "nowhere", "test.mock.num.brokers": 3})
    brokers = cluster.list_topics(timeout=10).brokers
    yield ",".join(f"{each.host}:{each.port}" for each in brokers.values())


class FrozenKafka:
    """Brokers in a process of their own, which is frozen instead of killed: they have nothing on disk."""

    _PROGRAM = (
        "import sys; from tests.relay.brokers import kafka_brokers\n"
        "with kafka_brokers() as hosts: print(hosts, flush=True); sys.stdin.read()"
    )

    def __init__(self) -> None:
        command = [sys.executable, "-c", self._PROGRAM]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.hosts = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def start(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Server:
    """A broker of our own, which can be killed and started again on the same port and directory."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not answers(self.port):
            assert time.monotonic() < until, f"{self._command[0]} did not start"
            assert self._process.poll() is None, f"{self._command[0]} ended at once"

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def own_server(program: str, *options: str) -> Iterator[Server]:
    """Run a broker on a port that is free, until the end of the block; `{port}` in the options becomes the port."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed, so there is no broker that may be killed")
    port = free_port()
    server = Server([path, *(each.format(port=port) for each in options)], port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def own_nats(directory: Path) -> Iterator[Server]:
    with own_server("nats-server", "-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", str(directory)) as server:
        yield server


@contextmanager
def own_redis(directory: Path) -> Iterator[Server]:
    durable = ("--dir", str(directory), "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    with own_server("redis-server", "--bind", "127.0.0.1", "--port", "{port}", *durable) as server:
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def new_name() -> str:
    return f"sqlstreams-test-{uuid4().hex[:12]}"


@asynccontextmanager
async def a_place(name: str) -> AsyncIterator[Broker]:
    """Make a place of this test alone in the broker that runs on this machine; skip the test when none does."""
    async with _PLACES[name]() as broker:
        yield broker


@asynccontextmanager
async def _in_nats() -> AsyncIterator[Broker]:
    if not answers(4222):
        pytest.skip("no NATS answers on 127.0.0.1:4222")
    broker = Nats("127.0.0.1:4222", subject=new_name())
    await broker.create()
    try:
        yield broker
    finally:
        await broker.destroy()


@asynccontextmanager
async def a_place_of_our_own(name: str, directory: Path) -> AsyncIterator[tuple[Killable, Broker]]:
    """Make a place in a broker that may be killed; skip the test when its program is not installed."""
    if name == "rabbitmq":
        async with behind_a_network() as (network, there):
            yield network, there
        return
    if name == "kafka":
        frozen = FrozenKafka()
        try:
            yield frozen, Kafka(frozen.hosts, topic="orders")
        finally:
            frozen.close()
        return
    with _OWN[name](directory) as server:
        if name == "nats":
            place = Nats(server.place, subject="orders")
            await place.create()
            yield server, place
        else:
            broker = Redis(server.place, stream="orders")
            try:
                yield server, broker
            finally:
                await broker.close()


@asynccontextmanager
async def _in_redis() -> AsyncIterator[Broker]:
    if not answers(6379):
        pytest.skip("no Redis answers on 127.0.0.1:6379")
    broker = Redis("127.0.0.1:6379", stream=new_name())
    try:
        yield broker
    finally:
        await broker.destroy()


@asynccontextmanager
async def _in_rabbitmq() -> AsyncIterator[Broker]:
    if not answers(5672):
        pytest.skip(f"no RabbitMQ answers on {RABBITMQ}")
    broker = Rabbitmq(RABBITMQ, exchange=new_name())
    await broker.create()
    try:
        yield broker
    finally:
        await broker.destroy()


@asynccontextmanager
async def _in_kafka() -> AsyncIterator[Broker]:
    with kafka_brokers() as hosts:
        yield Kafka(hosts, topic=new_name())


@asynccontextmanager
async def behind_a_network() -> AsyncIterator[tuple[TcpNetwork, Rabbitmq]]:
    """Make a place in the RabbitMQ of this machine, and a network in front of it."""
    async with a_place("rabbitmq") as broker:
        assert isinstance(broker, Rabbitmq)
        network = TcpNetwork(5672)
        await network.open()
        try:
            there = Rabbitmq(network.place, exchange=broker.exchange)
            yield network, there
        finally:
            await network.close()


_PLACES = {"nats": _in_nats, "redis": _in_redis, "rabbitmq": _in_rabbitmq, "kafka": _in_kafka}
_OWN = {"nats": own_nats, "redis": own_redis}
BROKERS = tuple(_PLACES)


async def has_published(relay: Relay, count: int) -> None:
    await eventually(lambda: relay.stats.published >= count)
