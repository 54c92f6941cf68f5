"""`sqlstreams explain`: what a code means, without any database."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from sqlstreams_cli import render
from sqlstreams_cli.connect import Session
from sqlstreams_cli.failing import Failed

if TYPE_CHECKING:
    from sqlstreams import Diagnosis


def explain(
    session: Session,
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="A code such as SQL0101; without one, all are listed.")
    ] = None,
) -> None:
    """Say what a code means and what to do about it.

    Needs no database.

    JSON: one Diagnosis, or an array of all.
    """
    from sqlstreams.errors import CATALOGUE

    if code is None:
        _show_all(session, list(CATALOGUE.values()))
        return
    wanted = _normal(code)
    if wanted not in CATALOGUE:
        close = difflib.get_close_matches(wanted, CATALOGUE, n=3)
        raise Failed(
            f"there is no code {wanted}", fix=f"did you mean {' or '.join(close)}?" if close else "sqlstreams explain"
        )
    found = CATALOGUE[wanted]
    if found.query is not None:
        found = msgspec.structs.replace(found, query=found.query.replace("{schema}", session.schema_name))
    if session.as_json:
        render.print_json(found)
        return
    print(f"{found.code}  {found.title}\n\n{found.problem}\n\nWhat to do: {found.fix}")
    if found.query is not None:
        print(f"\nTo look at it:\n  {found.query}")


def _show_all(session: Session, all_codes: Sequence[Diagnosis]) -> None:
    if session.as_json:
        render.print_json(all_codes)
    else:
        render.print_table([render.fields(each) for each in all_codes], ("code", "title"))


def _normal(code: str) -> str:
    """Return `12`, `sql12` and `SQL0012` as SQL0012."""
    digits = code.strip().upper().removeprefix("SQL")
    return f"SQL{digits:>04}" if digits.isascii() and digits.isdecimal() else code.strip().upper()
