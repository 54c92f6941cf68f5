"""Publishing to Redis Streams, with redis-py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, ClassVar, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from sqlstreams.errors import BrokerUnavailable, DestinationMissing, InvalidInput, PublishRefused
from sqlstreams.relay.destination import Address, Template
from sqlstreams.relay.publisher import Outcome, Outgoing

_LONGEST: Final = 512
_YEAR: Final = 31_536_000
# The codes of states that pass: too few replicas, and a disk that cannot be written.
_PASSING: Final = ("NOREPLICAS", "MISCONF")

# The entry before its mark: what fails in between is a duplicate, the other way about it would be a loss.
_ADD_ONCE: Final = """
if redis.call('exists', KEYS[2]) == 1 then return redis.call('get', KEYS[2]) end
local id = redis.call('xadd', KEYS[1], unpack(ARGV, 2))
redis.call('set', KEYS[2], id, 'ex', ARGV[1])
return id
"""


def connect(address: Address, *, confirm_within: float) -> tuple[Template, RedisPublisher]:
    """Return the template of the stream's name, and a publisher."""
    if not re.fullmatch(r"[0-9]{0,5}", address.path):
        raise InvalidInput("to", "must have the number of a database as its path, such as redis://localhost/0?stream=…")
    if not (stream := address.take("stream", "")):
        raise InvalidInput("to", "must name a stream, such as redis://localhost/0?stream=orders")
    login = f"{address.credentials}@" if address.credentials else ""
    publisher = RedisPublisher(
        f"{address.scheme}://{login}{address.hosts}/{address.path}",
        confirm_within=confirm_within,
        most_entries=address.take_number("maxlen", high=10**15),
        replicas=address.take_number("replicas", high=1_000),
        mark_seconds=address.take_number("deduplicate", high=_YEAR),
    )
    return Template(stream, check=_check_stream), publisher


def _check_stream(stream: str) -> str | None:
    return None if 0 < len(stream.encode()) <= _LONGEST else f"is no name of 1 to {_LONGEST} bytes"


class RedisPublisher:
    """Publishes by XADD, many in one go.

    With `mark_seconds` each message leaves a mark beside its stream for so long, and is not added again while that
    is there. With `replicas` an entry counts when so many replicas have it, and `most_entries` trims about there.
    """

    batches: ClassVar[int] = 1  # a second one would overtake on a connection of its own

    def __init__(self, url: str, *, confirm_within: float, most_entries: int, replicas: int, mark_seconds: int) -> None:
        self._url = url
        self._confirm_within = confirm_within
        self._trim = ["MAXLEN", "~", most_entries] if most_entries else []
        self._replicas = replicas
        self._mark_seconds = mark_seconds
        self._redis: Redis | None = None

    async def open(self) -> None:
        """Connect, once: the relay decides when to try again."""
        try:
            self._redis = Redis.from_url(
                self._url,
                socket_timeout=self._confirm_within,
                socket_connect_timeout=self._confirm_within,
                retry=Retry(NoBackoff(), 0),
                max_connections=1,
            )
            await self._redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"no connection to Redis: {error}") from error

    async def close(self) -> None:
        """Let go of the connection."""
        redis, self._redis = self._redis, None
        if redis is not None:
            with suppress(RedisError, OSError, TimeoutError):
                await redis.aclose()

    async def publish(self, messages: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Send all in one go, and read the answers."""
        if self._redis is None:
            return [BrokerUnavailable("the connection to Redis was closed") for _ in messages]
        pipeline = self._redis.pipeline(transaction=False)
        for message in messages:
            self._add(pipeline, message)
        if self._replicas:
            pipeline.execute_command("WAIT", self._replicas, int(self._confirm_within * 500))
        try:
            answers = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError, TimeoutError) as error:
            return [BrokerUnavailable(f"Redis has not confirmed: {error}") for _ in messages]
        reached = answers.pop() if self._replicas else 0
        if not isinstance(reached, int) or reached < self._replicas:
            what = f"{reached} of {self._replicas} replicas have the messages"
            return [_outcome(each) or BrokerUnavailable(what) for each in answers]
        return [_outcome(each) for each in answers]

    def _add(self, pipeline: Pipeline, message: Outgoing) -> None:
        fields: dict[str, Any] = {**message.headers, "payload": message.payload}
        entry = [*self._trim, "*", *chain.from_iterable(fields.items())]
        if self._mark_seconds:
            mark = f"{{{message.target}}}:{message.message_id}"
            pipeline.execute_command("EVAL", _ADD_ONCE, 2, message.target, mark, self._mark_seconds, *entry)
        else:
            pipeline.execute_command("XADD", message.target, *entry)


def _outcome(answer: object) -> Outcome:
    match answer:
        case OutOfMemoryError() | ReadOnlyError() | ClusterDownError():
            return BrokerUnavailable(f"Redis takes nothing now: {answer}")
        case AskError() | NoPermissionError():
            return DestinationMissing(f"Redis does not have the stream for us: {answer}")
        case ResponseError() if str(answer).startswith(_PASSING):
            return BrokerUnavailable(f"Redis takes nothing now: {answer}")
        case ResponseError() if str(answer).startswith("WRONGTYPE"):
            return DestinationMissing(f"Redis has something else under the name: {answer}")
        case ResponseError():
            return PublishRefused(f"Redis refused the message: {answer}")
        case Exception():
            return BrokerUnavailable(f"Redis has not confirmed: {answer}")
        case _:
            return None
