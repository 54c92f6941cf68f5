"""Publishing to NATS JetStream, with nats-py."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import nats
from nats.aio.client import Client
from nats.errors import BadHeaderError, BadSubjectError, Error, MaxPayloadError
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from sqlstreams.errors import BrokerUnavailable, DestinationMissing, InvalidInput, PublishRefused
from sqlstreams.relay.destination import Address, Template
from sqlstreams.relay.publisher import Outcome, Outgoing

_TOKEN: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_LONGEST: Final = 512
_DEFAULT_PORT: Final = 4222
# What a stream says that has reached one of its limits (and discards the new), or is sealed.
_FULL: Final = frozenset({10047, 10054, 10077, 10109})


def connect(address: Address, *, confirm_within: float) -> tuple[Template, NatsPublisher]:
    """Return the template of the subject, and a publisher."""
    if not address.path:
        raise InvalidInput("to", "must name a subject, such as nats://localhost/orders.{routing_key}")
    scheme = "tls" if address.scheme == "nats+tls" else "nats"
    login = f"{address.credentials}@" if address.credentials else ""
    servers = [f"{scheme}://{login}{host}" for host in address.hosts.split(",")]
    return Template(address.path, check=_check_subject), NatsPublisher(servers, confirm_within=confirm_within)


def _check_subject(subject: str) -> str | None:
    if len(subject.encode()) > _LONGEST or not _TOKEN.fullmatch(subject):
        return f"is no subject of NATS: words of up to {_LONGEST} bytes in all, joined by dots, without spaces, * and >"
    return None


class NatsPublisher:
    """Publishes with `Nats-Msg-Id`, by which the stream drops duplicates within its window, and waits for the acks."""

    batches: ClassVar[int] = 4

    def __init__(self, servers: list[str], *, confirm_within: float) -> None:
        self._servers = servers
        self._confirm_within = confirm_within
        self._connection: Client | None = None
        self._stream: JetStreamContext | None = None
        self._closed = asyncio.Event()
        self._reason = ""
        self._in_order = asyncio.Lock()

    async def open(self) -> None:
        """Connect, once: the relay decides when to try again."""
        self._closed = closed = asyncio.Event()

        async def end() -> None:
            closed.set()

        self._reason = ""
        try:
            async with asyncio.timeout(self._confirm_within):
                self._connection = await nats.connect(
                    self._servers,
                    name="sqlstreams relay",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    closed_cb=end,
                    error_cb=self._remember,
                    ping_interval=20,
                    max_outstanding_pings=2,
                )
        except (Error, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"no connection to NATS: {self._reason or _told(error)}") from error
        self._stream = self._connection.jetstream(timeout=self._confirm_within, publish_async_max_pending=1_000_000)

    async def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection, self._stream = self._connection, None, None
        if connection is not None:
            with suppress(Error, OSError, TimeoutError):
                await connection.close()

    async def publish(self, messages: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Send all, then wait for the acks."""
        async with self._in_order:
            sent = [await self._send(message) for message in messages]
        waiting = [each for each in sent if isinstance(each, asyncio.Future)]
        await self._wait(waiting)
        silent = {message.target for each, message in zip(sent, messages, strict=True) if _has_no_stream(each)}
        reasons = {subject: await self._explain_silence(subject) for subject in silent}
        return [
            reasons[message.target] if _has_no_stream(each) else self._outcome(each)
            for each, message in zip(sent, messages, strict=True)
        ]

    async def _send(self, message: Outgoing) -> asyncio.Future[PubAck] | Outcome:
        stream, connection = self._stream, self._connection
        if stream is None or connection is None:
            return BrokerUnavailable("the connection to NATS was closed")
        headers = _headers(message)
        size = len(message.payload) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items()) + 12
        if size > connection.max_payload:
            return PublishRefused(f"the message has {size} bytes with its headers, NATS takes {connection.max_payload}")
        try:
            return await stream.publish_async(message.target, message.payload, headers=headers)
        except (BadHeaderError, BadSubjectError, MaxPayloadError) as error:
            return PublishRefused(f"NATS does not take the message: {_told(error)}")
        except (Error, OSError) as error:
            return BrokerUnavailable(f"NATS could not be sent to: {_told(error)}")

    async def _wait(self, acks: list[asyncio.Future[PubAck]]) -> None:
        if not acks:
            return
        closed: asyncio.Future[Any] = asyncio.create_task(self._closed.wait())
        arrived: asyncio.Future[Any] = asyncio.gather(*acks, return_exceptions=True)
        try:
            await asyncio.wait([closed, arrived], timeout=self._confirm_within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            arrived.cancel()
            await asyncio.gather(closed, arrived, return_exceptions=True)

    def _outcome(self, sent: asyncio.Future[PubAck] | Outcome) -> Outcome:
        if not isinstance(sent, asyncio.Future):
            return sent
        if sent.cancelled():
            what = "closed the connection" if self._closed.is_set() else f"was silent for {self._confirm_within:g} s"
            return BrokerUnavailable(f"NATS {what} before it confirmed a message{self._reason and ': ' + self._reason}")
        match sent.exception():
            case None:
                return None
            case ServiceUnavailableError() as error:
                return BrokerUnavailable(f"JetStream is not available: {_told(error)}")
            case APIError(err_code=code) as error if code in _FULL:
                return DestinationMissing(f"the stream takes nothing more: {_told(error)}")
            case error:
                return PublishRefused(f"JetStream refused the message: {_told(error)}")

    async def _explain_silence(self, subject: str) -> Outcome:
        # No stream listens to the subject, or the one that does has no leader at the moment.
        if self._stream is None:
            return BrokerUnavailable("the connection to NATS was closed")
        try:
            name = await self._stream.find_stream_name_by_subject(subject)
        except NotFoundError:
            return DestinationMissing(f"no stream of JetStream takes the subject {subject!r}")
        except (Error, OSError, TimeoutError) as error:
            return BrokerUnavailable(f"JetStream does not answer: {_told(error)}")
        return BrokerUnavailable(f"the stream {name!r} of JetStream does not answer")

    async def _remember(self, error: Exception) -> None:
        self._reason = _told(error)


def _has_no_stream(sent: asyncio.Future[PubAck] | Outcome) -> bool:
    return (
        isinstance(sent, asyncio.Future)
        and not sent.cancelled()
        and isinstance(sent.exception(), NoStreamResponseError)
    )


def _headers(message: Outgoing) -> dict[str, str]:
    # Those that begin with Nats- are orders to the server.
    headers = {name: value for name, value in message.headers.items() if not name.lower().startswith("nats-")}
    return headers | {"Nats-Msg-Id": message.message_id}


def _told(error: BaseException | None) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
