"""The installation itself, blocking."""

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
    from sqlstreams.client.client import Client


class System:
    """The installation: its migrations and its state."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def register(self) -> list[MigrationStep]:
        """Install into the schema, or bring an installation up to date; return the steps that were applied.

        Any number of processes may do so at once: one applies each step, the others wait for it.
        """
        return self._client._migrate()

    def migrate(self) -> list[MigrationStep]:
        """Bring an existing installation up to date; raise `NotInstalled` when there is none."""
        if not self._client._database.run(lambda: acts.is_installed(self._client._address.schema)):
            raise NotInstalled(f"schema {self._client._address.schema!r} holds no sqlstreams installation")
        return self._client._migrate()

    def status(self) -> SystemStatus:
        """Return versions, and which migrations are applied and pending. Works on an empty database."""
        database = self._client._database
        with database.connection():
            through_pooler = database.through_pooler
        return database.run(lambda: acts.show_system(self._client._address.schema, through_pooler=through_pooler))

    def server(self) -> ServerStatus:
        """Return what the server says of itself and of our role. Works on an empty database."""
        return self._client._database.run(lambda: acts.show_server(self._client._address.schema))
