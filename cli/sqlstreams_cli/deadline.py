"""`sqlstreams deadline`: which rows of a table come due, and what became of those that did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session
from sqlstreams_cli.guard import confirm_destroying
from sqlstreams_cli.values import parse_time

if TYPE_CHECKING:
    from sqlstreams import Client

app = noun("Register deadlines of rows, look at them, and observe, activate, stop or replay them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The deadline.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", help="At most so many.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="COLUMN=VALUE", help="Only rows whose column is so; may be given several times."),
]

_LISTED = ("name", "stream", "table", "from_state", "to_state", "mode", "suspended")


@command(app, "list", example="sqlstreams deadline list")
def list_deadlines(
    session: Session,
    stream: Annotated[
        str | None, typer.Option("--stream", "-s", metavar="NAME", help="Only those of this stream.")
    ] = None,
) -> None:
    """List every deadline, or those of one stream.

    JSON: an array; each element has the fields of DeadlineInfo, and suspended.
    """
    with session.client() as client:
        shown = [_described(info) for info in client.list_deadlines(stream)]
    if session.as_json:
        render.print_json(shown)
    else:
        render.print_table(shown, _LISTED)


@command(app, "get", example="sqlstreams deadline get overdue")
def get(session: Session, name: Name) -> None:
    """Show one deadline: which rows come due, and where their messages go.

    JSON: one object with the fields of DeadlineInfo, and suspended.
    """
    with session.client() as client:
        _show(session, client, name)


@command(
    app,
    "register",
    example="sqlstreams deadline register overdue invoices --table bills --key id --deadline due_at --state state "
    "--from open --to overdue --observe",
)
def register(
    session: Session,
    name: Name,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Where its messages go.", show_default=False)],
    table: Annotated[str, typer.Option(metavar="TABLE", help="The table, as SQL has its name.", show_default=False)],
    key: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that names a row, and its message.", show_default=False)
    ],
    deadline: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that says when a row is due.", show_default=False)
    ],
    state: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that says what a row is.", show_default=False)
    ],
    from_state: Annotated[
        str, typer.Option("--from", metavar="VALUE", help="The state of rows that come due.", show_default=False)
    ],
    to_state: Annotated[
        str, typer.Option("--to", metavar="VALUE", help="The state that they get.", show_default=False)
    ],
    batch: Annotated[int, typer.Option(metavar="N", help="How many rows are moved in one transaction.")] = 200,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the payload; may be given several times. Else all."),
    ] = None,
    observe: Annotated[bool, typer.Option("--observe", help="Begin by only looking.")] = False,
    only: Only = None,
) -> None:
    """Declare a deadline.

    The newest declaration wins; the same one again changes nothing. --observe and --only are where a new one begins:
    `deadline observe` and `deadline activate` change them later.

    JSON: as of `deadline get`.
    """
    with session.client() as client:
        client.deadline(name).register(
            stream,
            table=table,
            key=key,
            deadline=deadline,
            state=state,
            from_state=from_state,
            to_state=to_state,
            batch=batch,
            columns=column or None,
            mode="observe" if observe else "active",
            only=_only(only),
        )
        _show(session, client, name)


@command(app, "observe", example="sqlstreams deadline observe overdue")
def observe(session: Session, name: Name) -> None:
    """Have a deadline only look: nothing is moved until `deadline activate`.

    JSON: as of `deadline get`.
    """
    with session.client() as client:
        client.deadline(name).observe()
        _show(session, client, name)


@command(app, "activate", example="sqlstreams deadline activate overdue --only region=eu")
def activate(session: Session, name: Name, only: Only = None) -> None:
    """Have a deadline move what is due: all rows, or those that --only names.

    JSON: as of `deadline get`.
    """
    with session.client() as client:
        client.deadline(name).activate(only=_only(only))
        _show(session, client, name)


@command(app, "suspend", example="sqlstreams deadline suspend overdue")
def suspend(session: Session, name: Name) -> None:
    """Stop a deadline. Rows keep their state and stay due.

    JSON: as of `deadline get`.
    """
    with session.client() as client:
        client.deadline(name).suspend()
        _show(session, client, name)


@command(app, "unsuspend", example="sqlstreams deadline unsuspend overdue")
def unsuspend(session: Session, name: Name) -> None:
    """Let a deadline go on, with whatever has come due meanwhile.

    JSON: as of `deadline get`.
    """
    with session.client() as client:
        client.deadline(name).unsuspend()
        _show(session, client, name)


@command(app, "status", example="sqlstreams deadline status overdue")
def status(session: Session, name: Name) -> None:
    """Show how a deadline fares, and measure what is due now.

    JSON: one object with the fields of DeadlineStatus.
    """
    with session.client() as client:
        shown = client.deadline(name).status()
    if session.as_json:
        render.print_json(shown)
        return
    asides = [f"{each.key}: {each.last_error} ({each.failures} failures)" for each in shown.asides]
    render.print_fields({**render.fields(shown), "asides": asides})


@command(
    app,
    "replay",
    example="sqlstreams deadline replay overdue --from 2026-01-01T10:00Z --until 2026-01-01T10:15Z",
)
def replay(
    session: Session,
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first deadline.", show_default=False)],
    until: Annotated[str, typer.Option(metavar="TIME", help="The last deadline.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="Refuse to do more than so many.")] = 10_000,
) -> None:
    """Produce the messages of moved rows again whose deadline lies between two times.

    Each once for each call, in one transaction, with a header that names the call.

    JSON: one object with the fields of Replayed.
    """
    with session.client() as client:
        done = client.deadline(name).replay(
            parse_time(start, option="--from"), parse_time(until, option="--until"), limit=limit
        )
    if session.as_json:
        render.print_json(done)
    else:
        print(f"produced {done.messages:,} messages of deadline {name} again; header sqlstreams-replay: {done.replay}")


@command(app, "history", example="sqlstreams deadline history overdue")
def history(session: Session, name: Name, limit: Limit = 20) -> None:
    """Show its changes, the latest first; also of one that was destroyed.

    JSON: an array; each element has the fields of DeadlineEdit.
    """
    with session.client() as client:
        shown = client.deadline(name).edits(limit=limit)
    if session.as_json:
        render.print_json(shown)
    else:
        rows = [{**render.fields(each), "mode": each.config.get("mode")} for each in shown]
        render.print_table(rows, ("changed_at", "action", "changed_by", "mode"))


@command(app, "destroy", example="sqlstreams deadline destroy overdue --yes")
def destroy(
    session: Session,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name.")] = False,
) -> None:
    """Remove a deadline, for ever. Its rows and messages stay.

    Asks for its name first.

    JSON: what `deadline get` said of it before.
    """
    with session.client(allow_destroy=True) as client:
        shown = _read(client, name)
        if not yes:
            confirm_destroying(name, f"deadline {name} on {shown['table']}")
        client.deadline(name).destroy()
    if session.as_json:
        render.print_json(shown)
    else:
        print(f"destroyed deadline {name}")


def _only(given: list[str] | None) -> dict[str, str]:
    only = {}
    for each in given or ():
        column, equals, value = each.partition("=")
        if not (column and equals):
            raise typer.BadParameter(f"must be COLUMN=VALUE, got {each!r}", param_hint="--only")
        only[column] = value
    return only


def _read(client: Client, name: str) -> dict[str, Any]:
    from sqlstreams.errors import NotFound

    info = client.deadline(name).get()
    if info is None:
        raise NotFound("deadline", name)
    return _described(info)


def _described(info: Any) -> dict[str, Any]:
    return {**render.fields(info), "suspended": info.suspended}


def _show(session: Session, client: Client, name: str) -> None:
    shown = _read(client, name)
    if session.as_json:
        render.print_json(shown)
    else:
        only = [f"{column} = {value}" for column, value in shown["only"].items()]
        render.print_fields({**shown, "only": only})
