"""What is said when a command does not work, and the exit code that goes with it."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any

import typer

from sqlstreams_cli.connect import talk

FAILED = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell shows for a program whose reader went away, as `head` does."""


class Failed(Exception):
    """A command cannot go on, for a reason that has no code of the library."""

    def __init__(self, problem: str, *, fix: str | None = None, exit_code: int = FAILED) -> None:
        super().__init__(problem)
        self.fix = fix
        self.exit_code = exit_code


class PipeClosed(Exception):
    """Whoever read our output went away."""


def report(error: Exception) -> int | None:
    """Tell the user what went wrong; return the exit code, or None for what is a bug of ours."""
    match error:
        case Failed():
            talk(f"error: {error}")
            _say_fix(error, error.fix)
            return error.exit_code
        case typer.TyperException():
            return _report_usage(error)
        case typer.Abort():
            return INTERRUPTED
        case OSError(errno=int()) if not _is_ours(error):
            talk(f"error: {error.strerror}{f': {error.filename}' if error.filename else ''}")
            return FAILED
        case _:
            return _report_known(error)


def _report_usage(error: typer.TyperException) -> int:
    context: Any = getattr(error, "ctx", None)
    message = error.format_message()
    if message.startswith("Usage:"):  # a noun without its verb: the message is the help
        talk(message)
        return USAGE
    talk(f"error: {message}")
    if context is not None:
        talk(f"{context.get_usage()}\nmore: {context.command_path} --help")
    return USAGE


def _report_known(error: Exception) -> int | None:
    import psycopg

    from sqlstreams.errors import InvalidInput, SqlstreamsError, explain
    from sqlstreams_cli.feed import LineRefused

    if isinstance(error, SqlstreamsError):
        talk(f"error {error.code}: {without_password(str(error))}")
        diagnosis = explain(error.code)
        _say_fix(error, None if diagnosis is None else diagnosis.fix)
        talk(f"more: sqlstreams explain {error.code}")
        return USAGE if error.code == InvalidInput.code and not isinstance(error, LineRefused) else FAILED
    if isinstance(error, psycopg.Error):
        talk(f"error {error.sqlstate or ''}".rstrip() + f": the database refused: {str(error).strip()}")
        _say_fix(error, "see what this role and server allow with `sqlstreams doctor`")
        return FAILED
    return None


def without_password(text: str) -> str:
    """Return a message without the password of a URL that it quotes."""
    return re.sub(r"(://[^:@/\s]*):[^@/\s]*@", r"\1:***@", text)


def _say_fix(error: Exception, fix: str | None) -> None:
    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes:
        talk(note)
    if fix and not any(note.startswith("fix: ") for note in notes):
        talk(f"fix: {fix}")


def _is_ours(error: OSError) -> bool:
    return type(error).__module__.startswith(("sqlstreams", "psycopg"))


def abandon_stdout() -> None:
    """Let what nobody reads any more go nowhere, so that the end of the process does not stumble over it."""
    with suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
