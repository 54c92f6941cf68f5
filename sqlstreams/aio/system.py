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
from sqlstreams.options import ROLE_KINDS, check_choice, check_role

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

    async def grants(self, role: str, *, as_: str) -> list[str]:
        """Return the statements that give a role what it needs as a "producer", "consumer", "operator" or "manager".

        A producer cannot read payloads, a consumer cannot produce, an operator cannot register or destroy streams; a
        manager becomes a member of the owner of the tables, since only that one may drop partitions.
        """
        check_role("role", role)
        check_choice("as_", as_, ROLE_KINDS)
        schema = self._client._address.schema
        return await self._client._run(lambda: acts.list_grants(schema, role=role, kind=as_))

    async def grant(self, role: str, *, as_: str) -> list[str]:
        """Carry out what `grants` returns, and the same for every stream that is registered later; return it.

        Raises `NotFound` for a role that the server does not have.
        """
        check_role("role", role)
        check_choice("as_", as_, ROLE_KINDS)
        schema = self._client._address.schema
        return await self._client._run(lambda: acts.grant_role(schema, role=role, kind=as_))
