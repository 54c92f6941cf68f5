"""`sqlstreams dev`: a database to develop against."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from sqlstreams_cli import render
from sqlstreams_cli.connect import Session, talk


def dev(
    session: Session,
    directory: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where its data is. Else one directory for each user.")
    ] = None,
) -> None:
    """Run a PostgreSQL to develop against.

    Writes its URL on stdout and runs until SIGINT or SIGTERM.
    Everything that uses the same directory shares one server; it ends with its last user, and its data stays.

    JSON: one object with url, version and directory, on one line.
    """
    from sqlstreams import embedded

    with embedded.serve(directory) as server:
        ending = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        others = len(server.users()) - 1
        shared = f", shared with {others} other process{'es' if others > 1 else ''}" if others else ""
        talk(f"PostgreSQL {server.version} {'joined' if server.joined else 'started'}{shared}")
        talk(f"its data is in {server.directory}; it ends with its last user; Ctrl-C leaves it")
        if session.as_json:
            render.print_json_line({"url": server.url, "version": server.version, "directory": str(server.directory)})
        else:
            print(server.url)
        _flush()
        signal.sigwait(ending)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)


def _flush() -> None:
    print(end="", flush=True)
