"""Asking before something is destroyed."""

from __future__ import annotations

import sys

from sqlstreams_cli.connect import talk
from sqlstreams_cli.failing import USAGE, Failed


def confirm_destroying(name: str, what: str) -> None:
    """Let the person at the terminal type the name; refuse where nobody can be asked or the name is another."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise Failed(f"{name} was not destroyed: nobody can be asked here", fix="give --yes", exit_code=USAGE)
    talk(f"This destroys {what}. It cannot be undone.")
    print("Type the name to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise Failed(f"{name} was not destroyed: another name was typed")
