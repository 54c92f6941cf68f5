"""Asking before something is destroyed, or done that cannot be taken back."""

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


def confirm(what: str, *, undone: str) -> None:
    """Let the person at the terminal say yes; refuse where nobody can be asked or the answer is another."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise Failed(f"{undone}: nobody can be asked here", fix="give --yes", exit_code=USAGE)
    talk(what)
    print("Type yes to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failed(undone)
