"""One run of the demo: produces the data set while three groups consume it, and looks on until all is handled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from sqlstreams import AsyncClient, AsyncConsumer, AsyncStream, GroupStatus, Message
from sqlstreams_cli.demo.handlers import Audit, Flaky, PerZone
from sqlstreams_cli.demo.make_zone_changes import ZoneChange
from sqlstreams_cli.demo.report import Tally, per_second

STREAM = "zone-changes"

_BATCH = 500
_LOOK_EVERY = 0.1
_RETRY_BASE = timedelta(milliseconds=200)


class Group:
    """One of the demo's consumer groups, as seen from outside. `purpose` says in a few words what it does."""

    def __init__(
        self,
        consumer: AsyncConsumer[ZoneChange],
        handler: PerZone | Audit | Flaky,
        *,
        concurrency: int,
        purpose: str,
    ) -> None:
        self.consumer = consumer
        self.name = consumer.name
        self.purpose = purpose
        self.status: GroupStatus | None = None
        self.settled_after: float | None = None
        self._handler = handler
        self._concurrency = concurrency

    async def consume(self) -> None:
        """Handle messages until cancelled."""
        await self.consumer.consume(self._handler.handle, concurrency=self._concurrency, signals=False)

    def has_settled(self, last_id: int) -> bool:
        """Say whether everything up to an id was handled or is dead, by the last look at the server."""
        status = self.status
        return status is not None and status.committed >= last_id and status.ready == status.inflight == 0

    def tally(self, elapsed: float) -> Tally:
        """Return what was done so far."""
        stats = self.consumer.stats
        seconds = elapsed if self.settled_after is None else self.settled_after
        return Tally(
            name=self.name,
            purpose=self.purpose,
            handled=stats.handled,
            failed=stats.failed,
            retried=stats.retried,
            dead=stats.dead,
            seconds=round(seconds, 3),
            per_second=per_second(stats.handled, seconds),
        )


class Play:
    """A run, and how far it is. Everything here may be read at any time, also after it was interrupted."""

    def __init__(self, changes: Sequence[ZoneChange]) -> None:
        self.changes = changes
        self.produced: list[int] = []
        self.produced_after: float | None = None
        self.groups: list[Group] = []
        self.per_zone = PerZone()
        self.audit = Audit()
        self._began: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the first message was about to be produced."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    async def set_up(self, client: AsyncClient) -> AsyncStream[ZoneChange]:
        """Register the stream and its groups; a stream that an earlier run left is destroyed."""
        stream = client.stream(STREAM, ZoneChange)
        if await stream.get():
            await stream.destroy()
        await stream.register()
        per_zone = await stream.consumer("per-zone").register()
        audit = await stream.consumer("audit").register()
        flaky = await stream.consumer("flaky").register(retry_base=_RETRY_BASE)
        self.groups = [
            Group(per_zone, self.per_zone, concurrency=10, purpose="counts"),
            Group(audit, self.audit, concurrency=1, purpose="checks"),
            Group(flaky, Flaky(), concurrency=10, purpose="fails now and then"),
        ]
        return stream

    async def run(self, stream: AsyncStream[ZoneChange], *, show: Callable[[Play], None]) -> None:
        """Produce and consume at the same time, until every group has handled everything."""
        self._began = time.monotonic()
        tasks = [asyncio.create_task(group.consume()) for group in self.groups]
        tasks.append(asyncio.create_task(self._produce(stream)))
        try:
            while not self._is_over():
                done, _ = await asyncio.wait(tasks, timeout=_LOOK_EVERY, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()  # raises what ended it
                await self._look()
                show(self)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _produce(self, stream: AsyncStream[ZoneChange]) -> None:
        producer = await stream.producer().register()
        for start in range(0, len(self.changes), _BATCH):
            batch = self.changes[start : start + _BATCH]
            receipts = await producer.produce_many([Message(change, key=change.zone) for change in batch])
            self.produced.extend(receipt.id for receipt in receipts)
        self.produced_after = self.elapsed

    async def _look(self) -> None:
        statuses = await asyncio.gather(*(group.consumer.status() for group in self.groups))
        for group, status in zip(self.groups, statuses, strict=True):
            group.status = status
            if self.produced_after is not None and group.settled_after is None and self._has_settled(group):
                group.settled_after = self.elapsed

    def _has_settled(self, group: Group) -> bool:
        return group.has_settled(self.produced[-1] if self.produced else 0)

    def _is_over(self) -> bool:
        return bool(self.groups) and all(group.settled_after is not None for group in self.groups)
