"""The manager of an installation, for asyncio."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from sqlstreams import acts
from sqlstreams.consume.stopping import Stop, stopped_by_signals
from sqlstreams.model import ManagerStatus
from sqlstreams.names import channel, check_name

if TYPE_CHECKING:
    from sqlstreams.aio.client import AsyncClient


class AsyncManager:
    """The manager: schedules and the upkeep of the tables, done by one process for all of an installation."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._schema = client._address.schema

    async def run(self, *, signals: bool = True) -> None:
        """Run the manager when it is this process's turn, until cancelled, or until SIGTERM or SIGINT.

        Every `consume()` does so beside its work, unless its client was opened with `manager=False`; this is for
        processes that do nothing else. The lease is given back at the end, and another process takes over at once.
        Raises `NotInstalled` when the schema holds no installation, or is emptied meanwhile.
        """
        stop = Stop()
        with stopped_by_signals(stop) if signals else nullcontext():
            await stop.unless_asked(self.list())  # refuses what this library cannot work with
            if not stop.asked.is_set():
                await self._run(stop)

    async def _run(self, stop: Stop) -> None:
        async with self._client._management.running() as running:
            asked = asyncio.create_task(stop.asked.wait())
            try:
                await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
            if running.done():
                running.result()

    async def list(self) -> ManagerStatus:
        """Return the processes that run the manager, and its duties: when each ran last, what it did and failed at."""
        return await self._client._run(lambda: acts.list_manager(self._schema))

    async def suspend(self, duty: str | None = None) -> None:
        """Have the manager leave one duty alone until `unsuspend`; without a name, have nobody run the manager.

        What runs at that moment goes on to the end of its batch, or is cancelled with the manager. Processes hear of it
        at once, and without push within half of `lease_ttl`.
        """
        await self._change(duty, suspended=True)

    async def unsuspend(self, duty: str | None = None) -> None:
        """Have the manager do a duty again, or be run again. Anything suspended by its own name stays so."""
        await self._change(duty, suspended=False)

    async def _change(self, duty: str | None, *, suspended: bool) -> None:
        if duty is not None:
            check_name("duty", duty)
        await self._client._run(
            lambda: acts.suspend_manager(self._schema, duty=duty, suspended=suspended, channel=channel(self._schema))
        )
