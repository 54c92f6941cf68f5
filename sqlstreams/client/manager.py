"""The manager of an installation, blocking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlstreams import acts
from sqlstreams.model import ManagerStatus
from sqlstreams.names import channel, check_name

if TYPE_CHECKING:
    from sqlstreams.client.client import Client


class Manager:
    """The manager: schedules and the upkeep of the tables, done by one process for all of an installation."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._schema = client._address.schema

    def run(self, *, signals: bool = True) -> None:
        """Run the manager when it is this process's turn, until SIGTERM or SIGINT.

        Every `consume()` does so beside its work, unless its client was opened with `manager=False`; this is for
        processes that do nothing else. The lease is given back at the end, and another process takes over at once.
        Raises `NotInstalled` when the schema holds no installation, or is emptied meanwhile.

        Runs an event loop of its own in this thread, with connections of its own, so it raises RuntimeError where one
        runs already. Only the main thread hears signals.
        """
        asyncio.run(self._run(signals=signals))

    async def _run(self, *, signals: bool) -> None:
        async with self._client._asynchronous() as client:
            await client.manager.run(signals=signals)

    def list(self) -> ManagerStatus:
        """Return the processes that run the manager, and its duties: when each ran last, what it did and failed at."""
        return self._client._run(lambda: acts.list_manager(self._schema))

    def suspend(self, duty: str | None = None) -> None:
        """Have the manager leave one duty alone until `unsuspend`; without a name, have nobody run the manager.

        What runs at that moment goes on to the end of its batch, or is cancelled with the manager. Processes hear of it
        at once, and without push within half of `lease_ttl`.
        """
        self._change(duty, suspended=True)

    def unsuspend(self, duty: str | None = None) -> None:
        """Have the manager do a duty again, or be run again. Anything suspended by its own name stays so."""
        self._change(duty, suspended=False)

    def _change(self, duty: str | None, *, suspended: bool) -> None:
        if duty is not None:
            check_name("duty", duty)
        self._client._run(
            lambda: acts.suspend_manager(self._schema, duty=duty, suspended=suspended, channel=channel(self._schema))
        )
