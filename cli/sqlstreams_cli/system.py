"""`sqlstreams system`: the installation itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

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


@command(app, "grant", example="sqlstreams system grant webshop --as producer")
def grant(
    session: Session,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The database role.", show_default=False)],
    kind: Annotated[
        str, typer.Option("--as", metavar="KIND", help="producer, consumer, operator or manager.", show_default=False)
    ],
    apply: Annotated[bool, typer.Option("--apply", help="Carry it out, and for every stream to come.")] = False,
) -> None:
    """Show what a role needs, as SQL, or give it to the role.

    A producer cannot read payloads, a consumer cannot produce, an operator cannot register or destroy streams. A
    manager becomes a member of the owner of the tables.

    JSON: an array of the statements.
    """
    with session.client() as client:
        system = client.system
        statements = system.grant(role, as_=kind) if apply else system.grants(role, as_=kind)
    if session.as_json:
        render.print_json(statements)
    else:
        for statement in statements:
            print(f"{statement};")


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
