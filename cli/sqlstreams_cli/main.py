"""The command `sqlstreams`: its nouns and verbs, and one place where every failure ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from sqlstreams_cli import (
    consumer,
    dead,
    deadline,
    dev,
    doctor,
    explain,
    failing,
    manager,
    relay,
    scheduler,
    stream,
    system,
)
from sqlstreams_cli.commands import command, with_shared_options
from sqlstreams_cli.connect import Session

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _show_version(asked: bool) -> None:
    if asked:
        print(metadata.version("sqlstreams"))
        raise typer.Exit


@app.callback()
@with_shared_options
def root(
    session: Session,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Streams, consumer groups, schedules and deadlines inside the PostgreSQL you already have."""


for _name, _noun in (
    ("system", system.app),
    ("stream", stream.app),
    ("consumer", consumer.app),
    ("scheduler", scheduler.app),
    ("deadline", deadline.app),
    ("dead", dead.app),
    ("manager", manager.app),
    ("relay", relay.app),
):
    app.add_typer(_noun, name=_name)
command(app, "dev", example="sqlstreams dev")(dev.dev)
command(app, "doctor", example="sqlstreams doctor")(doctor.doctor)
command(app, "explain", example="sqlstreams explain SQL0101")(explain.explain)


@app.command("demo", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(context: typer.Context) -> None:
    """See streams, producers and consumer groups at work.

    Its options are in `sqlstreams demo --help`.
    """
    from sqlstreams_cli.demo.command import demo

    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command()(demo)
    command = typer.main.get_command(alone)
    code = command.main(context.args, prog_name="sqlstreams demo", standalone_mode=False, obj=context.obj)
    raise typer.Exit(code if isinstance(code, int) else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # for as long as the process lives
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        code = _root().main(args=given, prog_name="sqlstreams", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, failing.PipeClosed):
        failing.abandon_stdout()
        return failing.PIPE_CLOSED
    except KeyboardInterrupt:
        return failing.INTERRUPTED
    except Exception as error:
        reported = failing.report(error)
        if reported is None:
            raise
        return reported
    return code if isinstance(code, int) else 0


def _root() -> Any:
    return typer.main.get_command(app)
