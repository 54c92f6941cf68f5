"""Duties that keep the tables in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from sqlstreams import acts, statements
from sqlstreams.database import AsyncDatabase
from sqlstreams.errors import DatabaseUnavailable, InvalidInput, NotFound, NotInstalled
from sqlstreams.manager.duty import Ran
from sqlstreams.manager.lease import clock
from sqlstreams.statements import Compacted, Family, LogFill

_MINUTE: Final = 60.0
_SOONEST: Final = 1.0
_AT_ONCE: Final = 1_000
_KEYS_AT_ONCE: Final = 10_000
_STREAMS_AT_ONCE: Final = 200
# Analyzing a log looks at every partition of it and keeps others from adding one; this is done in seconds.
_MOST_PARTITIONS: Final = 32


class Partitions:
    """Makes partitions ahead of each log, so that producers need not.

    They can: with no manager anywhere, the one that meets the edge of a log extends it.
    """

    name = "partitions"
    period = _MINUTE

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._seen: dict[int, int] = {}
        self._seen_at = 0.0

    async def run_once(self) -> Ran:
        """Extend every log of which less than one partition is left."""
        logs = await self._database.query_once(statements.list_logs(self._database.schema))
        short = [log for log in logs if log.edge - log.last_id < log.partition_rows]
        trouble: list[Exception] = []
        for log in short:
            # One log that cannot be extended, since a reader locks it for long, is no reason to leave out others.
            try:
                await self._extend(log)
            except (psycopg.Error, DatabaseUnavailable, NotInstalled) as error:
                trouble.append(error)
        due_in = self._due_in(logs)
        if trouble:
            raise trouble[0]
        return Ran(done=len(short), due_in=due_in)

    async def _extend(self, log: LogFill) -> None:
        family = Family(self._database.schema, log.id)
        await self._database.query_once(statements.extend_log(family, ahead=log.partition_rows))

    def _due_in(self, logs: Sequence[LogFill]) -> float | None:
        """Return in how many seconds half a partition is filled, at the pace of the fastest since the last look."""
        now = clock()
        elapsed = now - self._seen_at
        paces = [
            (log.last_id - self._seen[log.id]) / elapsed / log.partition_rows for log in logs if log.id in self._seen
        ]
        self._seen, self._seen_at = {log.id: log.last_id for log in logs}, now
        fastest = max(paces, default=0.0)
        return max(_SOONEST, 0.5 / fastest) if fastest > 0 else None


class Leases:
    """Forgets processes that are long gone."""

    name = "leases"
    period = 10 * _MINUTE

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def run_once(self) -> Ran:
        """Remove rows of processes that ended without saying so."""
        (forgotten,) = await self._database.query_once(statements.forget_expired(self._database.schema, limit=_AT_ONCE))
        return Ran(done=forgotten.count, again=forgotten.count >= _AT_ONCE)


class IdempotencyKeys:
    """Forgets idempotency keys that expired."""

    name = "idempotency"
    period = _MINUTE

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def run_once(self) -> Ran:
        """Remove expired keys of the streams that have any, of each a bounded number."""
        streams = await self._database.query_once(statements.list_stream_ids(self._database.schema))
        done, again = 0, False
        for start in range(0, len(streams), _STREAMS_AT_ONCE):
            for stream_id in await self._with_expired([each.id for each in streams[start : start + _STREAMS_AT_ONCE]]):
                count = await self._forget(Family(self._database.schema, stream_id))
                done, again = done + count, again or count >= _KEYS_AT_ONCE
        return Ran(done=done, again=again)

    async def _with_expired(self, streams: Sequence[int]) -> list[int]:
        try:
            return await self._database.query_once(statements.list_expired_keys(self._database.schema, streams=streams))
        except NotInstalled:  # one was destroyed since it was listed, and the statement for all failed
            if len(streams) == 1:
                return []
            half = len(streams) // 2
            return [*await self._with_expired(streams[:half]), *await self._with_expired(streams[half:])]

    async def _forget(self, family: Family) -> int:
        try:
            (forgotten,) = await self._database.query_once(
                statements.forget_idempotency_keys(family, limit=_KEYS_AT_ONCE)
            )
        except NotInstalled:  # destroyed since it was listed
            return 0
        return forgotten.count


class Statistics:
    """Has the server look at logs as wholes, which its own autovacuum never does."""

    name = "statistics"
    period = 5 * _MINUTE

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def run_once(self) -> Ran:
        """Analyze the one log whose statistics are most outdated."""
        outdated = await self._database.query_once(
            statements.list_outdated_statistics(self._database.schema, partitions=_MOST_PARTITIONS, limit=2)
        )
        if not outdated:
            return Ran()
        await self._database.query_once(statements.analyze_log(Family(self._database.schema, outdated[0].id)))
        return Ran(done=1, again=len(outdated) > 1)


class Compaction:
    """Removes what was superseded long enough ago, from the streams that say how long that is."""

    name = "compaction"
    period = 60 * _MINUTE

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._left: dict[str, Compacted] = {}

    async def run_once(self) -> Ran:
        """Do the next step of the round; begin a new round when there is none."""
        if not self._left:
            streams = await self._database.run(lambda: acts.list_streams(self._database.schema))
            self._left = {each.name: acts.BEFORE_ALL for each in streams if each.compact_after is not None}
        if not self._left:
            return Ran()
        name, before = self._left.popitem()
        try:
            step = await self._database.run(
                lambda: acts.compact(self._database.schema, name=name, older_than=None, after=before)
            )
        except (NotFound, InvalidInput):  # destroyed, renamed, or to be compacted no more
            return Ran(again=bool(self._left))
        if step.is_full:
            self._left[name] = step
        return Ran(done=step.removed, again=bool(self._left))
