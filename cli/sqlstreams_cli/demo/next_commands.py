"""Commands to try after the demo, as they work when pasted into the same shell."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sqlstreams_cli.connect import URL_VARIABLE
from sqlstreams_cli.demo.play import STREAM


def next_commands(schema: str, database_url: str | None) -> list[str]:
    """Return commands that find what the demo has left behind; the URL is the one given on the command line.

    A password in it is not repeated: the first command then asks for it.
    """
    before, here = [], f"--schema {shlex.quote(schema)}"
    if database_url is not None and _has_password(database_url):
        masked = make_conninfo(database_url, password="***")  # noqa: S106  # the absence of one
        before = [f"export {URL_VARIABLE}={shlex.quote(masked)}  # with the password for ***"]
    elif database_url is not None:
        here += f" --database-url {shlex.quote(database_url)}"
    program = _program()
    return [
        *before,
        f"{program} stream tail {STREAM} {here} --limit 3",
        f"{program} consumer get per-zone --stream {STREAM} {here}",
        f"{program} explain SQL0106",
    ]


def _has_password(database_url: str) -> bool:
    return bool(conninfo_to_dict(database_url).get("password"))


def _program() -> str:
    called = Path(sys.argv[0]).absolute()
    if called.name == "__main__.py":
        return f"{_shortest(Path(sys.executable))} -m sqlstreams_cli"
    return _shortest(called)


def _shortest(program: Path) -> str:
    """Return the shortest text that calls a program from this directory."""
    if shutil.which(program.name) == str(program):
        return shlex.quote(program.name)
    here = Path.cwd()
    return shlex.quote(str(program.relative_to(here) if program.is_relative_to(here) else program))
