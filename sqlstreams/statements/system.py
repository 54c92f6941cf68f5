"""Statements of the installation: sql/system.sql."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from sqlstreams import sql
from sqlstreams.model import (
    Holder,
    Privileges,
    ServerSettings,
)
from sqlstreams.statements.statement import (
    Columns,
    Family,
    Nothing,
    Statement,
    columns,
    nothing,
    of_family,
    of_system,
)


class Installed(Struct, frozen=True):
    """Whether the schema holds an installation."""

    installed: bool


class Applied(Struct, frozen=True):
    """A migration as the database remembers it. `stream_id` is 0 in the system scope."""

    scope: str
    stream_id: int
    version: int
    name: str
    checksum: str
    breaking: bool
    library: str
    applied_at: datetime


class NamedStream(Struct, frozen=True):
    """A stream's id and name."""

    id: int
    name: str


def create_schema(schema: str) -> Statement[Nothing]:
    return of_system("create_schema", schema, nothing)


def lock_schema(schema: str) -> Statement[Nothing]:
    return of_system("lock_schema", schema, nothing)


def create_migration_log(schema: str) -> Statement[Nothing]:
    return of_system("create_migration_log", schema, nothing)


def is_installed(schema: str) -> Statement[Installed]:
    return of_system("is_installed", schema, Installed)


def list_applied(schema: str) -> Statement[Applied]:
    return of_system("list_applied", schema, Applied)


def record_migration(
    schema: str, *, scope: str, stream_id: int, version: int, name: str, checksum: str, breaking: bool, library: str
) -> Statement[Columns]:
    return of_system(
        "record_migration",
        schema,
        columns,
        {
            "scope": scope,
            "stream_id": stream_id,
            "version": version,
            "name": name,
            "checksum": checksum,
            "breaking": breaking,
            "library": library,
        },
    )


def run_migration(text: str, *, schema: str, stream: int | None) -> Statement[Nothing]:
    """Send the text of a migration: several commands, so without parameters."""
    return Statement("run_migration", sql.fill(text, schema=schema, stream=stream).encode(), None, nothing)


def list_stream_ids(schema: str) -> Statement[NamedStream]:
    return of_system("list_stream_ids", schema, NamedStream)


def show_server(schema: str) -> Statement[ServerSettings]:
    return of_system("show_server", schema, ServerSettings)


def list_prepared(schema: str) -> Statement[Holder]:
    return of_system("list_prepared", schema, Holder)


def show_privileges(schema: str) -> Statement[Privileges]:
    return of_system("show_privileges", schema, Privileges, {"schema": schema})


def list_grants(schema: str, *, role: str, kind: str) -> Statement[str]:
    return of_system("list_grants", schema, str, {"role": role, "kind": kind})


def grant_role(schema: str, *, role: str, kind: str) -> Statement[str]:
    return of_system("grant_role", schema, str, {"role": role, "kind": kind})


def role_exists(schema: str, *, role: str) -> Statement[bool]:
    return of_system("role_exists", schema, bool, {"role": role})


def grant_family(family: Family) -> Statement[Nothing]:
    return of_family("grant_family", family, nothing)
