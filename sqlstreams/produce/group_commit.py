"""Concurrent produce() calls that share commits: a batch is what arrived while the last commit was under way."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from sqlstreams.errors import DatabaseUnavailable, IdempotencyConflict, ProduceUncertain
from sqlstreams.produce.batch import Encoded

_LARGEST: Final = 1_000
_WORTH_HALVING: Final = 64
AnswerT = TypeVar("AnswerT")
Append = Callable[[Sequence[Encoded]], Sequence[AnswerT | IdempotencyConflict]]
AsyncAppend = Callable[[Sequence[Encoded], Callable[[], None]], Awaitable[Sequence[AnswerT | IdempotencyConflict]]]
"""Calls back when the messages have their ids and only the commit is left."""


_Call = tuple[Encoded, asyncio.Future[AnswerT | IdempotencyConflict]]


class _Ticket(Generic[AnswerT]):
    """One caller's message and, later, its answer or the error of its commit.

    The caller waits on a lock of its own: waking all 32 callers to look for their answers costs a fifth more processor
    time (docs/benchmarks.md).
    """

    __slots__ = ("_answered", "answer", "error", "leads", "message")

    def __init__(self, message: Encoded) -> None:
        self.message = message
        self.answer: AnswerT | IdempotencyConflict | None = None
        self.error: BaseException | None = None
        self.leads = False
        self._answered = threading.Lock()
        self._answered.acquire()

    def wake(self) -> None:
        """Let the caller go on: it was answered, or has to lead."""
        self._answered.release()

    def wait(self) -> None:
        """Wait for `wake`."""
        self._answered.acquire()


class GroupCommit(Generic[AnswerT]):
    """For threads: the first to arrive commits for all that arrive meanwhile, then one of the next leads."""

    def __init__(self, append: Append[AnswerT], *, max_pending: int) -> None:
        self._append = append
        self._max_pending = max_pending
        self._pending: deque[_Ticket[AnswerT]] = deque()
        self._led = False
        self._room = threading.Condition()
        self._waiting = 0
        self._is_closed = False

    def produce(self, message: Encoded) -> AnswerT:
        """Append one message and return the answer to it; waits while `max_pending` others wait."""
        ticket: _Ticket[AnswerT] = _Ticket(message)
        self._enqueue(ticket)
        try:
            if not ticket.leads:
                ticket.wait()
        except BaseException:
            self._withdraw(ticket)
            raise
        if ticket.leads:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return _answer(ticket.answer)

    def close(self) -> None:
        """Take no more calls, and wait until everything called before is committed."""
        with self._room:
            self._is_closed = True
            self._room.wait_for(lambda: not self._led and not self._waiting)

    def _enqueue(self, ticket: _Ticket[AnswerT]) -> None:
        with self._room:
            if self._is_closed:
                raise _closed()
            if len(self._pending) >= self._max_pending:
                self._wait_for_room()
            self._pending.append(ticket)
            if not self._led:
                self._led = ticket.leads = True

    def _wait_for_room(self) -> None:
        self._waiting += 1
        try:
            self._room.wait_for(lambda: len(self._pending) < self._max_pending)
        finally:
            self._waiting -= 1
            self._room.notify_all()  # for `close`, should this thread have been interrupted

    def _withdraw(self, ticket: _Ticket[AnswerT]) -> None:
        """Take back what was not sent, and the lead if we have it: the thread was interrupted."""
        with self._room:
            if ticket in self._pending:
                self._pending.remove(ticket)
                self._room.notify_all()
            if ticket.leads:
                self._hand_over()

    def _lead(self) -> None:
        with self._room:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), _LARGEST))]
            self._room.notify_all()
        try:
            answers = self._append([ticket.message for ticket in batch])
            for ticket, answer in zip(batch, answers, strict=True):
                ticket.answer = answer
        except Exception as error:
            for ticket in batch:
                ticket.error = error
        except BaseException:
            for ticket in batch:
                ticket.error = ProduceUncertain("the thread that was committing for this one was interrupted")
            raise
        finally:
            with self._room:
                self._hand_over()
            for ticket in batch:
                ticket.wake()

    def _hand_over(self) -> None:
        self._led = bool(self._pending)
        if self._pending:
            self._pending[0].leads = True
            self._pending[0].wake()
        else:
            self._room.notify_all()  # for `close`


class AsyncGroupCommit(Generic[AnswerT]):
    """For tasks: one flusher appends what is pending, again and again until nothing is.

    While one batch commits the next one is inserted, so ids follow the order of the calls unless a commit is lost.
    """

    def __init__(self, append: AsyncAppend[AnswerT], *, max_pending: int) -> None:
        self._append = append
        self._max_pending = max_pending
        self._pending: deque[_Call[AnswerT]] = deque()
        self._room = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._is_closed = False

    async def produce(self, message: Encoded) -> AnswerT:
        """Append one message and return the answer to it; waits while `max_pending` others wait.

        A caller that is cancelled before its message was sent takes it back; afterwards the commit goes on.
        """
        if self._is_closed:
            raise _closed()
        while len(self._pending) >= self._max_pending:
            self._room.clear()
            await self._room.wait()
        future: asyncio.Future[AnswerT | IdempotencyConflict] = asyncio.get_running_loop().create_future()
        self._pending.append((message, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        return _answer(await future)

    async def close(self) -> None:
        """Take no more calls, and wait until everything called before is committed."""
        self._is_closed = True
        while self._flusher is not None:
            await asyncio.shield(self._flusher)  # who is cancelled here cancels the commits of nobody

    async def _flush(self) -> None:
        committing: asyncio.Task[None] | None = None
        try:
            while self._pending or committing is not None:
                batch = self._take(most=self._share(alone=committing is None))
                inserting = await self._insert(batch) if batch else None
                if committing is not None:
                    await committing
                committing = inserting
        finally:
            self._flusher = None

    def _share(self, *, alone: bool) -> int:
        # Callers that were answered together call again together. Halved once, they stay two batches that take turns:
        # one commits while the other is encoded and inserted. It pays where processors are free (docs/benchmarks.md).
        halved = alone and len(self._pending) >= _WORTH_HALVING
        return min(_LARGEST, len(self._pending) // 2 if halved else len(self._pending))

    def _take(self, *, most: int) -> list[_Call[AnswerT]]:
        batch: list[_Call[AnswerT]] = []
        while self._pending and len(batch) < most:
            message, future = self._pending.popleft()
            if not future.cancelled():
                batch.append((message, future))
        self._room.set()
        return batch

    async def _insert(self, batch: list[_Call[AnswerT]]) -> asyncio.Task[None]:
        inserted = asyncio.Event()
        appending = asyncio.create_task(self._append_batch(batch, inserted))
        await inserted.wait()
        return appending

    async def _append_batch(self, batch: list[_Call[AnswerT]], inserted: asyncio.Event) -> None:
        try:
            answers = await self._append([message for message, _ in batch], inserted.set)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        finally:
            inserted.set()
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _closed() -> DatabaseUnavailable:
    return DatabaseUnavailable("the client is closed; nothing was written")


def _answer(answer: AnswerT | IdempotencyConflict | None) -> AnswerT:
    # A conflict is that of one caller alone, and comes with the answers of the others.
    if isinstance(answer, IdempotencyConflict):
        raise answer
    assert answer is not None
    return answer
