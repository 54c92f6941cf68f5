"""`sqlstreams scheduler`: what is produced when, what was, and what became of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session
from sqlstreams_cli.guard import confirm_destroying
from sqlstreams_cli.values import parse_duration, parse_time

if TYPE_CHECKING:
    from sqlstreams import Client, GroupOutcome, RawPayload

app = noun("Register schedules, look at them, and stop, run or backfill them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", help="At most so many.")]

_LISTED = ("name", "stream", "expression", "timezone", "next_slot", "suspended")


@command(app, "list", example="sqlstreams scheduler list")
def list_schedules(
    session: Session,
    stream: Annotated[
        str | None, typer.Option("--stream", "-s", metavar="NAME", help="Only those of this stream.")
    ] = None,
) -> None:
    """List every schedule, or those of one stream.

    JSON: an array; each element has the fields of ScheduleInfo, and suspended.
    """
    with session.client() as client:
        shown = [_described(info) for info in client.list_schedules(stream)]
    if session.as_json:
        render.print_json(shown)
    else:
        render.print_table(shown, _LISTED)


@command(app, "get", example="sqlstreams scheduler get nightly")
def get(session: Session, name: Name) -> None:
    """Show one schedule: what it produces, where and when.

    JSON: one object with the fields of ScheduleInfo, suspended, and description: the expression in words.
    """
    with session.client() as client:
        _show(session, client, name)


@command(
    app,
    "register",
    example="sqlstreams scheduler register nightly invoices '0 2 * * *' --timezone Europe/Berlin "
    """--payload '{"region": "eu"}'""",
)
def register(
    session: Session,
    name: Name,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Where its messages go.", show_default=False)],
    expression: Annotated[
        str, typer.Argument(metavar="EXPRESSION", help="Five fields of cron, @hourly, @every 90s …", show_default=False)
    ],
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="What each message says.")] = None,
    payload_file: Annotated[Path | None, typer.Option(metavar="PATH", help="Read that from a file.")] = None,
    schema_version: Annotated[
        int, typer.Option(metavar="N", help="Of which version of the stream's payload it is.")
    ] = 1,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="The zone of the expression.")] = "UTC",
    catch_up: Annotated[
        str, typer.Option(metavar="WHICH", help="After downtime: newest, oldest, all or skip.")
    ] = "newest",
    window: Annotated[
        str, typer.Option(metavar="DURATION", help="How old a slot may be to be caught up with.")
    ] = "365d",
    jitter: Annotated[str | None, typer.Option(metavar="DURATION", help="Put slots off by up to so much.")] = None,
    concurrency: Annotated[
        str, typer.Option(metavar="HOW", help="What its messages may do: parallel, exclusive or ordered.")
    ] = "parallel",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long a delivery may take.")] = "30s",
    start_at: Annotated[str | None, typer.Option(metavar="TIME", help="No slot before then.")] = None,
    end_at: Annotated[str | None, typer.Option(metavar="TIME", help="No slot after then.")] = None,
    compaction: Annotated[
        bool, typer.Option("--compaction/--no-compaction", help="Let a message supersede those not begun before it.")
    ] = True,
) -> None:
    """Declare a schedule.

    The newest declaration wins; the same one again changes nothing.

    JSON: as of `scheduler get`.
    """
    with session.client() as client:
        client.scheduler(name).register(
            stream,
            expression,
            _payload(payload, payload_file),
            schema_version=schema_version,
            timezone=timezone,
            catch_up=catch_up,
            catch_up_window=parse_duration(window, option="--window"),
            jitter=None if jitter is None else parse_duration(jitter, option="--jitter"),
            concurrency=concurrency,
            timeout=parse_duration(timeout, option="--timeout"),
            start_at=None if start_at is None else parse_time(start_at, option="--start-at"),
            end_at=None if end_at is None else parse_time(end_at, option="--end-at"),
            compaction=compaction,
        )
        _show(session, client, name)


@command(app, "run", example="sqlstreams scheduler run nightly")
def run(session: Session, name: Name) -> None:
    """Produce its message now, beside the slots, also while suspended.

    JSON: one object with the fields of Receipt.
    """
    with session.client() as client:
        receipt = client.scheduler(name).run()
    if session.as_json:
        render.print_json(receipt)
    else:
        print(f"produced message {receipt.id} of schedule {name}")


@command(app, "suspend", example="sqlstreams scheduler suspend nightly")
def suspend(session: Session, name: Name) -> None:
    """Stop a schedule. What comes due until `scheduler unsuspend` is not fired.

    JSON: as of `scheduler get`.
    """
    with session.client() as client:
        client.scheduler(name).suspend()
        _show(session, client, name)


@command(app, "unsuspend", example="sqlstreams scheduler unsuspend nightly")
def unsuspend(session: Session, name: Name) -> None:
    """Let a schedule go on with its next slot.

    JSON: as of `scheduler get`.
    """
    with session.client() as client:
        client.scheduler(name).unsuspend()
        _show(session, client, name)


@command(app, "status", example="sqlstreams scheduler status nightly")
def status(session: Session, name: Name) -> None:
    """Show where a schedule stands, and what became of its last message in every group.

    JSON: one object with the fields of ScheduleStatus.
    """
    with session.client() as client:
        shown = client.scheduler(name).status()
    if session.as_json:
        render.print_json(shown)
    else:
        render.print_fields({**render.fields(shown), "groups": [_outcome(each) for each in shown.groups]})


@command(app, "messages", example="sqlstreams scheduler messages nightly")
def messages(session: Session, name: Name, limit: Limit = 10) -> None:
    """Show its last messages, and what became of each in every group.

    JSON: an array; each element has the fields of ScheduledMessage.
    """
    with session.client() as client:
        shown = client.scheduler(name).messages(limit=limit)
    if session.as_json:
        render.print_json(shown)
    else:
        rows = [{**render.fields(each), "groups": [_outcome(group) for group in each.groups]} for each in shown]
        render.print_table(rows, ("id", "scheduled_for", "kind", "groups"))


@command(app, "next", example="sqlstreams scheduler next nightly -n 3")
def next_slots(session: Session, name: Name, limit: Limit = 5) -> None:
    """Show its next slots, in its zone and in UTC.

    JSON: one object with expression, timezone, description, and slots: an array of objects with local and utc.
    """
    with session.client() as client:
        info = _read(client, name)
        slots = client.scheduler(name).next(limit)
    zone = str(info["timezone"])
    local = [_local(slot, zone) for slot in slots]
    if session.as_json:
        pairs = [{"local": here.isoformat(), "utc": slot} for here, slot in zip(local, slots, strict=True)]
        render.print_json({**{each: info[each] for each in ("expression", "timezone", "description")}, "slots": pairs})
    else:
        print(info["description"])
        rows = [{"local": f"{here:%a %Y-%m-%d %H:%M:%S %Z}", "utc": at} for here, at in zip(local, slots, strict=True)]
        render.print_table(rows, ("local", "utc"))


@command(app, "fires", example="sqlstreams scheduler fires nightly")
def fires(session: Session, name: Name, limit: Limit = 20) -> None:
    """Show what it produced, the latest slot first.

    JSON: an array; each element has the fields of ScheduleFire.
    """
    with session.client() as client:
        shown = client.scheduler(name).fires(limit=limit)
    if session.as_json:
        render.print_json(shown)
    else:
        columns = ("scheduled_for", "fired_at", "kind", "message_id", "fired_by")
        render.print_table([render.fields(each) for each in shown], columns)


@command(app, "skips", example="sqlstreams scheduler skips nightly")
def skips(session: Session, name: Name, limit: Limit = 20) -> None:
    """Show the ranges of slots that were not fired and why, the latest first.

    JSON: an array; each element has the fields of ScheduleSkip.
    """
    with session.client() as client:
        shown = client.scheduler(name).skips(limit=limit)
    if session.as_json:
        render.print_json(shown)
    else:
        columns = ("first_slot", "last_slot", "slots", "reason", "recorded_at")
        render.print_table([render.fields(each) for each in shown], columns)


@command(
    app,
    "backfill",
    example="sqlstreams scheduler backfill nightly --from 2026-01-01T00:00Z --until 2026-01-08T00:00Z",
)
def backfill(
    session: Session,
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first slot or before.", show_default=False)],
    until: Annotated[str, typer.Option(metavar="TIME", help="The last slot or behind it.", show_default=False)],
) -> None:
    """Fire past slots that have not fired, each once however often it is asked.

    JSON: one object with the fields of Backfilled.
    """
    with session.client() as client:
        done = client.scheduler(name).backfill(parse_time(start, option="--from"), parse_time(until, option="--until"))
    if session.as_json:
        render.print_json(done)
    else:
        print(f"fired {done.fired:,} slots of schedule {name}; {done.already_fired:,} had fired before")


@command(app, "history", example="sqlstreams scheduler history nightly")
def history(session: Session, name: Name, limit: Limit = 20) -> None:
    """Show its changes, the latest first; also of one that was destroyed.

    JSON: an array; each element has the fields of ScheduleEdit.
    """
    with session.client() as client:
        shown = client.scheduler(name).edits(limit=limit)
    if session.as_json:
        render.print_json(shown)
    else:
        rows = [{**render.fields(each), "expression": each.config.get("expression")} for each in shown]
        render.print_table(rows, ("changed_at", "action", "changed_by", "expression"))


@command(app, "destroy", example="sqlstreams scheduler destroy nightly --yes")
def destroy(
    session: Session,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name.")] = False,
) -> None:
    """Remove a schedule with its history, for ever. Its messages stay.

    Asks for its name first.

    JSON: what `scheduler get` said of it before.
    """
    with session.client(allow_destroy=True) as client:
        shown = _read(client, name)
        if not yes:
            confirm_destroying(name, f"schedule {name} ({shown['description']}) with its history")
        client.scheduler(name).destroy()
    if session.as_json:
        render.print_json(shown)
    else:
        print(f"destroyed schedule {name}")


def _payload(payload: str | None, payload_file: Path | None) -> RawPayload:
    from sqlstreams import RawPayload
    from sqlstreams_cli.failing import Failed

    if (payload is None) == (payload_file is None):
        raise typer.BadParameter("give one of --payload and --payload-file", param_hint="what to produce")
    if payload_file is None:
        return RawPayload((payload or "").encode("utf-8", "surrogateescape"))
    try:
        return RawPayload(payload_file.read_bytes())
    except OSError as error:
        raise Failed(f"{payload_file} cannot be read: {error.strerror}") from None


def _read(client: Client, name: str) -> dict[str, Any]:
    from sqlstreams.errors import NotFound

    info = client.scheduler(name).get()
    if info is None:
        raise NotFound("schedule", name)
    return _described(info)


def _described(info: Any) -> dict[str, Any]:
    from sqlstreams import cron

    described = cron.describe(info.expression, info.timezone)
    return {**render.fields(info), "suspended": info.suspended, "description": described}


def _show(session: Session, client: Client, name: str) -> None:
    shown = _read(client, name)
    if session.as_json:
        render.print_json(shown)
    else:
        render.print_fields({**shown, "payload": shown["payload"].decode("utf-8", "backslashreplace")})


def _outcome(group: GroupOutcome) -> str:
    error = f" ({group.error_type})" if group.error_type else ""
    return f"{group.group}: {group.outcome}{error}"


def _local(slot: datetime, timezone: str) -> datetime:
    from sqlstreams.zones import zone

    return slot.astimezone(zone(timezone))
