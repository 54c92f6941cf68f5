"""From the scheme of a URL to the module of its broker, whose library is imported only then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from sqlstreams.errors import ExtraMissing, InvalidInput
from sqlstreams.relay.destination import Address, Destination
from sqlstreams.relay.publisher import Publisher


class _Broker(Struct, frozen=True):
    """A broker's name, which is its module's and its extra's too, and what its library is called."""

    name: str
    library: str


_NATS: Final = _Broker("nats", "nats-py")
_RABBITMQ: Final = _Broker("rabbitmq", "aio-pika")
_REDIS: Final = _Broker("redis", "redis")
_KAFKA: Final = _Broker("kafka", "confluent-kafka")
SCHEMES: Final[Mapping[str, _Broker]] = {
    "nats": _NATS,
    "nats+tls": _NATS,
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "redis": _REDIS,
    "rediss": _REDIS,
    "kafka": _KAFKA,
}

Connect = Callable[..., tuple[Any, Publisher]]


def open_to(to: str, *, confirm_within: float) -> tuple[Destination, Publisher]:
    """Return what a URL says and a publisher for it, which has connected to nothing yet."""
    address = Address(to)
    broker = SCHEMES.get(address.scheme)
    if broker is None:
        raise InvalidInput("to", f"must begin with {', '.join(f'{each}://' for each in SCHEMES)}")
    try:
        module = import_module(f"sqlstreams.relay.{broker.name}")
    except ModuleNotFoundError as absent:
        raise ExtraMissing(
            f"a relay to {broker.name} needs the package {broker.library}: pip install 'sqlstreams[{broker.name}]'"
        ) from absent
    connect: Connect = module.connect
    template, publisher = connect(address, confirm_within=confirm_within)
    address.take_nothing_more()
    return Destination(broker.name, address.shown, template), publisher
