"""Messages that were claimed and not begun, and the handlers that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque

from sqlstreams.consume.ranges import Work


class WorkQueue:
    """Hands out messages one by one in the order of their work."""

    def __init__(self) -> None:
        self.unstarted = 0
        self._works: deque[Work] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to hand out."""
        return not self._works

    @property
    def is_closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._closed

    def holds(self, kind: type[Work]) -> bool:
        """Say whether work of a kind waits to be begun."""
        return any(isinstance(work, kind) for work in self._works)

    def put(self, work: Work) -> None:
        """Add work behind what is there."""
        self._works.append(work)
        self._added(work)

    def put_first(self, work: Work) -> None:
        """Add work that was promised to begin at once."""
        self._works.appendleft(work)
        self._added(work)

    def drop(self, work: Work) -> None:
        """Take back what was not begun of some work."""
        if work in self._works:
            self._works.remove(work)
            self.unstarted -= work.unstarted

    def close(self) -> None:
        """Hand out nothing more; wake everyone who waits."""
        self._closed = True
        self._wake(len(self._idle))

    def take(self) -> tuple[Work, int]:
        """Return the next message as its work and its place there. The queue must not be empty."""
        work = self._works[0]
        index = work.next
        work.next += 1
        self.unstarted -= 1
        if work.next == len(work.rows):
            self._works.popleft()
        return work, index

    async def wait(self) -> None:
        """Wait until something was added or the queue was closed."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(sleeper)
        await sleeper

    def _added(self, work: Work) -> None:
        self.unstarted += work.unstarted
        self._wake(work.unstarted)

    def _wake(self, count: int) -> None:
        while self._idle and count > 0:
            sleeper = self._idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                count -= 1
