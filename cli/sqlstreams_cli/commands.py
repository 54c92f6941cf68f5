"""How a command is declared: its example, and the options that it shares with all others."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer

from sqlstreams_cli.connect import Session
from sqlstreams_cli.failing import PipeClosed

CommandT = TypeVar("CommandT", bound=Callable[..., None])


def share(
    context: typer.Context,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The PostgreSQL to use. Else SQLSTREAMS_DATABASE_URL, else the embedded server."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The schema to work in. Else SQLSTREAMS_SCHEMA, else sqlstreams."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write only JSON on stdout.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more on stderr.")] = False,
) -> None:
    """Take the shared options, which may stand before the noun, before the verb or behind it: the last one counts."""
    before = context.obj if isinstance(context.obj, Session) else Session()
    context.obj = Session(
        database_url=database_url or before.database_url,
        schema=schema or before.schema,
        as_json=as_json or before.as_json,
        verbose=verbose or before.verbose,
    )


SHARED = inspect.signature(share, eval_str=True)


def noun(text: str) -> typer.Typer:
    """Return the room for the verbs of a noun."""
    app = typer.Typer(help=text, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    app.callback()(share)
    return app


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[CommandT], CommandT]:
    """Declare a function as a command; it is called with the `Session` first."""

    def declare(function: CommandT) -> CommandT:
        app.command(name, epilog=f"\b\nExample:\n  {example}")(with_shared_options(function))
        return function

    return declare


def with_shared_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` as a command that takes the shared options beside its own and gives them as a `Session`."""
    context, *shared = SHARED.parameters.values()
    _, *own = inspect.signature(function, eval_str=True).parameters.values()

    @functools.wraps(function)
    def run(context: typer.Context, **arguments: Any) -> None:
        share(context, **{each.name: arguments.pop(each.name) for each in shared})
        with _logs_on_stderr(verbose=context.obj.verbose):
            try:
                function(context.obj, **arguments)
            except BrokenPipeError:
                raise PipeClosed from None  # typer has an answer of its own to the built-in

    parameters = [context, *own, *shared]
    as_keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(as_keywords)  # type: ignore[attr-defined]  # what inspect.signature reads
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


@contextmanager
def _logs_on_stderr(*, verbose: bool) -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root, ours, driver = logging.getLogger(), logging.getLogger("sqlstreams"), logging.getLogger("psycopg")
    before = ours.level, driver.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO if verbose else logging.WARNING)
    # Of a connection that is dropped, by Ctrl-C for one, the driver tells what nobody asked.
    driver.setLevel(logging.INFO if verbose else logging.ERROR)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(before[0])
        driver.setLevel(before[1])
