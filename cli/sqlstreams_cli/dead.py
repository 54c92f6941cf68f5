"""`sqlstreams dead`: messages that are dead in a group, and what is to become of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session
from sqlstreams_cli.failing import Failed
from sqlstreams_cli.guard import confirm
from sqlstreams_cli.values import parse_time

if TYPE_CHECKING:
    from sqlstreams import Consumer, DeadLetter, DeadLetterDetail, RawPayload

app = noun("Look at dead messages, and redrive or discard them.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)]
OneId = Annotated[int, typer.Argument(metavar="ID", help="The message.", show_default=False)]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Only these messages.", show_default=False)]
OfStream = Annotated[str, typer.Option("--stream", "-s", metavar="NAME", help="Its stream.", show_default=False)]
Error = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only those with this text in 'type: error'.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only those of this key.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only those dead since then or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only those dead before then.")]
All = Annotated[bool, typer.Option("--all", help="All of the group. Asks first.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

_COLUMNS = ("id", "key", "error_type", "error", "failures", "dead_since")


@command(app, "list", example="sqlstreams dead list invoice-runner --stream invoices --error TimeoutError")
def list_dead(
    session: Session,
    group: Group,
    stream: OfStream,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 100,
    after: Annotated[int, typer.Option(metavar="ID", help="Only those behind this message: the next page.")] = 0,
) -> None:
    """List dead messages in the order of their ids.

    JSON: an array; each element has the fields of DeadLetter.
    """
    filters = _filters(error, key, since, until)
    with session.client() as client:
        letters = client.stream(stream).consumer(group).dead_letters(limit=limit, after=after, **filters)
    if session.as_json:
        render.print_json(letters)
    else:
        render.print_table([_row(each) for each in letters], _COLUMNS)


@command(app, "show", example="sqlstreams dead show invoice-runner 4711 --stream invoices")
def show(session: Session, group: Group, message_id: OneId, stream: OfStream) -> None:
    """Show one dead message: its payload, its error and every delivery that did not succeed.

    JSON: one object with the fields of DeadLetter and StoredMessage, and deliveries: an array of DeliveryRecord.
    """
    with session.client() as client:
        shown = client.stream(stream).consumer(group).dead_letter(message_id)
    if shown is None:
        raise Failed(
            f"message {message_id} is not dead in group {group} of stream {stream}",
            fix=f"see what is known of it with `sqlstreams dead history {group} {message_id} --stream {stream}`",
        )
    if session.as_json:
        render.print_json({**_detail(shown), "deliveries": shown.deliveries})
    else:
        payload = None if shown.message is None else bytes(shown.message.payload).decode("utf-8", "backslashreplace")
        render.print_fields({**_detail(shown), "payload": payload})
        print()
        _print_deliveries([render.fields(each) for each in shown.deliveries])


@command(app, "history", example="sqlstreams dead history invoice-runner 4711 --stream invoices")
def history(session: Session, group: Group, message_id: OneId, stream: OfStream) -> None:
    """Show the deliveries of a message that did not succeed, also of one that is not dead.

    JSON: an array; each element has the fields of DeliveryRecord.
    """
    with session.client() as client:
        deliveries = client.stream(stream).consumer(group).deliveries(message_id)
    if session.as_json:
        render.print_json(deliveries)
    else:
        _print_deliveries([render.fields(each) for each in deliveries])


@command(app, "redrive", example="sqlstreams dead redrive invoice-runner --stream invoices --error Timeout --rate 50")
def redrive(
    session: Session,
    group: Group,
    stream: OfStream,
    ids: Ids = None,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="So many a second. Else all at once.")] = None,
    everything: All = False,
    yes: Yes = False,
) -> None:
    """Have dead messages delivered again, with all their retries.

    Takes ids, filters, or --all. The pace of --rate is kept by the consumers: this command ends at once. If it breaks
    off, run it again.

    JSON: one object with the fields of Redriven.
    """
    meant = _meant(ids, _filters(error, key, since, until), everything=everything)
    with session.client() as client:
        consumer = client.stream(stream).consumer(group)
        if everything and not yes:
            _confirm_all(consumer, stream, "redrives", undone="nothing was redriven")
        with _progress("redriven") as progress:
            redriven = consumer.redrive(**meant, everything=everything, rate=rate, progress=progress)
    if session.as_json:
        render.print_json(redriven)
    else:
        print(f"redrove {redriven.messages:,} of group {group} of stream {stream}")
        if rate is not None and redriven.messages:
            render.print_fields({"first_due": redriven.first_due, "last_due": redriven.last_due})


@command(
    app, "discard", example="sqlstreams dead discard invoice-runner 4711 --stream invoices --reason 'paid by hand'"
)
def discard(
    session: Session,
    group: Group,
    stream: OfStream,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the history keeps it.", show_default=False)],
    ids: Ids = None,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    yes: Yes = False,
) -> None:
    """Give up dead messages for good.

    Takes ids, filters, or --all. The messages stay in the log, and their history stays with the reason.

    JSON: one object with messages: how many.
    """
    meant = _meant(ids, _filters(error, key, since, until), everything=everything)
    with session.client() as client:
        consumer = client.stream(stream).consumer(group)
        if everything and not yes:
            _confirm_all(consumer, stream, "discards", undone="nothing was discarded")
        with _progress("discarded") as progress:
            discarded = consumer.discard(**meant, everything=everything, reason=reason, progress=progress)
    if session.as_json:
        render.print_json({"messages": discarded})
    else:
        print(f"discarded {discarded:,} of group {group} of stream {stream}")


def _filters(error: str | None, key: str | None, since: str | None, until: str | None) -> dict[str, Any]:
    return {
        "error": error,
        "key": key,
        "since": None if since is None else parse_time(since, option="--since"),
        "until": None if until is None else parse_time(until, option="--until"),
    }


def _meant(ids: list[int] | None, filters: dict[str, Any], *, everything: bool) -> dict[str, Any]:
    meant = {"message_ids": ids or None, **filters}
    narrowed = any(each is not None for each in meant.values())
    if narrowed and everything:
        raise typer.BadParameter("cannot be given together with ids or filters", param_hint="--all")
    if not narrowed and not everything:
        raise typer.BadParameter("give ids, --error, --key, --since, --until, or --all", param_hint="which messages")
    return meant


def _confirm_all(consumer: Consumer[RawPayload], stream: str, does: str, *, undone: str) -> None:
    dead = consumer.status().dead
    confirm(f"This {does} all {dead:,} dead messages of group {consumer.name} of stream {stream}.", undone=undone)


@contextmanager
def _progress(done: str) -> Iterator[Callable[[int], object] | None]:
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda count: print(f"\r{count:,} {done}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _row(letter: DeadLetter) -> render.Fields:
    return {**render.fields(letter), "error": _first_line(letter.error)}


def _detail(shown: DeadLetterDetail) -> dict[str, object]:
    if shown.message is None:
        return {**render.fields(shown.letter), "payload": None}
    return render.fields(shown.letter, shown.message)


def _print_deliveries(deliveries: list[dict[str, object]]) -> None:
    rows = [{**each, "error": _first_line(each["error"])} for each in deliveries]
    render.print_table(rows, ("at", "attempt", "outcome", "error_type", "error", "hostname", "pid", "changed_by"))


def _first_line(text: object) -> str | None:
    return None if text is None else str(text).split("\n", 1)[0]
