"""Handles on deadlines, for asyncio."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlstreams import acts
from sqlstreams.codec import Codec
from sqlstreams.errors import InvalidInput
from sqlstreams.manager import appending, moving
from sqlstreams.model import DeadlineEdit, DeadlineInfo, DeadlineStatus, RawPayload, Replayed
from sqlstreams.names import check_name
from sqlstreams.options import (
    DEADLINE_MODES,
    DeadlineOptions,
    check_choice,
    check_columns,
    check_integer,
    check_only,
    check_time,
    check_value,
)
from sqlstreams.produce.append import aact_within
from sqlstreams.produce.callers import async_driver_connection
from sqlstreams.statements import Act, StoredDeadline

if TYPE_CHECKING:
    from sqlstreams.aio.client import AsyncClient

ResultT = TypeVar("ResultT")

_log = logging.getLogger("sqlstreams.deadlines")


class AsyncDeadline:
    """A handle on a deadline: which rows of a table come due, and where a message is produced for each."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = check_name("deadline", name)
        self._client = client
        self._schema = client._address.schema

    async def register(
        self,
        stream: str,
        payload_type: Any = RawPayload,
        *,
        table: str,
        key: str,
        deadline: str,
        state: str,
        from_state: Any,
        to_state: Any,
        batch: int = 200,
        columns: Iterable[str] | None = None,
        mode: str = "active",
        only: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Self:
        """Declare the deadline and return this handle. The newest declaration wins; the same again writes nothing.

        A row of `table` is due when its column `state` has `from_state` and its column `deadline`, a timestamp with
        time zone, is not in the future. The manager gives it `to_state` and produces a message with it to `stream`,
        both in one transaction, up to `batch` rows at a time. The message has the value of the column `key` as its key,
        the deadline as `meta().scheduled_at`, and as its payload the row as JSON: its `columns`, or all. A row that
        somebody else has locked is left to him and looked at again.

        `table` is a name as in SQL, by the search path of this connection where it names no schema; columns are named
        letter by letter. `mode` ("active", or "observe" to only look) and `only` (columns, and what they must be) say
        where a new deadline begins: of one that exists only `observe` and `activate` change them.

        With `connection=` the declaration joins that connection's transaction, as of `produce`. Raises `InvalidInput`
        for what cannot be, `PayloadShapeChanged` for a type of another shape than the stream's, and `NotFound` without
        the stream.
        """
        check_name("stream", stream)
        check_choice("mode", mode, DEADLINE_MODES)
        narrowed = check_only("only", only)
        options = DeadlineOptions(
            table=table,
            key=key,
            deadline=deadline,
            state=state,
            from_state=check_value("from_state", from_state),
            to_state=check_value("to_state", to_state),
            batch=batch,
            columns=check_columns("columns", columns),
        )
        codec: Codec[Any] = Codec(payload_type)
        registered = await self._run_within(
            connection,
            lambda: acts.register_deadline(
                self._schema,
                name=self.name,
                stream=stream,
                codec=codec,
                options=options,
                mode=mode,
                only=narrowed,
            ),
        )
        if registered.warning is not None:
            _log.warning("SQL0144 deadline %s: %s", self.name, registered.warning)
        return self

    async def get(self) -> DeadlineInfo | None:
        """Return the deadline as it is registered, or None."""
        found = await self._client._find(self._get)
        return None if found is None else found.info

    async def status(self) -> DeadlineStatus:
        """Return how the deadline fares, and measure what is due now."""
        return await self._client._run(lambda: acts.deadline_status(self._schema, name=self.name))

    async def observe(self) -> None:
        """Have the deadline only look: nothing is moved until `activate`. A batch that is under way is finished."""
        await self._client._run(lambda: acts.observe_deadline(self._schema, name=self.name))

    async def activate(self, *, only: Mapping[str, Any] | None = None) -> None:
        """Have the deadline move what is due: all rows, or those whose columns have the values in `only`."""
        narrowed = check_only("only", only)
        await self._client._run(lambda: acts.activate_deadline(self._schema, name=self.name, only=narrowed))

    async def suspend(self) -> None:
        """Stop the deadline. The rows keep their state and stay due. A batch that is under way is finished."""
        await self._client._run(lambda: acts.suspend_deadline(self._schema, name=self.name))

    async def unsuspend(self) -> None:
        """Let the deadline go on, with whatever has come due meanwhile."""
        await self._client._run(lambda: acts.unsuspend_deadline(self._schema, name=self.name))

    async def replay(self, start: datetime, until: datetime, *, limit: int = 10_000) -> Replayed:
        """Produce the messages of moved rows again whose deadline lies from `start` up to and with `until`.

        Each once for each call, all in one transaction, with a header `sqlstreams-replay` that names the call. The rows
        are as they are now: those that have left `to_state` are not among them. Raises `InvalidInput` when there are
        more than `limit`, and nothing is produced then.
        """
        check_time("start", start)
        check_time("until", until)
        if until < start:
            raise InvalidInput("until", f"must not be before start, got {until.isoformat()}")
        check_integer("limit", limit, low=1, high=100_000)
        stored = await self._client._run(self._get)
        stream_id = stored.declared.stream_id
        replayed = await appending.awithin(
            self._client._database,
            lambda: moving.replay_rows(self._schema, name=self.name, start=start, until=until, limit=limit),
            stream_ids=[stream_id],
        )
        self._client._notifier.notify(stream_id)
        return replayed

    async def edits(self, *, limit: int = 100) -> list[DeadlineEdit]:
        """Return the changes of the deadline, the latest first; also of one that was destroyed."""
        check_integer("limit", limit, low=1, high=100_000)
        return await self._client._run(lambda: acts.list_deadline_edits(self._schema, name=self.name, limit=limit))

    async def destroy(self) -> None:
        """Remove the deadline, for ever. Needs a client with `allow_destroy=True`. Rows and messages stay."""
        allowed = self._client._allow_destroy
        await self._client._run(lambda: acts.destroy_deadline(self._schema, name=self.name, allowed=allowed))

    def _get(self) -> Act[StoredDeadline]:
        return acts.get_deadline(self._schema, name=self.name)

    async def _run_within(self, connection: Any, act: Callable[[], Act[ResultT]]) -> ResultT:
        if connection is None:
            return await self._client._run(act)
        await self._client._run(lambda: acts.is_installed(self._schema))
        return await aact_within(await async_driver_connection(connection), act())
