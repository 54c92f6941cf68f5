"""`sqlstreams demo`: see a stream, a producer and three consumer groups at work on real data."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
import typer

from sqlstreams import AsyncClient, MigrationChanged, SchemaTooNew
from sqlstreams_cli.commands import with_shared_options
from sqlstreams_cli.connect import Session, talk
from sqlstreams_cli.demo.ground import make_anew, own_ground
from sqlstreams_cli.demo.make_zone_changes import SHIPPED_FILE, ZoneChange
from sqlstreams_cli.demo.next_commands import next_commands
from sqlstreams_cli.demo.play import STREAM, Play
from sqlstreams_cli.demo.report import Report, find, per_second
from sqlstreams_cli.demo.show import interrupted_text, print_report, verdict_text, watching
from sqlstreams_cli.failing import Failed
from sqlstreams_cli.render import print_json

_SCHEMA: Final = "sqlstreams_demo"


@with_shared_options
def demo(
    session: Session,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Use only the first N changes.")] = None,
) -> None:
    """Produce 36,734 real changes of time zones while three groups consume them, and check the outcome.

    Works in the schema sqlstreams_demo unless --schema names another, and only in a schema that it made itself. The
    stream stays behind, to look around in. The next run begins afresh.

    JSON: one object with what was produced, each group's counts, the findings, the audit, and commands to try next.

    \b
    Example:
      sqlstreams demo --limit 5000
    """  # noqa: D301  # typer reads \b as "leave these lines as they are"
    schema = session.schema or _SCHEMA
    play = Play(_changes()[:limit])
    try:
        with session.url() as url:
            asyncio.run(_run(play, url, schema))
    except KeyboardInterrupt:
        talk(interrupted_text(play))
        raise typer.Abort from None
    _present(_report(play, schema, next_commands(schema, session.database_url)), as_json=session.as_json)


def _changes() -> list[ZoneChange]:
    return msgspec.json.Decoder(ZoneChange).decode_lines(SHIPPED_FILE.read_bytes())


async def _run(play: Play, url: str, schema: str) -> None:
    async with own_ground(url, schema), AsyncClient(url, schema=schema, allow_destroy=True) as client:
        try:
            await client.system.register()
        except (MigrationChanged, SchemaTooNew):
            talk(f"schema {schema} is of another version of sqlstreams: it is made anew")
            await make_anew(url, schema)
            await client.system.register()
        stream = await play.set_up(client)
        talk(f"stream {STREAM} in schema {schema} begins afresh")
        with watching() as show:
            await play.run(stream, show=show)


def _report(play: Play, schema: str, commands: list[str]) -> Report:
    groups = [group.tally(play.elapsed) for group in play.groups]
    verdict = play.audit.verdict(play.produced)
    produce_seconds = play.produced_after or 0.0
    return Report(
        schema=schema,
        stream=STREAM,
        produced=len(play.produced),
        produce_seconds=round(produce_seconds, 3),
        produced_per_second=per_second(len(play.produced), produce_seconds),
        seconds=max(tally.seconds for tally in groups),
        groups=groups,
        findings=find(play.per_zone),
        audit=verdict,
        audit_passed=verdict.passed,
        next_commands=commands,
    )


def _present(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        print_report(report)
    if not report.audit_passed:
        raise Failed(f"the audit failed: {verdict_text(report.audit)}")
