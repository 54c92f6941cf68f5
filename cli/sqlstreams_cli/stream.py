"""`sqlstreams stream`: streams, what goes into them and what lies in them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session, talk
from sqlstreams_cli.guard import confirm_destroying
from sqlstreams_cli.values import parse_duration, parse_optional_duration, parse_position

if TYPE_CHECKING:
    from sqlstreams import Client, Expiry, RawPayload, StoredMessage, Stream
    from sqlstreams_cli.feed import Feed

app = noun("Register streams, look at them, put messages in and read them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream.", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.", show_default=False)]


@command(app, "list", example="sqlstreams stream list")
def list_streams(session: Session) -> None:
    """List every stream.

    JSON: an array; each element has the fields of StreamInfo and StreamStatus.
    """
    with session.client() as client:
        shown = [each for info in client.list_streams() if (each := _read(client, info.name)) is not None]
    if session.as_json:
        render.print_json(shown)
    else:
        render.print_table(shown, ("name", "head", "last_at", "groups", "partitions", "size"))


@command(app, "get", example="sqlstreams stream get invoices")
def get(session: Session, name: Name) -> None:
    """Show one stream and what its log holds.

    JSON: one object with the fields of StreamInfo and StreamStatus.
    """
    with session.client() as client:
        _show(session, client, name)


@command(app, "register", example="sqlstreams stream register invoices")
def register(
    session: Session,
    name: Name,
    max_payload: Annotated[int, typer.Option(metavar="BYTES", help="The largest payload.")] = 1_048_576,
    partition_rows: Annotated[int, typer.Option(metavar="N", help="The ids that a partition spans.")] = 1_000_000,
    retention: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How old messages become, such as 30d. For ever if not given."),
    ] = None,
    keep_unread: Annotated[
        bool,
        typer.Option("--keep-unread/--drop-unread", help="Whether what a group has not done stays all the same."),
    ] = True,
    compact_after: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Let compaction remove superseded messages of this age: 7d, 12h."),
    ] = None,
    idempotency_ttl: Annotated[
        str, typer.Option(metavar="DURATION", help="How long idempotency keys are remembered.")
    ] = "24h",
) -> None:
    """Declare a stream.

    The newest declaration wins; the same one again changes nothing.
    Installs sqlstreams when the schema holds no installation. JSON: as of `stream get`.
    """
    age = None if compact_after is None else parse_duration(compact_after, option="--compact-after")
    with session.client() as client:
        client.stream(name).register(
            max_payload=max_payload,
            partition_rows=partition_rows,
            retention=None if retention is None else parse_duration(retention, option="--retention"),
            keep_unread=keep_unread,
            compact_after=age,
            idempotency_ttl=parse_duration(idempotency_ttl, option="--idempotency-ttl"),
        )
        _show(session, client, name)


@command(app, "expire", example="sqlstreams stream expire invoices --preview")
def expire(
    session: Session,
    name: Name,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what would be removed.")] = False,
) -> None:
    """Remove the messages that a stream does not keep any more.

    Those older than its retention, with their exceptions and history. Says what holds back the rest.

    JSON: one object with the fields of Expiry.
    """
    with session.client() as client:
        stream = client.stream(name)
        expiry = stream.preview_expire() if preview else stream.expire()
    render.print_json(expiry) if session.as_json else render.print_fields(_describe_expiry(expiry))


@command(app, "rename", example="sqlstreams stream rename invoices bills")
def rename(
    session: Session,
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="Its new name.", show_default=False)],
) -> None:
    """Give a stream another name. Its messages and groups stay.

    JSON: as of `stream get`.
    """
    with session.client() as client:
        client.stream(name).rename(new_name)
        _show(session, client, new_name)


@command(app, "destroy", example="sqlstreams stream destroy bills --yes")
def destroy(
    session: Session,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name.")] = False,
) -> None:
    """Remove a stream with its messages and groups, for ever.

    Asks for its name first.

    JSON: what `stream get` said of it before.
    """
    with session.client(allow_destroy=True) as client:
        stream = client.stream(name)
        shown = _fields(client, name)
        if not yes:
            confirm_destroying(name, f"stream {name}: {shown['head']:,} ids and {shown['groups']} consumer groups")
        stream.destroy()
    if session.as_json:
        render.print_json(shown)
    else:
        print(f"destroyed stream {name}")


@command(app, "produce", example="""echo '{"region": "eu"}' | sqlstreams stream produce invoices --key-field region""")
def produce(
    session: Session,
    name: Name,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="Produce this one message.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="PATH", help="Read lines from here instead of stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The key of every message.")] = None,
    key_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field of the payload whose value is the key.")
    ] = None,
    routing_key: Annotated[str | None, typer.Option(metavar="TEXT", help="The routing key of every message.")] = None,
    routing_key_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field whose value is the routing key.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Append nothing if this was the key of an earlier message.")
    ] = None,
    idempotency_key_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field whose value is the idempotency key.")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="MODE", help="What messages of one key may do. Else as the groups say.")
    ] = None,
    compaction_rank: Annotated[
        int | None, typer.Option(metavar="N", help="Let the messages supersede earlier ones of their key.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver them then and not before: 2026-07-01T10:00Z.")
    ] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Deliver them so much later: 90s, 2h.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a delivery may take.")] = None,
    max_retries: Annotated[int | None, typer.Option(metavar="N", help="Deliveries after the first.")] = None,
    max_delays: Annotated[int | None, typer.Option(metavar="N", help="How often a handler may delay it.")] = None,
    retry_base: Annotated[str | None, typer.Option(metavar="DURATION", help="The pause after a failure.")] = None,
    retry_exponent: Annotated[float | None, typer.Option(metavar="X", help="By how much pauses grow.")] = None,
    retry_cap: Annotated[str | None, typer.Option(metavar="DURATION", help="The longest pause.")] = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Most messages in a transaction.")] = 1_000,
    skip: Annotated[int, typer.Option(metavar="N", min=0, help="Leave out the first N lines.")] = 0,
) -> None:
    """Append messages to a stream.

    One from --payload, or one from each line of JSON in a file or on stdin.
    Blank lines are left out. A batch is committed as a whole. A line that is refused ends the run: what was produced
    before its batch stays, and the output says how to go on with --skip. With --idempotency-key-field the whole input
    may be given again, as long as the stream remembers the keys.

    JSON: one object with produced, duplicates, first_id, last_id, lines and seconds, also when a run ended early.
    """
    from sqlstreams_cli.feed import Feed, Keys
    from sqlstreams_cli.lines import open_lines

    if payload is not None and (file is not None or skip):
        raise typer.BadParameter("goes without --file and --skip", param_hint="--payload")
    if deliver_at is not None and delay is not None:
        raise typer.BadParameter("goes without --deliver-at", param_hint="--delay")
    if idempotency_key is not None and payload is None:
        raise typer.BadParameter("goes with --payload", param_hint="--idempotency-key")
    keys = Keys.checked(
        key=key,
        key_field=key_field,
        routing_key=routing_key,
        routing_key_field=routing_key_field,
        idempotency_key=idempotency_key,
        idempotency_key_field=idempotency_key_field,
        compaction_rank=compaction_rank,
        deliver_at=deliver_at,
    )
    delivery = {
        "concurrency": concurrency,
        "delay": parse_optional_duration(delay, option="--delay"),
        "timeout": parse_optional_duration(timeout, option="--timeout"),
        "max_retries": max_retries,
        "max_delays": max_delays,
        "retry_base": parse_optional_duration(retry_base, option="--retry-base"),
        "retry_exponent": retry_exponent,
        "retry_cap": parse_optional_duration(retry_cap, option="--retry-cap"),
    }
    with session.client() as client:
        feed = Feed(client.stream(name), keys, delivery)
        if payload is not None:
            feed.produce_one(payload.encode("utf-8", "surrogateescape"))
        else:
            with open_lines(file) as source:
                _feed_lines(session, feed, source, batch=batch, skip=skip)
        _show_feed(session, feed)


@command(app, "head", example="sqlstreams stream head invoices eu")
def head(session: Session, name: Name, key: Key) -> None:
    """Show the message that counts of a key.

    Of those produced with a compaction rank, the one with the greatest schema version, then rank, then id.

    JSON: one StoredMessage, its payload as JSON; null when the key has none.
    """
    with session.client() as client:
        message = client.stream(name).head(key)
    if session.as_json:
        render.print_json(message)
    elif message is None:
        talk(f"stream {name} has no message with a compaction rank of this key")
    else:
        render.print_message(message)


@command(app, "history", example="sqlstreams stream history invoices eu --limit 5")
def history(
    session: Session,
    name: Name,
    key: Key,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.")] = 100,
) -> None:
    """Show the messages of a key that were produced with a compaction rank, the newest first.

    JSON: an array; each element is a StoredMessage, its payload as JSON.
    """
    with session.client() as client:
        messages = client.stream(name).history(key, limit=limit)
    if session.as_json:
        render.print_json(messages)
    else:
        for message in messages:
            render.print_message(message)


@command(app, "versions", example="sqlstreams stream versions invoices")
def versions(session: Session, name: Name) -> None:
    """Show the schema versions of a stream, what each group has left of them, and which can be retired.

    JSON: an array; each element has the fields of StreamVersion, and can_retire.
    """
    with session.client() as client:
        found = client.stream(name).versions()
    if session.as_json:
        render.print_json([{**render.fields(each), "can_retire": each.can_retire} for each in found])
    else:
        from sqlstreams import VersionUse

        unused = VersionUse("-", waiting=0, unread=0, dead=0)
        rows = [
            {**render.fields(each, use), "can_retire": each.can_retire}
            for each in found
            for use in each.groups or (unused,)
        ]
        render.print_table(
            rows, ("schema_version", "registered_at", "can_retire", "group", "waiting", "unread", "dead")
        )


@command(app, "waiting", example="sqlstreams stream waiting invoices --limit 20")
def waiting(
    session: Session,
    name: Name,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="NAME", help="Only in this group.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.")] = 100,
) -> None:
    """Show the messages produced for later that wait in groups, and when they are due: the first due first.

    JSON: an array; each element has the fields of WaitingMessage.
    """
    with session.client() as client:
        stream = client.stream(name)
        messages = stream.waiting(limit=limit) if group is None else stream.consumer(group).waiting(limit=limit)
    if session.as_json:
        render.print_json(messages)
    else:
        render.print_table([render.fields(each) for each in messages], ("id", "key", "group", "due_at", "created_at"))


@command(app, "cancel", example="sqlstreams stream cancel invoices 4711")
def cancel(
    session: Session,
    name: Name,
    message_id: Annotated[int, typer.Argument(metavar="ID", help="The message.", show_default=False)],
) -> None:
    """Have a message that was produced for later not be delivered, wherever that has not begun.

    Says for each group whether that came in time.

    JSON: an array; each element has the fields of Cancellation.
    """
    with session.client() as client:
        outcomes = client.stream(name).cancel(message_id)
    if session.as_json:
        render.print_json(outcomes)
    else:
        render.print_table([render.fields(each) for each in outcomes], ("group", "outcome"))


@command(app, "compact", example="sqlstreams stream compact invoices --older-than 7d")
def compact(
    session: Session,
    name: Name,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Their least age: 0s, 12h, 7d. Without it as the stream is registered."),
    ] = None,
) -> None:
    """Remove superseded messages that every group is done with.

    The head of a key stays, and so does what waits, runs or is dead in any group.

    JSON: one object with removed.
    """
    age = None if older_than is None else parse_duration(older_than, option="--older-than")
    with session.client() as client:
        removed = client.stream(name).compact(older_than=age)
    if session.as_json:
        render.print_json({"removed": removed})
    else:
        print(f"removed {removed:,} superseded messages of stream {name}")


@command(app, "tail", example="sqlstreams stream tail invoices --from beginning --limit 5")
def tail(
    session: Session,
    name: Name,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help="beginning, head, the id to begin behind, or a time."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="So many of the last messages; with --from, at most so many."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with messages as they come.")] = False,
) -> None:
    """Show messages of a stream.

    The last 10, or those behind a position; with --follow also those to come.
    With --follow a message is shown when nothing can appear before it any more, so none is left out.

    JSON: one StoredMessage a line (NDJSON), its payload as JSON.
    """
    position = None if start is None else parse_position(start, option="--from")
    with session.client() as client:
        stream = client.stream(name)
        if position is None:
            messages = _last(stream, limit=limit or 10, follow=follow)
        elif follow:
            messages = itertools.islice(stream.tail(position), limit)  # type: ignore[arg-type]  # parse_position returns no other text
        else:
            messages = itertools.islice(_read_all(stream, position), limit)
        _print_messages(session, messages, follow=follow)


def _describe_expiry(expiry: Expiry) -> render.Fields:
    lost = [f"{each.group}: {each.messages:,} from {each.first_id} to {each.last_id}" for each in expiry.lost]
    return {**render.fields(expiry), "lost": lost}


def _last(stream: Stream[RawPayload], *, limit: int, follow: bool) -> Iterator[StoredMessage]:
    last = stream.last(limit=limit)
    yield from last
    if follow:
        yield from stream.tail(last[-1].id if last else "beginning")


def _read_all(stream: Stream[RawPayload], position: object) -> Iterator[StoredMessage]:
    while messages := stream.read(position, limit=1_000):  # type: ignore[arg-type]  # parse_position returns no other text
        yield from messages
        position = messages[-1].id


def _print_messages(session: Session, messages: Iterable[StoredMessage], *, follow: bool) -> None:
    for message in messages:
        if session.as_json:
            render.print_json_line(message)
        else:
            render.print_message(message)
        if follow:
            sys.stdout.flush()


def _read(client: Client, name: str) -> render.Fields | None:
    from sqlstreams.errors import NotFound

    try:
        return _fields(client, name)
    except NotFound:  # destroyed since it was listed
        return None


def _fields(client: Client, name: str) -> dict[str, object]:
    from sqlstreams.errors import NotFound

    stream = client.stream(name)
    info = stream.get()
    if info is None:
        raise NotFound("stream", name)
    return render.fields(info, stream.status())


def _show(session: Session, client: Client, name: str) -> None:
    shown = _fields(client, name)
    if session.as_json:
        render.print_json(shown)
    else:
        render.print_fields(shown)


def _feed_lines(session: Session, feed: Feed, source: BinaryIO, *, batch: int, skip: int) -> None:
    try:
        feed.produce_lines(source, batch=batch, skip=skip)
    except BaseException:
        _show_feed(session, feed)
        talk(feed.how_to_go_on())
        raise


def _show_feed(session: Session, feed: Feed) -> None:
    if session.as_json:
        render.print_json(feed.summary)
    else:
        print(feed.describe())
