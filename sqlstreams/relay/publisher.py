"""What a broker's module offers the relay: a connection that publishes messages and waits for their confirms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Protocol

from msgspec import Struct

from sqlstreams.errors import BrokerUnavailable, PublishRefused

Outcome = BrokerUnavailable | PublishRefused | None
"""What became of one message: None when the broker has confirmed it, otherwise why it has not."""


class Outgoing(Struct, frozen=True):
    """A message on its way: where to, and what travels. `message_id` is the same each time it is published."""

    message_id: str
    target: str
    payload: bytes
    key: str | None
    headers: Mapping[str, str]
    created_at: datetime


class Publisher(Protocol):
    """A connection to one broker."""

    batches: ClassVar[int]
    """How many calls of `publish` may be under way at a time."""

    async def open(self) -> None:
        """Connect; raise `BrokerUnavailable` when that cannot be done now."""

    async def publish(self, messages: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Hand over messages in their order, wait for the confirms and return what became of each."""

    async def close(self) -> None:
        """Let go of the connection, whatever its state; it may be opened again."""
