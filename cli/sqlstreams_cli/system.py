"""`sqlstreams system`: the installation itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session
from sqlstreams_cli.failing import FAILED

if TYPE_CHECKING:
    from sqlstreams import MigrationStep

app = noun("Install sqlstreams, bring it up to date, look at it.")


@command(app, "register", example="sqlstreams system register")
def register(session: Session) -> None:
    """Install into the schema, or bring an installation up to date.

    JSON: an array with the migrations that were applied.
    """
    with session.client() as client:
        _show_steps(session, client.system.register())


@command(app, "migrate", example="sqlstreams system migrate")
def migrate(session: Session) -> None:
    """Bring an existing installation up to date.

    JSON: an array with the migrations that were applied.
    """
    with session.client() as client:
        _show_steps(session, client.system.migrate())


@command(app, "status", example="sqlstreams system status")
def status(session: Session) -> None:
    """Show versions and migrations. Exits with 1 when nothing is installed.

    JSON: one SystemStatus.
    """
    with session.client() as client:
        found = client.system.status()
    if session.as_json:
        render.print_json(found)
    else:
        shown = render.fields(found)
        shown |= {"applied": [_describe(step) for step in found.applied]}
        shown |= {"pending": [_describe(step) for step in found.pending]}
        render.print_fields(shown)
    if not found.installed:
        raise typer.Exit(FAILED)


def _show_steps(session: Session, steps: Sequence[MigrationStep]) -> None:
    if session.as_json:
        render.print_json(steps)
    elif steps:
        render.print_fields({"applied": [_describe(step) for step in steps]})
    else:
        print(f"schema {session.schema_name} is up to date")


def _describe(step: MigrationStep) -> str:
    of = f" of stream {step.stream}" if step.stream else ""
    at = f" on {step.applied_at:%Y-%m-%d}" if step.applied_at else ""
    return f"{step.version:04} {step.name}{of}{at}"
