"""Messages that were claimed and not begun, and the handlers that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque

from sqlstreams.consume.key_chains import Item, KeyChains
from sqlstreams.consume.ranges import ID, Retries, Work


class WorkQueue:
    """Hands out messages one by one in the order of their work, and each key's one after the other."""

    def __init__(self) -> None:
        self.unstarted = 0
        self.running = 0
        self.chains = KeyChains()
        self._works: deque[Work] = deque()
        self._next_of_key: deque[Item] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._quiet = asyncio.Event()
        self._runs_alone = False
        self._paused = False
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._closed

    def holds_retries_or_suspects(self) -> bool:
        """Say whether retries wait to be begun, or messages that have to run alone."""
        return any(isinstance(work, Retries) or work.alone for work in self._works)

    def put(self, work: Work) -> None:
        """Add work behind what is there."""
        self._works.append(work)
        self._added(work)

    def put_first(self, work: Work) -> None:
        """Add work that was promised to begin at once."""
        self._works.appendleft(work)
        self._added(work)

    def put_next_of_key(self, item: Item) -> None:
        """Add the message that follows one of its key that just ended."""
        self._next_of_key.append(item)
        self._wake(1)

    def drop(self, work: Work) -> None:
        """Take back what was not begun of some work."""
        if work in self._works:
            self._works.remove(work)
            self.unstarted -= work.unstarted

    def take_back(self, key: str) -> list[Item]:
        """Take back the messages of a key that were not begun, those that wait for it among them."""
        items = self.chains.block(key)
        for work in self._works:
            if work.keyed:
                items += [(work, index) for index in self._take_back_of(work, key)]
        return items

    def _take_back_of(self, work: Work, key: str) -> list[int]:
        found = [
            index
            for index in range(work.next, len(work.rows))
            if (keyed := work.keyed.get(work.rows[index][ID])) is not None and keyed.key == key
        ]
        work.taken_back.update(found)
        return found

    def clear(self) -> None:
        """Take back everything that was not begun."""
        self._works.clear()
        self._next_of_key.clear()
        self.unstarted = 0
        self.chains = KeyChains()

    def pause(self) -> None:
        """Hand out nothing for now."""
        self._paused = True

    async def quiet(self) -> None:
        """Wait until nothing runs of what was handed out."""
        while self.running:
            self._quiet.clear()
            await self._quiet.wait()

    def resume(self) -> None:
        """Hand out again."""
        self._paused = False
        self._wake(len(self._idle))

    def close(self) -> None:
        """Hand out nothing more; wake everyone who waits."""
        self._closed = True
        self._wake(len(self._idle))

    def take(self) -> Item | None:
        """Return the next message that may run, as its work and its place there; None when there is none now.

        Whoever takes one calls `ended` when it is over.
        """
        if self._runs_alone or self._paused:
            return None
        item = (self._next_of_key and self._take_next_of_key()) or self._take_in_order()
        if item is not None:
            self.running += 1
            self._runs_alone = item[0].alone
        return item

    def take_more(self, work: Work, count: int) -> list[int]:
        """Return the places of up to `count` more messages that may run together with one of `work` that was taken.

        They are over when that one is. Of a key whose messages run one at a time none runs with another.
        """
        taken: list[int] = []
        if work.has_suspects:
            return taken
        while len(taken) < count and self._next_of_key and self._next_of_key[0][0] is work:
            taken.append(self._next_of_key.popleft()[1])
        while len(taken) < count and self._works and self._works[0] is work:
            if (index := self._take_next()) is not None:
                taken.append(index)
        return taken

    def ended(self) -> None:
        """Take note that a message that was taken is over."""
        self.running -= 1
        if self._runs_alone or (self._works and self._works[0].alone):
            self._runs_alone = False
            self._wake(len(self._idle))
        if not self.running:
            self._quiet.set()

    async def wait(self) -> None:
        """Wait until there may be something to take, or the queue was closed."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(sleeper)
        await sleeper

    def _take_next_of_key(self) -> Item | None:
        while self._next_of_key:
            work, index = self._next_of_key.popleft()
            if not work.lost:
                return work, index
            self._skip(work, index)
        return None

    def _skip(self, work: Work, index: int) -> None:
        if (keyed := work.keyed.get(work.rows[index][ID])) and (following := self.chains.end(keyed.key)):
            self._next_of_key.append(following)

    def _take_in_order(self) -> Item | None:
        while self._works:
            work = self._works[0]
            if work.alone and self.running:
                return None
            if (index := self._take_next()) is not None:
                return work, index
        return None

    def _take_next(self) -> int | None:
        work = self._works[0]
        index = work.next
        work.next += 1
        self.unstarted -= 1
        if work.next == len(work.rows):
            self._works.popleft()
        return index if not work.keyed or self._may_run(work, index) else None

    def _may_run(self, work: Work, index: int) -> bool:
        if index in work.taken_back:
            return False
        keyed = work.keyed.get(work.rows[index][ID])
        return keyed is None or self.chains.start(keyed.key, (work, index))

    def _added(self, work: Work) -> None:
        self.unstarted += work.unstarted
        self._wake(work.unstarted)

    def _wake(self, count: int) -> None:
        while self._idle and count > 0:
            sleeper = self._idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                count -= 1
