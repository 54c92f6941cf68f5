"""Removing what streams do not keep: one batch after the other, none of which anybody waits for.

A batch first moves the first id that is kept, in one transaction in which every group is looked at. Only then rows and
partitions below it are removed, so at any point the work may break off: the next batch goes on with what is left.
Detaching a partition cannot be part of a transaction. It waits for whoever uses the log and is given up after a moment;
the partition is then half detached, out of everybody's sight, and a later batch finishes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from psycopg import errors as pg

from sqlstreams import acts, statements
from sqlstreams.database import AsyncDatabase, Database
from sqlstreams.errors import NotFound, NotInstalled, SqlstreamsError
from sqlstreams.manager.duty import Ran
from sqlstreams.model import Expiry
from sqlstreams.statements import Act, Deleted, Family, Partition, Statement

ResultT = TypeVar("ResultT")

Step = Callable[[], Act[Any]] | Statement[Any]
"""An act for a transaction of its own, or a statement that runs in none; the answer to that is whether it was done."""
Steps = Generator[Step, Any, ResultT]

_log = logging.getLogger("sqlstreams.manager")

_DETACH_WITHIN: Final = 2.0
_BUSY: Final = "another transaction has the stream, one of its groups or a partition locked"


class Batch(Struct, frozen=True):
    """What one batch removed, and whether more can be removed at once."""

    expiry: Expiry
    again: bool = False


class Retention:
    """The duty that removes what streams do not keep any more."""

    name = "retention"
    period = 60.0

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def run_once(self) -> Ran:
        """Remove one batch of each stream; one that fails keeps no other from its turn."""
        done, again, failure = 0, False, None
        for stream in await self._database.query(statements.list_expiring(self._database.schema)):
            try:
                batch = await aexpire_batch(self._database, stream.name)
            except NotFound:
                continue  # destroyed since it was listed
            except (pg.Error, SqlstreamsError) as error:
                failure = failure or error
                continue
            done += _removed(batch.expiry)
            again = again or batch.again
        if failure is not None:
            raise failure
        return Ran(done=done, again=again)


async def aexpire_batch(database: AsyncDatabase, name: str) -> Batch:
    """Remove one batch of what a stream does not keep."""
    steps = _expire(database.schema, name)
    step = next(steps)
    while True:
        try:
            step = steps.send(await _atake(database, step))
        except StopIteration as stop:
            return _told(name, stop.value)


def expire_batch(database: Database, name: str) -> Batch:
    """Remove one batch of what a stream does not keep."""
    steps = _expire(database.schema, name)
    step = next(steps)
    while True:
        try:
            step = steps.send(_take(database, step))
        except StopIteration as stop:
            return _told(name, stop.value)


async def _atake(database: AsyncDatabase, step: Step) -> Any:
    if isinstance(step, Statement):
        try:
            return await database.ask_alone(step, within=_DETACH_WITHIN)
        except NotInstalled:  # another one took the partition out at this moment
            return True
    try:
        return await database.run(step)
    except pg.LockNotAvailable:
        return None


def _take(database: Database, step: Step) -> Any:
    if isinstance(step, Statement):
        try:
            return database.ask_alone(step, within=_DETACH_WITHIN)
        except NotInstalled:  # another one took the partition out at this moment
            return True
    try:
        return database.run(step)
    except pg.LockNotAvailable:
        return None


def _expire(schema: str, name: str) -> Steps[Batch]:
    declared: acts.Declared | None = yield partial(acts.declare_expired, schema, name=name)
    if declared is None:
        return Batch(Expiry(kept_from=(yield partial(acts.kept_from, schema, name=name)), held_back_by=(_BUSY,)))
    removed = yield from _remove(declared.family, declared.kept_from)
    for group_id in declared.lost_by:
        yield partial(acts.free_keys_of, declared.family, group_id)
    return Batch(
        expiry=msgspec.structs.replace(
            removed.expiry, lost=declared.lost, held_back_by=declared.held_back_by + removed.expiry.held_back_by
        ),
        again=removed.again,
    )


def _remove(family: Family, kept_from: int) -> Steps[Batch]:
    exceptions: Deleted | None = yield partial(acts.delete_exceptions_below, family, kept_from=kept_from)
    deliveries: Deleted | None = yield partial(acts.delete_deliveries_below, family, kept_from=kept_from)
    messages: Deleted | None = yield partial(acts.delete_messages_below, family, kept_from=kept_from)
    batches = [each for each in (exceptions, deliveries, messages) if each is not None]
    expiry = Expiry(
        kept_from=kept_from,
        exceptions=_rows(exceptions),
        deliveries=_rows(deliveries),
        messages=_rows(messages),
    )
    if exceptions is None or exceptions.remain:
        # Before the last of them is gone no partition goes: a row without its message could never be handled.
        if _rows(exceptions):
            return Batch(expiry, again=True)
        return Batch(msgspec.structs.replace(expiry, held_back_by=(_BUSY,)))
    partitions, waits = yield from _drop_next(family, kept_from)
    again = partitions > 0 or any(each.remain for each in batches)
    return Batch(msgspec.structs.replace(expiry, partitions=partitions, held_back_by=waits), again=again)


def _rows(deleted: Deleted | None) -> int:
    return 0 if deleted is None else deleted.rows


def _drop_next(family: Family, kept_from: int) -> Steps[tuple[int, tuple[str, ...]]]:
    """Drop what is detached already, and then the lowest partition; return how many, and what is in the way."""
    left: int | None = yield partial(acts.drop_detached, family, kept_from=kept_from)
    droppable: list[Partition] | None = yield partial(acts.list_droppable, family, kept_from=kept_from)
    if not droppable:
        return left or 0, () if left is not None else (_BUSY,)
    first_id = droppable[0].first_id
    detach = statements.finish_detaching if droppable[0].detaching else statements.detach_partition
    if not (yield detach(family, first_id=first_id)):
        users = yield partial(acts.describe_log_users, family)
        return left or 0, (f"the partition from id {first_id} on waits for those who use the log: {users}",)
    dropped: int | None = yield partial(acts.drop_detached, family, kept_from=kept_from)
    return (left or 0) + (dropped or 0), () if dropped is not None else (_BUSY,)


def _told(name: str, batch: Batch) -> Batch:
    for lost in batch.expiry.lost:
        _log.warning(
            "SQL0120 retention of %s removed %d messages from %d to %d before group %s had done them",
            name, lost.messages, lost.first_id, lost.last_id, lost.group,
        )  # fmt: skip
    return batch


def _removed(expiry: Expiry) -> int:
    return expiry.partitions + expiry.messages + expiry.exceptions + expiry.deliveries
