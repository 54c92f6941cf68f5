"""A stream's log as one client appends to it, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from psycopg import errors as pg

from sqlstreams import acts
from sqlstreams.errors import NotFound, NotInstalled
from sqlstreams.model import (
    StreamInfo,
)
from sqlstreams.produce.append import LogRoom, append, append_within
from sqlstreams.produce.batch import Batch, Encoded
from sqlstreams.produce.callers import driver_connection
from sqlstreams.produce.group_commit import GroupCommit
from sqlstreams.statements import Family, mark_keyed

if TYPE_CHECKING:
    from sqlstreams.client.client import Client


class Log:
    """A stream's log as one client appends to it."""

    def __init__(self, client: Client, info: StreamInfo, schema_version: int) -> None:
        self.info = info
        self.commits = GroupCommit(self.commit, max_pending=client._max_pending)
        self._client = client
        self._family = Family(client._address.schema, info.id)
        self._room = LogRoom(self._family, info.partition_rows)
        self._schema_version = schema_version
        self._keys_allowed = False

    def reread(self) -> bool:
        """Read the stream's options again; say whether it takes larger payloads now than we knew."""
        known, name = self.info.max_payload, self.info.name
        info = self._client._run(lambda: acts.get_stream(self._family.schema, name=name))
        if info.id == self.info.id:
            self.info = info
        return self.info.max_payload > known

    def commit(self, messages: Sequence[Encoded]) -> list[int]:
        """Append messages that share a commit."""
        batch = Batch(self._family, messages, size=len(messages), schema_version=self._schema_version, eager=True)
        return self.append(batch, asks_for_keys=any(message.asks_for_keys for message in messages))

    def batch(self, messages: Iterable[Encoded], *, size: int) -> Batch:
        """Return `size` messages as a batch that is encoded while it is sent."""
        return Batch(self._family, messages, size=size, schema_version=self._schema_version, eager=False)

    def append(self, batch: Batch, *, asks_for_keys: bool) -> list[int]:
        """Append in a transaction of our own and wake the consumers."""
        self._allow_keys(asks_for_keys)
        try:
            ids = append(self._client._database, self._room, batch)
        except NotInstalled as error:
            raise self._gone() from error
        self._client._notifier.notify(self._family.stream)
        return ids

    def append_within(self, connection: Any, messages: Sequence[Encoded]) -> list[int]:
        """Append in the caller's transaction."""
        self._allow_keys(any(message.asks_for_keys for message in messages))
        batch = Batch(self._family, messages, size=len(messages), schema_version=self._schema_version, eager=True)
        joined = driver_connection(connection)
        try:
            ids = append_within(joined, self._room, batch)
        except pg.UndefinedTable as error:
            raise self._gone() from error
        self._client._joined.get(joined, set()).add(self._family.stream)
        return ids

    def _allow_keys(self, asked_for: bool) -> None:
        # Committed before the first message that asks for it, so that no consumer meets one unprepared.
        if asked_for and not self._keys_allowed:
            self._client._database.query(mark_keyed(self._family.schema, stream_id=self._family.stream))
            self._keys_allowed = True

    def _gone(self) -> NotFound:
        self._client._logs.pop((self.info.name, self._schema_version), None)
        return NotFound("stream", self.info.name)
