"""A stream's log as one client appends to it, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from psycopg import errors as pg

from sqlstreams import acts
from sqlstreams.errors import IdempotencyConflict, NotFound, NotInstalled
from sqlstreams.model import (
    Receipt,
    StreamInfo,
)
from sqlstreams.produce.append import LogRoom, append, append_within
from sqlstreams.produce.batch import Appendable, Appended, Batch, Encoded
from sqlstreams.produce.callers import driver_connection
from sqlstreams.produce.group_commit import GroupCommit
from sqlstreams.produce.idempotency import KeyedBatch
from sqlstreams.statements import Family, mark_keyed

if TYPE_CHECKING:
    from sqlstreams.client.client import Client


class Log:
    """A stream's log as one client appends to it."""

    def __init__(self, client: Client, info: StreamInfo, schema_version: int) -> None:
        self.info = info
        self.commits: GroupCommit[Receipt] = GroupCommit(self.commit, max_pending=client._max_pending)
        self._client = client
        with client._logs_lock:
            client._used_logs.add(self)
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

    def commit(self, messages: Sequence[Encoded]) -> list[Receipt | IdempotencyConflict]:
        """Append messages that share a commit; a conflict is the answer to one of them alone."""
        batch = self._eager(messages, together=False)
        return self.append(batch, asks_for_keys=any(message.asks_for_keys for message in messages)).answers

    def batch(self, messages: Iterable[Encoded], *, size: int, keyed: bool) -> Appendable:
        """Return `size` messages as a batch; without idempotency keys it is encoded while it is sent."""
        if keyed:
            return self._eager(list(messages), together=True)
        return Batch(self._family, messages, size=size, schema_version=self._schema_version, eager=False)

    def append(self, batch: Appendable, *, asks_for_keys: bool) -> Appended:
        """Append in a transaction of our own and wake the consumers."""
        self._allow_keys(asks_for_keys)
        try:
            appended = append(self._client._database, self._room, batch)
        except NotInstalled as error:
            raise self._gone() from error
        if appended.ids:
            self._client._notifier.notify(self._family.stream)
        return appended

    def append_within(self, connection: Any, messages: Sequence[Encoded]) -> list[Receipt]:
        """Append in the caller's transaction."""
        self._allow_keys(any(message.asks_for_keys for message in messages))
        batch = self._eager(messages, together=True)
        joined = driver_connection(connection)
        try:
            appended = append_within(joined, self._room, batch)
        except pg.UndefinedTable as error:
            raise self._gone() from error
        self._client._joined.get(joined, set()).add(self._family.stream)
        return appended.receipts

    def _eager(self, messages: Sequence[Encoded], *, together: bool) -> Appendable:
        if any(message.idempotency_key is not None for message in messages):
            return KeyedBatch(self._family, messages, schema_version=self._schema_version, together=together)
        return Batch(self._family, messages, size=len(messages), schema_version=self._schema_version, eager=True)

    def _allow_keys(self, asked_for: bool) -> None:
        # Committed before the first message that asks for it, so that no consumer meets one unprepared.
        if asked_for and not self._keys_allowed:
            self._client._database.query(mark_keyed(self._family.schema, stream_id=self._family.stream))
            self._keys_allowed = True

    def _gone(self) -> NotFound:
        self._client._logs.pop((self.info.name, self._schema_version), None)
        return NotFound("stream", self.info.name)
