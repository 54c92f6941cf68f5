"""The shipped migrations, and which of them a schema still needs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from msgspec import Struct

from sqlstreams.errors import MigrationChanged, SchemaTooNew
from sqlstreams.model import MigrationStep
from sqlstreams.statements import Applied, NamedStream

_FILE = re.compile(r"(\d{4})_(system|stream)_(\w+)\.sql")
SYSTEM = NamedStream(id=0, name="")


class Migration(Struct, frozen=True):
    """One numbered step of a scope. A breaking step locks out libraries that do not know it."""

    scope: str
    version: int
    name: str
    text: str
    breaking: bool

    @property
    def checksum(self) -> str:
        """A digest of the text, by which an edited file is found out."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Step(Struct, frozen=True):
    """A migration that one scope still needs: the system, or one stream's family."""

    migration: Migration
    stream: NamedStream

    def describe(self) -> MigrationStep:
        """Return this step as users see it."""
        return MigrationStep(
            scope=self.migration.scope,
            stream=self.stream.name or None,
            version=self.migration.version,
            name=self.migration.name,
            breaking=self.migration.breaking,
        )


@cache
def library_version() -> str:
    """Return the version of this library."""
    try:
        return version("sqlstreams")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0+source"


@cache
def shipped() -> tuple[Migration, ...]:
    """Return the migrations of this library, by scope and number."""
    found = []
    for resource in files("sqlstreams_migrations").iterdir():
        if match := _FILE.fullmatch(resource.name):
            text = resource.read_text(encoding="utf-8")
            found.append(
                Migration(
                    scope=match[2],
                    version=int(match[1]),
                    name=match[3],
                    text=text,
                    breaking="-- breaking\n" in text,
                )
            )
    return tuple(sorted(found, key=lambda each: (each.scope != "system", each.version)))


def pending(migrations: Sequence[Migration], applied: Iterable[Applied], streams: Iterable[NamedStream]) -> list[Step]:
    """Return the steps a schema still needs, in order: the system first, then each stream's family."""
    done = {(each.scope, each.stream_id, each.version) for each in applied}
    places = [("system", SYSTEM), *(("stream", stream) for stream in streams)]
    return [
        Step(migration, stream)
        for scope, stream in places
        for migration in migrations
        if migration.scope == scope and (scope, stream.id, migration.version) not in done
    ]


def verify(migrations: Sequence[Migration], applied: Iterable[Applied]) -> None:
    """Refuse a schema that this library must not touch.

    Raises `SchemaTooNew` when it holds a breaking step that we do not ship, and `MigrationChanged` when the text of an
    applied step is not the one that we ship. Unknown steps that break nothing are fine.
    """
    known = {(each.scope, each.version): each for each in migrations}
    for step in applied:
        migration = known.get((step.scope, step.version))
        if migration is None and step.breaking:
            raise SchemaTooNew(
                f"{step.scope} migration {step.version:04} ({step.name}) breaks older libraries: "
                f"sqlstreams {step.library} or newer is needed, this is {library_version()}"
            )
        if migration is not None and migration.checksum != step.checksum:
            raise MigrationChanged(
                f"{step.scope} migration {step.version:04} ({step.name}) was applied by sqlstreams {step.library} "
                f"with another text than the one shipped with {library_version()}"
            )
