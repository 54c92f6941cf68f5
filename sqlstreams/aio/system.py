"""The installation itself, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlstreams import acts
from sqlstreams.errors import NotInstalled
from sqlstreams.model import (
    MigrationStep,
    ServerStatus,
    SystemStatus,
)

if TYPE_CHECKING:
    from sqlstreams.aio.client import AsyncClient


class AsyncSystem:
    """The installation: its migrations and its state."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def register(self) -> list[MigrationStep]:
        """Install into the schema, or bring an installation up to date; return the steps that were applied.

        Any number of processes may do so at once: one applies each step, the others wait for it.
        """
        return await self._client._migrate()

    async def migrate(self) -> list[MigrationStep]:
        """Bring an existing installation up to date; raise `NotInstalled` when there is none."""
        if not await self._client._database.run(lambda: acts.is_installed(self._client._address.schema)):
            raise NotInstalled(f"schema {self._client._address.schema!r} holds no sqlstreams installation")
        return await self._client._migrate()

    async def status(self) -> SystemStatus:
        """Return versions, and which migrations are applied and pending. Works on an empty database."""
        database = self._client._database
        async with database.connection():
            through_pooler = database.through_pooler
        return await database.run(lambda: acts.show_system(self._client._address.schema, through_pooler=through_pooler))

    async def server(self) -> ServerStatus:
        """Return what the server says of itself and of our role. Works on an empty database."""
        return await self._client._database.run(lambda: acts.show_server(self._client._address.schema))
