"""Handlers that take several messages at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct

from sqlstreams.consume.budget import Budget, is_spent
from sqlstreams.consume.context import current
from sqlstreams.consume.lanes import Lane
from sqlstreams.consume.outcome import SPENT, SUPERSEDED
from sqlstreams.consume.ranges import Work
from sqlstreams.consume.workers import Workers


class _Read(Struct, frozen=True):
    """A message of a batch: its place in its work, what it may spend, and what it holds."""

    index: int
    budget: Budget
    payload: Any


class BatchWorkers(Workers):
    """Calls the handler with up to `batch` messages of one claim at a time, and never waits for more."""

    def __init__(self, *given: Any, batch: int, **named: Any) -> None:
        super().__init__(*given, **named)
        self._batch = batch
        self._breathe_every = max(1, self._breathe_every // batch)

    async def _handle(self, work: Work, index: int, lane: Lane) -> None:
        indexes = [index, *self._queue.take_more(work, self._batch - 1)]
        self._hungry()
        if batch := [read for each in indexes if (read := self._read_one(work, each)) is not None]:
            await self._handle_batch(work, batch, lane)

    def _read_one(self, work: Work, index: int) -> _Read | None:
        if work.heads and work.is_superseded(index):
            self._settle(work, index, SUPERSEDED)
            return None
        # What cannot be read spoils nothing for the others.
        row = work.rows[index]
        budget = self._budgets.of(row)
        current.set((self._stream, self._group, row, budget))
        if is_spent(row, budget):
            self._settle(work, index, SPENT)
            return None
        try:
            return _Read(index, budget, self._read(row))
        except Exception as error:
            self._ended_badly(work, (index,), error)
            return None

    async def _handle_batch(self, work: Work, batch: list[_Read], lane: Lane) -> None:
        current.set([(self._stream, self._group, work.rows[read.index], read.budget) for read in batch])
        indexes = [read.index for read in batch]
        try:
            call = lane.call([read.payload for read in batch], work, indexes)
            limit = _shortest(read.budget.timeout for read in batch)
            result = await (call if limit is None else self._within(limit, call, lane))
            outcomes = read_outcomes(result, len(batch))
        except BaseException as error:
            self._ended_badly(work, indexes, error)
            return
        for index, outcome in zip(indexes, outcomes, strict=True):
            if outcome is None:
                self._settle(work, index, None)
            else:
                self._failed(work, index, outcome)


def read_outcomes(result: object, count: int) -> Sequence[Exception | None]:
    """Return what a handler says of each of its messages; raises TypeError when it cannot be told."""
    if result is None:
        return [None] * count
    expected = f"a batch handler returns None, or a list with None or an exception for each of its {count} messages"
    if not isinstance(result, list | tuple):
        raise TypeError(f"{expected}, but it returned {type(result).__name__}")
    if len(result) != count:
        raise TypeError(f"{expected}, but it returned {len(result)}")
    for each in result:
        if each is not None and not isinstance(each, Exception):
            raise TypeError(f"{expected}, but one of it is {type(each).__name__}")
    return result


def _shortest(limits: Iterable[timedelta | None]) -> timedelta | None:
    return min((limit for limit in limits if limit is not None), default=None)
