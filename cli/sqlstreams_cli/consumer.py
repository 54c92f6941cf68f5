"""`sqlstreams consumer`: consumer groups, where they stand, and running them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session, talk
from sqlstreams_cli.guard import confirm, confirm_destroying
from sqlstreams_cli.values import (
    describe_time,
    parse_count_bounds,
    parse_duration,
    parse_duration_bounds,
    parse_position,
)

if TYPE_CHECKING:
    from sqlstreams import BindingDeclaration, Client, Consumer, RawPayload, Rewind, Skip

app = noun("Register consumer groups, look at them and run them.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)]
To = Annotated[
    str, typer.Option(metavar="POSITION", help="beginning, head, an id to go on behind, or a time.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AtMost = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.")]
Preview = Annotated[bool, typer.Option("--preview", help="Only show what it would do.")]
OfStream = Annotated[str, typer.Option("--stream", "-s", metavar="NAME", help="Its stream.", show_default=False)]


@command(app, "list", example="sqlstreams consumer list")
def list_consumers(
    session: Session,
    stream: Annotated[
        str | None, typer.Option("--stream", "-s", metavar="NAME", help="Only the groups of this stream.")
    ] = None,
) -> None:
    """List consumer groups and how far behind they are.

    JSON: an array; each element has the fields of GroupInfo and GroupStatus.
    """
    with session.client() as client:
        infos = client.list_consumers(stream)
        shown = [each for info in infos if (each := _read(client, info.stream, info.name)) is not None]
    if session.as_json:
        render.print_json(shown)
    else:
        behind, waiting = (
            ("lag", "lag_time", "processes"),
            ("waiting", "ready", "inflight", "deferred", "unread", "dead", "superseded"),
        )
        columns = ("stream", "name", *behind, *waiting, "holders")
        render.print_table(shown, columns)


@command(app, "get", example="sqlstreams consumer get invoice-runner --stream invoices")
def get(session: Session, group: Group, stream: OfStream) -> None:
    """Show one group and where it stands.

    Its settings, its lag, its processes, its exceptions and who holds back its next claim.

    JSON: one object with the fields of GroupInfo, GroupStatus and GroupBindings, and instances, an array.
    """
    with session.client() as client:
        _show(session, client.stream(stream).consumer(group))


@command(app, "register", example="sqlstreams consumer register invoice-runner --stream invoices --start head")
def register(
    session: Session,
    group: Group,
    stream: OfStream,
    start: Annotated[
        str,
        typer.Option(metavar="POSITION", help="Where a new group begins: beginning, head, behind an id, or a time."),
    ] = "beginning",
    max_retries: Annotated[int, typer.Option(metavar="N", help="Deliveries after the first before it is dead.")] = 10,
    retry_base: Annotated[str, typer.Option(metavar="DURATION", help="The pause after the first failure.")] = "1s",
    retry_exponent: Annotated[float, typer.Option(metavar="X", help="By how much each pause is longer.")] = 2.0,
    retry_cap: Annotated[str, typer.Option(metavar="DURATION", help="The longest pause.")] = "10m",
    max_delays: Annotated[
        int | None, typer.Option(metavar="N", help="How often a handler may delay a message. Else without end.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long one delivery may take. Else without end.")
    ] = None,
    limit_timeout: Annotated[
        str | None, typer.Option(metavar="LOW..HIGH", help="Bounds of the timeout that messages ask for, as 1s..5m.")
    ] = None,
    limit_max_retries: Annotated[
        str | None, typer.Option(metavar="LOW..HIGH", help="Bounds of their max-retries, as ..20.")
    ] = None,
    limit_max_delays: Annotated[
        str | None, typer.Option(metavar="LOW..HIGH", help="Bounds of their max-delays, as ..100.")
    ] = None,
    delivery_log: Annotated[
        str, typer.Option(metavar="MODE", help="What the history keeps: failures, all deliveries, or off.")
    ] = "failures",
    concurrency: Annotated[
        str,
        typer.Option(metavar="MODE", help="What messages of one key may do: run parallel, exclusive, or ordered."),
    ] = "parallel",
    bindings: Annotated[
        list[str] | None,
        typer.Option(
            "--binding",
            metavar="PATTERN",
            help="Take only messages whose routing key matches; * is any characters. May be given several times.",
        ),
    ] = None,
) -> None:
    """Declare a group.

    The newest declaration wins; the same one again changes nothing. Bindings other than those in force wait while
    processes consume that declared the ones in force.

    JSON: as of `consumer get`, and binding_outcome: installed, joined or waiting.
    """
    position = parse_position(start, option="--start")
    base, cap = parse_duration(retry_base, option="--retry-base"), parse_duration(retry_cap, option="--retry-cap")
    from sqlstreams import DeliveryLimits

    limits = DeliveryLimits(
        timeout=parse_duration_bounds(limit_timeout, option="--limit-timeout"),
        max_retries=parse_count_bounds(limit_max_retries, option="--limit-max-retries"),
        max_delays=parse_count_bounds(limit_max_delays, option="--limit-max-delays"),
    )
    with session.client() as client:
        consumer = client.stream(stream).consumer(group)
        consumer.register(
            limits=limits,
            start=position,  # type: ignore[arg-type]  # parse_position returns no other text
            max_retries=max_retries,
            retry_base=base,
            retry_exponent=retry_exponent,
            retry_cap=cap,
            max_delays=max_delays,
            timeout=None if timeout is None else parse_duration(timeout, option="--timeout"),
            delivery_log=delivery_log,
            concurrency=concurrency,
            bindings=bindings,
        )
        _show(session, consumer, binding_outcome=consumer.binding_outcome)


@command(app, "blocked", example="sqlstreams consumer blocked invoice-runner --stream invoices")
def blocked(
    session: Session,
    group: Group,
    stream: OfStream,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many keys.")] = 100,
) -> None:
    """List the keys whose messages wait for each other, and what blocks them.

    JSON: an array; each element has the fields of BlockedKey.
    """
    with session.client() as client:
        keys = client.stream(stream).consumer(group).blocked_keys(limit=limit)
    if session.as_json:
        render.print_json(keys)
    else:
        columns = ("key", "waiting", "first_id", "blocked_by", "state", "failures", "can_run_after", "pid")
        render.print_table([render.fields(each) for each in keys], columns)


@command(app, "bindings", example="sqlstreams consumer bindings invoice-runner --stream invoices --try 'eu.*'")
def bindings(
    session: Session,
    group: Group,
    stream: OfStream,
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="PATTERN", help="Try this instead, and others given so; nothing is declared."),
    ] = None,
    last: Annotated[int, typer.Option(metavar="N", help="How many messages to look at.")] = 1_000,
) -> None:
    """Show what a group's bindings take of the last messages, by routing key.

    JSON: one object with the fields of BindingPreview, and bindings: the patterns.
    """
    from sqlstreams.errors import NotFound

    with session.client() as client:
        consumer = client.stream(stream).consumer(group)
        info = consumer.get()
        if info is None:
            raise NotFound("consumer group", f"{group} on {stream}")
        patterns = tuple(tried or info.bindings)
        preview = consumer.preview_bindings(patterns, last=last)
    if session.as_json:
        render.print_json({"bindings": patterns, **render.fields(preview)})
    else:
        shown = ", ".join(patterns) or "no bindings, so everything"
        talk(f"{preview.matching:,} of the last {preview.looked_at:,} messages match: {shown}")
        rows = [render.fields(use) for use in preview.routing_keys]
        render.print_table(rows, ("routing_key", "messages", "last_id", "matches"))


@command(app, "rename", example="sqlstreams consumer rename invoice-runner runner --stream invoices")
def rename(
    session: Session,
    group: Group,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="Its new name.", show_default=False)],
    stream: OfStream,
) -> None:
    """Give a group another name. Its cursor stays.

    JSON: as of `consumer get`.
    """
    with session.client() as client:
        _show(session, client.stream(stream).consumer(group).rename(new_name))


@command(
    app, "rewind", example="sqlstreams consumer rewind invoice-runner --stream invoices --to 2026-07-01T10:00Z --yes"
)
def rewind(
    session: Session, group: Group, stream: OfStream, to: To, yes: Yes = False, preview: Preview = False
) -> None:
    """Deliver messages to a group once more.

    Everything behind the position, whatever became of it: exceptions of those messages are removed, dead ones too, and
    running processes lose the ranges that they have. Shows what that means and asks first.

    JSON: one object with the fields of Rewind.
    """
    position = parse_position(to, option="--to")
    with session.client() as client:
        consumer = client.stream(stream).consumer(group)
        seen = consumer.preview_rewind(position)  # type: ignore[arg-type]  # parse_position returns no other text
        if not preview and seen.position < seen.claimed:
            if not yes:
                confirm(_describe_rewind(group, seen), undone=f"{group} was not rewound")
            seen = consumer.rewind(position)  # type: ignore[arg-type]  # as above
    render.print_json(seen) if session.as_json else render.print_fields(render.fields(seen))


@command(app, "skip", example="sqlstreams consumer skip invoice-runner --stream invoices --to head --yes")
def skip(session: Session, group: Group, stream: OfStream, to: To, yes: Yes = False, preview: Preview = False) -> None:
    """Have a group leave messages out.

    Those up to the position that no process was given yet. Retries and dead messages stay. Shows what that means and
    asks first.

    JSON: one object with the fields of Skip.
    """
    position = parse_position(to, option="--to")
    with session.client() as client:
        consumer = client.stream(stream).consumer(group)
        seen = consumer.preview_skip(position)  # type: ignore[arg-type]  # parse_position returns no other text
        if not preview and seen.position > seen.claimed:
            if not yes:
                confirm(_describe_skip(group, seen), undone=f"{group} skipped nothing")
            seen = consumer.skip(position)  # type: ignore[arg-type]  # as above
    render.print_json(seen) if session.as_json else render.print_fields(render.fields(seen))


@command(app, "positions", example="sqlstreams consumer positions invoice-runner --stream invoices")
def positions(session: Session, group: Group, stream: OfStream, limit: AtMost = 100) -> None:
    """Show who moved a group from where to where, and what it lost to retention: the last first.

    JSON: an array; each element has the fields of PositionChange.
    """
    with session.client() as client:
        changes = client.stream(stream).consumer(group).positions(limit=limit)
    if session.as_json:
        render.print_json(changes)
    else:
        columns = ("changed_at", "changed_by", "action", "claimed", "position", "messages", "first_id", "last_id")
        render.print_table([render.fields(each) for each in changes], columns)


@command(app, "reclaims", example="sqlstreams consumer reclaims invoice-runner --stream invoices")
def reclaims(session: Session, group: Group, stream: OfStream, limit: AtMost = 100) -> None:
    """Show what was taken over from processes that died, and so may have been delivered twice: the last first.

    JSON: an array; each element has the fields of Reclaim.
    """
    with session.client() as client:
        taken = client.stream(stream).consumer(group).reclaims(limit=limit)
    if session.as_json:
        render.print_json(taken)
    else:
        columns = ("reclaimed_at", "low", "high", "resolved", "from_hostname", "from_pid")
        render.print_table([render.fields(each) for each in taken], columns)


@command(app, "destroy", example="sqlstreams consumer destroy runner --stream invoices --yes")
def destroy(
    session: Session,
    group: Group,
    stream: OfStream,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name.")] = False,
) -> None:
    """Remove a group with its cursor and its exceptions.

    The messages stay. Asks for its name first.

    JSON: what `consumer get` said of it before.
    """
    with session.client(allow_destroy=True) as client:
        consumer = client.stream(stream).consumer(group)
        shown = _fields(consumer)
        if not yes:
            confirm_destroying(
                group, f"consumer group {group} of stream {stream}, which is {shown['lag']:,} ids behind"
            )
        consumer.destroy()
    if session.as_json:
        render.print_json(shown)
    else:
        print(f"destroyed consumer group {group} of stream {stream}")


@command(app, "run", example="sqlstreams consumer run builtins:print --stream invoices --group printer --register")
def run(
    session: Session,
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="What is called with each payload.", show_default=False)
    ],
    stream: OfStream,
    group: Annotated[str, typer.Option("--group", "-g", metavar="NAME", help="The group.", show_default=False)],
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Run so many processes.")] = 1,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Handlers at a time, in each process.")] = 10,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Call the function with a list of up to so many payloads.")
    ] = None,
    transactional: Annotated[
        bool,
        typer.Option("--transactional", help="Give the function a connection whose commit records the delivery too."),
    ] = False,
    prefetch: Annotated[
        int | None, typer.Option(metavar="N", help="Messages claimed at a time. Else as many as the pace asks for.")
    ] = None,
    grace: Annotated[str, typer.Option(metavar="DURATION", help="How long handlers may go on after a signal.")] = "30s",
    create: Annotated[bool, typer.Option("--register", help="Register the group if it is absent.")] = False,
    no_manager: Annotated[bool, typer.Option("--no-manager", help="Leave the manager to other processes.")] = False,
) -> None:
    """Deliver messages to a function until SIGTERM or SIGINT.

    The function is imported, from the current directory too. The annotation of its first parameter is the payload
    type, or a list of it with --batch; without one, or with bytes, it gets the stored JSON as bytes. A second signal
    does not wait for handlers.

    With --processes, a process that crashes is started again after a pause; all end when this one does.
    """
    from sqlstreams_cli import running

    plan = running.Plan(
        handler=handler,
        stream=stream,
        group=group,
        processes=processes,
        concurrency=concurrency,
        batch=batch,
        transactional=transactional,
        prefetch=prefetch,
        grace=parse_duration(grace, option="--grace"),
        register=create,
        manager=not no_manager,
    )
    code = running.run(session, plan)
    if code:
        raise typer.Exit(code)


def _describe_rewind(group: str, seen: Rewind) -> str:
    return (
        f"This delivers {seen.messages:,} messages to {group} once more, behind id {seen.position} and up to"
        f" {seen.claimed}{_between(seen)}. It removes {seen.exceptions:,} exceptions, {seen.dead:,} of them dead, and"
        f" takes {seen.leases} ranges from running processes."
    )


def _describe_skip(group: str, seen: Skip) -> str:
    return (
        f"This never delivers {seen.messages:,} messages to {group}, behind id {seen.claimed} and up to"
        f" {seen.position}{_between(seen)}."
    )


def _between(seen: Rewind | Skip) -> str:
    if seen.first_at is None or seen.last_at is None:
        return ""
    return f", produced from {describe_time(seen.first_at)} to {describe_time(seen.last_at)}"


def _read(client: Client, stream: str, group: str) -> render.Fields | None:
    from sqlstreams.errors import NotFound

    try:
        return _fields(client.stream(stream).consumer(group))
    except NotFound:  # destroyed since it was listed
        return None


def _fields(consumer: Consumer[RawPayload]) -> dict[str, object]:
    from sqlstreams.errors import NotFound

    status = consumer.status()
    info = consumer.get()
    if info is None:
        raise NotFound("consumer group", f"{consumer.name} on {status.stream}")
    return render.fields(info, status)


def _show(session: Session, consumer: Consumer[RawPayload], **more: object) -> None:
    bound = consumer.bindings()
    shown = {**_fields(consumer), **render.fields(bound), **more}
    instances = consumer.instances()
    if session.as_json:
        render.print_json({**shown, "instances": instances})
    else:
        lines = [f"pid {each.pid} on {each.hostname} since {each.started_at:%Y-%m-%d %H:%M}" for each in instances]
        declared = {
            name: [_describe_declaration(each) for each in getattr(bound, name)] for name in ("held_by", "waiting")
        }
        render.print_fields({**shown, **declared, "instances": lines})


def _describe_declaration(declared: BindingDeclaration) -> str:
    patterns = ", ".join(declared.bindings) or "everything"
    where = "no process" if declared.pid is None else f"pid {declared.pid} on {declared.hostname}"
    return f"{patterns} by {where}, declared by {declared.declared_by} at {describe_time(declared.declared_at)}"
