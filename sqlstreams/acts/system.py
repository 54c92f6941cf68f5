"""What is asked of the database about the installation."""

from __future__ import annotations

from sqlstreams import migration, statements
from sqlstreams.errors import NotFound, NotInstalled
from sqlstreams.model import (
    MigrationStep,
    ServerStatus,
    SystemStatus,
)
from sqlstreams.statements import Act, Applied, NamedStream, ask


def is_installed(schema: str) -> Act[bool]:
    """Say whether the schema holds an installation."""
    return (yield from ask(statements.is_installed(schema)))[0].installed


def check_installation(schema: str) -> Act[None]:
    """Refuse a schema without an installation, or with one that this library cannot work with."""
    if not (yield from is_installed(schema)):
        raise NotInstalled(f"schema {schema!r} holds no sqlstreams installation")
    if lacking := (yield from _lacking(schema)):
        # A stream registered by another between the two statements lacks nothing at a second look.
        still = yield from _lacking(schema)
        lacking = [step for step in lacking if step in still]
    if lacking:
        first = lacking[0].describe()
        where = f"stream {first.stream!r}" if first.stream else "the system"
        raise NotInstalled(f"schema {schema!r} lacks migration {first.version:04} ({first.name}) of {where}")


def _lacking(schema: str) -> Act[list[migration.Step]]:
    applied = yield from ask(statements.list_applied(schema))
    migration.verify(migration.shipped(), applied)
    streams = yield from ask(statements.list_stream_ids(schema)) if applied else _no_streams()
    return migration.pending(migration.shipped(), applied, streams)


def migrate_next(schema: str) -> Act[list[MigrationStep]]:
    """Apply the next step that the schema needs, or return nothing when there is none left.

    On an empty schema that is every step of the system, so that nobody ever meets half an installation.
    Runs in a transaction of its own. The lock makes other starters wait, and the record that is written first makes
    them find the step done.
    """
    yield from ask(statements.lock_schema(schema))
    is_fresh = not (yield from is_installed(schema))
    if is_fresh:
        yield from ask(statements.create_schema(schema))
        yield from ask(statements.create_migration_log(schema))
    applied = []
    for step in (yield from _lacking(schema)):
        if (yield from apply_step(schema, step)):
            applied.append(step.describe())
            if not is_fresh:
                break
    return applied


def show_system(schema: str, *, through_pooler: bool) -> Act[SystemStatus]:
    """Read what an installation consists of; works on an empty database too."""
    server = (yield from ask(statements.show_server(schema)))[0]
    installed = yield from is_installed(schema)
    applied = (yield from ask(statements.list_applied(schema))) if installed else []
    streams = (yield from ask(statements.list_stream_ids(schema))) if applied else []
    names = {stream.id: stream.name for stream in streams}
    return SystemStatus(
        schema=schema,
        installed=installed,
        server_version=server.version,
        through_pooler=through_pooler,
        library=migration.library_version(),
        applied=tuple(_describe_applied(each, names) for each in applied),
        pending=tuple(step.describe() for step in migration.pending(migration.shipped(), applied, streams)),
    )


def show_server(schema: str) -> Act[ServerStatus]:
    """Read what the server says of itself; works on an empty database too."""
    settings = (yield from ask(statements.show_server(schema)))[0]
    installed = yield from is_installed(schema)
    privileges = (yield from ask(statements.show_privileges(schema)))[0] if installed else None
    prepared = yield from ask(statements.list_prepared(schema))
    return ServerStatus(settings=settings, privileges=privileges, prepared=tuple(prepared))


def list_grants(schema: str, *, role: str, kind: str) -> Act[list[str]]:
    """Read the statements that make a role one of a kind."""
    return (yield from ask(statements.list_grants(schema, role=role, kind=kind)))


def grant_role(schema: str, *, role: str, kind: str) -> Act[list[str]]:
    """Make a role one of a kind, for the streams there are and those to come; return what was done."""
    if not (yield from ask(statements.role_exists(schema, role=role)))[0]:
        raise NotFound("role", role)
    return (yield from ask(statements.grant_role(schema, role=role, kind=kind)))


def _no_streams() -> Act[list[NamedStream]]:
    return []
    yield  # a generator, so that it can stand where a statement is asked


def apply_step(schema: str, step: migration.Step) -> Act[bool]:
    """Apply a migration; return False when another process did it first."""
    recorded = yield from ask(
        statements.record_migration(
            schema,
            scope=step.migration.scope,
            stream_id=step.stream.id,
            version=step.migration.version,
            name=step.migration.name,
            checksum=step.migration.checksum,
            breaking=step.migration.breaking,
            library=migration.library_version(),
        )
    )
    if recorded:
        yield from ask(statements.run_migration(step.migration.text, schema=schema, stream=step.stream.id or None))
    return bool(recorded)


def _describe_applied(applied: Applied, streams: dict[int, str]) -> MigrationStep:
    return MigrationStep(
        scope=applied.scope,
        stream=streams.get(applied.stream_id),
        version=applied.version,
        name=applied.name,
        breaking=applied.breaking,
        library=applied.library,
        applied_at=applied.applied_at,
    )
