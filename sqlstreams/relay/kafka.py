"""Publishing to Kafka, with confluent-kafka."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from confluent_kafka import KafkaError, KafkaException, Producer

from sqlstreams.errors import BrokerUnavailable, DestinationMissing, InvalidInput, PublishRefused
from sqlstreams.relay.destination import Address, Template
from sqlstreams.relay.publisher import Outcome, Outgoing

_log = logging.getLogger("sqlstreams.relay")

_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_DEFAULT_PORT: Final = 9092
_POLL: Final = 0.1
_CLOSING: Final = 1.0
# How much later than it should the library may report a message that was not confirmed.
_SLACK: Final = 5.0
_REFUSED: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
})  # fmt: skip
_MISSING: Final = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
})  # fmt: skip

Answer = asyncio.Future[KafkaError | None]


def connect(address: Address, *, confirm_within: float) -> tuple[Template, KafkaPublisher]:
    """Return the template of the topic, and a publisher."""
    if not address.path:
        raise InvalidInput("to", "must name a topic, such as kafka://localhost/orders")
    milliseconds = int(confirm_within * 1_000)
    settings: dict[str, Any] = {
        "linger.ms": 0,  # messages come many at a time, and those of a key wait for each other
        "topic.metadata.propagation.max.ms": milliseconds // 2,
        **_login(address.credentials),
        **address.take_dotted(),
        "bootstrap.servers": address.hosts,
        "client.id": "sqlstreams-relay",
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": milliseconds,
    }
    return Template(address.path, check=_check_topic), KafkaPublisher(settings, confirm_within=confirm_within)


def _login(credentials: str) -> dict[str, str]:
    if not credentials:
        return {}
    user, _, password = credentials.partition(":")
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": unquote(user),
        "sasl.password": unquote(password),
    }


def _check_topic(topic: str) -> str | None:
    return None if _TOPIC.fullmatch(topic) else "is no topic of Kafka: 1 to 249 letters, digits, dots, _ and -"


class KafkaPublisher:
    """Publishes with an idempotent producer and waits until all in-sync replicas have each message."""

    batches: ClassVar[int] = 4

    def __init__(self, settings: Mapping[str, Any], *, confirm_within: float) -> None:
        self._settings = settings
        self._confirm_within = confirm_within
        self._connection: _Connection | None = None

    async def open(self) -> None:
        """Connect, and ask a broker who is there."""
        try:
            connection = _Connection(Producer(dict(self._settings), logger=_log))
        except KafkaException as wrong:
            raise InvalidInput("to", f"has a setting that is none: {_told(wrong)}") from None
        try:
            await asyncio.to_thread(connection.reach, self._confirm_within)
        except KafkaException as error:
            connection.end()
            raise BrokerUnavailable(f"no connection to Kafka: {_told(error)}") from error
        except asyncio.CancelledError:
            connection.end()
            raise
        self._connection = connection

    async def close(self) -> None:
        """Let go of the producer, and of what it has not sent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()
            await asyncio.to_thread(connection.join)

    async def publish(self, messages: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Send all, and wait for the delivery reports."""
        connection = self._connection
        if connection is None:
            return [BrokerUnavailable("the producer of Kafka was closed") for _ in messages]
        sent = [connection.send(message) for message in messages]
        if waiting := [each for each in sent if isinstance(each, asyncio.Future)]:
            await asyncio.wait(waiting, timeout=self._confirm_within + _SLACK)
        return [self._outcome(each) for each in sent]

    def _outcome(self, sent: Answer | Outcome) -> Outcome:
        if not isinstance(sent, asyncio.Future):
            return sent
        if not sent.done():
            return BrokerUnavailable(f"Kafka was silent for {self._confirm_within:g} s")
        return _explain(sent.result())


class _Connection:
    """A producer, and the thread in which it tells what became of messages."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._closing = threading.Event()
        self._reports: list[tuple[Answer, KafkaError | None]] = []
        self._thread = threading.Thread(target=self._listen, name="sqlstreams-relay-kafka", daemon=True)
        self._thread.start()

    def reach(self, seconds: float) -> None:
        """Wait until a broker answers; raise KafkaException when none does."""
        self._producer.list_topics(timeout=seconds)

    def send(self, message: Outgoing) -> Answer | Outcome:
        """Hand over a message; the report comes later."""
        answer: Answer = self._loop.create_future()
        try:
            self._producer.produce(
                message.target,
                message.payload,
                key=message.key,
                headers=[(name, value.encode()) for name, value in message.headers.items()],
                on_delivery=partial(self._delivered, answer),
            )
        except BufferError as full:
            return BrokerUnavailable(f"Kafka is slower than the relay: {full}")
        except KafkaException as error:
            return _explain(error.args[0])
        return answer

    def end(self) -> None:
        """Have the thread drop what was not sent, report that, and end."""
        self._closing.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _delivered(self, answer: Answer, error: KafkaError | None, _: object) -> None:
        self._reports.append((answer, error))

    def _listen(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(_POLL)
            self._tell()
        self._producer.purge()
        until = time.monotonic() + _CLOSING
        while len(self._producer) and time.monotonic() < until:
            self._producer.poll(_POLL)
        self._tell()

    def _tell(self) -> None:
        if self._reports and not self._loop.is_closed():
            reports, self._reports = self._reports, []
            self._loop.call_soon_threadsafe(_pass_on, reports)


def _pass_on(reports: Sequence[tuple[Answer, KafkaError | None]]) -> None:
    for answer, error in reports:
        if not answer.done():
            answer.set_result(error)


def _explain(error: KafkaError | None) -> Outcome:
    if error is None:
        return None
    code = error.code()
    if code in _REFUSED:
        return PublishRefused(f"Kafka refused the message: {error.str()}")
    if code in _MISSING:
        return DestinationMissing(f"Kafka does not have the topic for us: {error.str()}")
    return BrokerUnavailable(f"Kafka has not confirmed: {error.str()}")


def _told(error: KafkaException) -> str:
    found = error.args[0]
    return found.str() if isinstance(found, KafkaError) else str(error)
