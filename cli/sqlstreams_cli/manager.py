"""`sqlstreams manager`: schedules and the upkeep of the tables, done by one process for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session, talk

if TYPE_CHECKING:
    from sqlstreams import ManagerStatus

app = noun("Run the manager, look at it, stop it or one of its duties.")

Duty = Annotated[
    str | None,
    typer.Argument(metavar="[DUTY]", help="One of its duties. Else the manager as a whole.", show_default=False),
]

_INSTANCES = ("term", "hostname", "pid", "library", "started_at", "expires_at", "expired")
_DUTIES = (
    "name",
    "suspended",
    "running_since",
    "last_run_at",
    "last_took",
    "last_done",
    "next_run_at",
    "runs",
    "failures",
    "last_error",
)


@command(app, "run", example="sqlstreams manager run")
def run(session: Session) -> None:
    """Run the manager when it is this process's turn, until SIGTERM or SIGINT.

    Every process that consumes does so as well; this is for deployments in which none is always up.
    """
    with session.client() as client:
        talk("running the manager, when no other process does, until Ctrl-C or SIGTERM")
        client.manager.run()


@command(app, "list", example="sqlstreams manager list")
def list_manager(session: Session) -> None:
    """List the processes that run the manager, and what it does.

    JSON: one ManagerStatus.
    """
    with session.client() as client:
        _show(session, client.manager.list())


@command(app, "suspend", example="sqlstreams manager suspend statistics")
def suspend(session: Session, duty: Duty = None) -> None:
    """Have the manager leave a duty alone, or have nobody run the manager.

    JSON: one ManagerStatus.
    """
    with session.client() as client:
        client.manager.suspend(duty)
        _show(session, client.manager.list())


@command(app, "unsuspend", example="sqlstreams manager unsuspend statistics")
def unsuspend(session: Session, duty: Duty = None) -> None:
    """Have the manager do a duty again, or have it run again.

    JSON: one ManagerStatus.
    """
    with session.client() as client:
        client.manager.unsuspend(duty)
        _show(session, client.manager.list())


def _show(session: Session, status: ManagerStatus) -> None:
    if session.as_json:
        render.print_json(status)
        return
    suspended, target, term = status.suspended, status.target_instances, status.term
    render.print_fields({"suspended": suspended, "target_instances": target, "term": term})
    print()
    if status.instances:
        render.print_table([render.fields(each) for each in status.instances], _INSTANCES)
    else:
        print("no process runs it")
    print()
    render.print_table([render.fields(each) for each in status.duties], _DUTIES)
