"""Gathering the messages that handlers publish at the same time, so that a broker gets many at once."""

from __future__ import annotations

import asyncio
from typing import Final

from sqlstreams.relay.publisher import Outcome, Outgoing, Publisher

_MOST: Final = 500


class Bundles:
    """Publishes what arrives together, together: no timer, a batch is what came while the last ones were under way."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._waiting: list[tuple[Outgoing, asyncio.Future[Outcome]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def publish(self, message: Outgoing) -> Outcome:
        """Return what became of a message."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, answer))
        if len(self._waiting) == 1:
            self._start_one()
        return await answer

    async def close(self) -> None:
        """Wait for nothing any more."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start_one(self) -> None:
        if self._waiting and len(self._running) < self._publisher.batches:
            task = asyncio.create_task(self._publish(), name="sqlstreams-relay-batch")
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start_one()

    async def _publish(self) -> None:
        await asyncio.sleep(0)  # whoever is ready now gets a place
        batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        self._start_one()
        # Whoever was cancelled meanwhile has given its message back, and another process may have it by now.
        batch = [(message, answer) for message, answer in batch if not answer.done()]
        if not batch:
            return
        try:
            outcomes = await self._publisher.publish([message for message, _ in batch])
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if not answer.done():
                    answer.set_result(outcome)
