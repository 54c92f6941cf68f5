"""`sqlstreams relay`: publishing a stream to another broker."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from sqlstreams_cli import render
from sqlstreams_cli.commands import command, noun
from sqlstreams_cli.connect import Session, talk
from sqlstreams_cli.values import parse_duration, parse_position

if TYPE_CHECKING:
    from sqlstreams.relay import RelayStats

app = noun("Publish a stream to NATS JetStream, RabbitMQ, Redis Streams or Kafka.")

TO_VARIABLE = "SQLSTREAMS_RELAY_TO"


@command(app, "run", example="sqlstreams relay run --stream invoices --to 'nats://localhost/invoices.{key|none}'")
def run(
    session: Session,
    stream: Annotated[str, typer.Option("--stream", "-s", metavar="NAME", help="The stream.", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help=f"The broker, and where in it. Else {TO_VARIABLE}.", show_default=False),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="The group. Else relay- and the broker's name.")
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="MODE", help="What keeps its order: the messages of each key, or none.")
    ] = "key",
    start: Annotated[
        str,
        typer.Option(metavar="POSITION", help="Where a new group begins: beginning, head, behind an id, or a time."),
    ] = "beginning",
    bindings: Annotated[
        list[str] | None,
        typer.Option("--binding", metavar="PATTERN", help="For a new group: only routing keys that match."),
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Messages on their way at a time.")] = 500,
    prefetch: Annotated[
        int | None, typer.Option(metavar="N", help="Messages claimed at a time. Else as many as the pace asks for.")
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long confirms are waited for after a signal.")
    ] = "10s",
) -> None:
    """Publish a stream's messages to a broker until SIGTERM or SIGINT.

    It works as a consumer group, which is registered if it is absent. A message is done when the broker has confirmed
    it. While the broker is away messages wait and no failure is counted. docs/relay.md has more.

    The URL is nats://HOST/SUBJECT, amqp://HOST/VHOST?exchange=NAME&routing_key=KEY, redis://HOST/0?stream=NAME or
    kafka://HOST/TOPIC. What messages are sent to (not an exchange) may hold {stream}, {key}, {routing_key} and
    {schema_version}, with {key|none} for messages that have no key. A password is better given by the variable.

    JSON: one object with the fields of RelayStats, at the end.
    """
    from sqlstreams import AsyncClient
    from sqlstreams.relay import Relay

    url = to or os.environ.get(TO_VARIABLE)
    if not url:
        raise typer.BadParameter(f"is missing; give it, or {TO_VARIABLE}", param_hint="--to")
    position, patience = parse_position(start, option="--start"), parse_duration(grace, option="--grace")

    async def publish(session: Session) -> RelayStats:
        async with AsyncClient(session.given_url or "", schema=session.schema_name) as client:
            relay = Relay(client, stream, url, group=group, order=order)
            talk(f"publishing {stream} to {relay.shown} as {relay.consumer.name} until Ctrl-C or SIGTERM")
            await relay.run(
                start=position,  # type: ignore[arg-type]  # parse_position returns no other text
                bindings=bindings,
                concurrency=concurrency,
                prefetch=prefetch,
                grace=patience,
            )
            return relay.stats

    with session.url() as database_url:
        found = msgspec.structs.replace(session, database_url=database_url)
        with found.client():  # which says what is wrong with the database, and the names that are near an absent one
            stats = asyncio.run(publish(found))
    if session.as_json:
        render.print_json_line(stats)
    else:
        talk(f"published {stats.published:,}, repeated {stats.repeated:,}, refused {stats.refused:,}")
