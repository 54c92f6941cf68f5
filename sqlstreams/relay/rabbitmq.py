"""Publishing to RabbitMQ, with aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Final
from urllib.parse import unquote, urlsplit

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractExchange
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelNotFoundEntity, ChannelPreconditionFailed
from aiormq.exceptions import DeliveryError, PublishError

from sqlstreams.errors import BrokerUnavailable, DestinationMissing, InvalidInput, PublishRefused
from sqlstreams.relay.destination import Address, Template
from sqlstreams.relay.publisher import Outcome, Outgoing

_LONGEST: Final = 255
_LONGEST_HEADER: Final = 128  # a longer name would be cut
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_CLOSING: Final = 2.0


def connect(address: Address, *, confirm_within: float) -> tuple[Template, RabbitmqPublisher]:
    """Return the template of the routing key, and a publisher."""
    if "," in address.hosts:
        raise InvalidInput("to", "must name one host, or an address in front of several")
    exchange, routing_key = address.take("exchange", ""), address.take("routing_key", "")
    if not exchange and not routing_key:
        raise InvalidInput("to", "must have an exchange, or the name of a queue as routing_key, or both")
    return Template(routing_key, check=_check_routing_key), RabbitmqPublisher(
        address, exchange=exchange, confirm_within=confirm_within
    )


def _check_routing_key(routing_key: str) -> str | None:
    return None if len(routing_key.encode()) <= _LONGEST else f"has more than {_LONGEST} bytes"


class RabbitmqPublisher:
    """Publishes persistent messages to one exchange, `mandatory`, on a channel in confirm mode."""

    batches: ClassVar[int] = 4

    def __init__(self, address: Address, *, exchange: str, confirm_within: float) -> None:
        place = urlsplit(f"//{address.hosts}")
        user, _, password = (address.credentials or "guest:guest").partition(":")
        self._host = place.hostname or ""
        self._port = place.port or _PORTS[address.scheme]
        self._is_tls = address.scheme == "amqps"
        self._user, self._password = unquote(user), unquote(password)
        self._virtual_host = address.path or "/"
        self._exchange_name = exchange
        self._confirm_within = confirm_within
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None
        self._one_by_one = 0
        self._alone = asyncio.Lock()

    async def open(self) -> None:
        """Connect, once: the relay decides when to try again."""
        try:
            async with asyncio.timeout(self._confirm_within):
                self._connection = await aio_pika.connect(
                    host=self._host,
                    port=self._port,
                    login=self._user,
                    password=self._password,
                    virtualhost=self._virtual_host,
                    ssl=self._is_tls,
                    client_properties={"connection_name": "sqlstreams relay"},
                )
                channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
                self._exchange = (
                    await channel.get_exchange(self._exchange_name, ensure=True)
                    if self._exchange_name
                    else channel.default_exchange
                )
        except ChannelNotFoundEntity as absent:
            raise BrokerUnavailable(f"RabbitMQ has no exchange {self._exchange_name!r}") from absent
        except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
            raise BrokerUnavailable(f"no connection to RabbitMQ: {_told(error)}") from error

    async def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            with suppress(*CONNECTION_EXCEPTIONS, TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await connection.close()

    async def publish(self, messages: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Send all, and wait for the confirms."""
        if self._one_by_one > 0:
            async with self._alone:
                return [await self._publish_alone(message) for message in messages]
        outcomes = await asyncio.gather(*(self._publish(message) for message in messages))
        closed = [each for each in outcomes if isinstance(each, ChannelPreconditionFailed)]
        # RabbitMQ closes the channel over one message and does not say which. They go alone until it is found.
        self._one_by_one += len(closed)
        return [
            BrokerUnavailable(_told(each)) if isinstance(each, ChannelPreconditionFailed) else each for each in outcomes
        ]

    async def _publish_alone(self, message: Outgoing) -> Outcome:
        outcome = await self._publish(message)
        if isinstance(outcome, ChannelPreconditionFailed):
            self._one_by_one = 0
            return PublishRefused(f"RabbitMQ refused the message: {_told(outcome)}")
        self._one_by_one -= outcome is None
        return outcome

    async def _publish(self, message: Outgoing) -> Outcome | ChannelPreconditionFailed:
        exchange = self._exchange
        if exchange is None:
            return BrokerUnavailable("the connection to RabbitMQ was closed")
        if any(len(name.encode()) > _LONGEST_HEADER for name in message.headers):
            return PublishRefused(f"a header's name has more than the {_LONGEST_HEADER} bytes that AMQP has for it")
        try:
            await exchange.publish(
                aio_pika.Message(
                    message.payload,
                    headers=dict(message.headers),
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=message.message_id,
                    timestamp=message.created_at,
                ),
                message.target,
                mandatory=True,
                timeout=self._confirm_within,
            )
        except PublishError:
            return DestinationMissing(f"no queue takes the routing key {message.target!r} of {self._exchange_name!r}")
        except DeliveryError:
            return DestinationMissing("RabbitMQ does not take the message: a queue is full, or has failed")
        except ChannelPreconditionFailed as closed:
            return closed
        except (TypeError, ValueError) as wrong:
            return PublishRefused(f"the message has no form in AMQP: {_told(wrong)}")
        except TimeoutError:
            return BrokerUnavailable(f"RabbitMQ was silent for {self._confirm_within:g} s")
        except (*CONNECTION_EXCEPTIONS, asyncio.CancelledError) as error:
            return _unless_we_are_stopped(error)
        return None


def _unless_we_are_stopped(error: BaseException) -> Outcome:
    # The library cancels what waits for a confirm when its connection breaks.
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    return BrokerUnavailable(f"RabbitMQ has not confirmed: {_told(error)}")


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__
