"""What `consumer run` does: consume in this process, or look after several that do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct

from sqlstreams.errors import DatabaseUnavailable, NotFound
from sqlstreams_cli import failing, processes, render
from sqlstreams_cli.connect import SCHEMA_VARIABLE, URL_VARIABLE, Session, talk
from sqlstreams_cli.handler import load_handler, payload_type


class Plan(Struct, frozen=True):
    """Which function gets the messages of which group, and how."""

    handler: str
    stream: str
    group: str
    processes: int
    concurrency: int
    batch: int | None
    transactional: bool
    prefetch: int | None
    grace: timedelta
    register: bool
    manager: bool

    def arguments(self) -> list[str]:
        """Return the arguments of a process that does a share of it."""
        batch = [] if self.batch is None else [f"--batch={self.batch}"]
        transactional = ["--transactional"] if self.transactional else []
        prefetch = [] if self.prefetch is None else [f"--prefetch={self.prefetch}"]
        manager = [] if self.manager else ["--no-manager"]
        return [
            "consumer",
            "run",
            self.handler,
            f"--stream={self.stream}",
            f"--group={self.group}",
            f"--concurrency={self.concurrency}",
            f"--grace={self.grace.total_seconds():f}s",
            *batch,
            *transactional,
            *prefetch,
            *manager,
        ]


def run(session: Session, plan: Plan) -> int:
    """Consume until a signal; return the exit code."""
    handler = load_handler(plan.handler)
    kind = payload_type(handler, in_list=plan.batch is not None)
    try:
        with session.url() as url:
            session = msgspec.structs.replace(session, database_url=url)
            _check_group(session, plan, kind)
            if plan.processes > 1:
                return asyncio.run(_processes(session, plan).run())
            _consume(session, plan, handler, kind)
            return 0
    except DatabaseUnavailable as error:
        if not processes.is_child():
            raise
        failing.report(error)
        return processes.TRY_AGAIN


def _check_group(session: Session, plan: Plan, kind: Any) -> None:
    with session.client() as client:
        consumer = client.stream(plan.stream, kind).consumer(plan.group)
        try:
            consumer.status()
        except NotFound as absent:
            if absent.kind != "consumer group":
                raise
            if not plan.register:
                declaration = f"sqlstreams consumer register {plan.group} --stream {plan.stream}"
                absent.add_note(f"fix: `{declaration}`, or give --register")
                raise
            consumer.register()


def _processes(session: Session, plan: Plan) -> processes.Processes:
    flags = [flag for flag, given in (("--json", session.as_json), ("--verbose", session.verbose)) if given]
    talk(f"consuming {plan.stream} as {plan.group} in {plan.processes} processes until Ctrl-C or SIGTERM")
    return processes.Processes(
        [*plan.arguments(), *flags],
        # Not among the arguments: everybody on the machine can see those, and the URL may hold a password.
        environment={URL_VARIABLE: session.given_url or "", SCHEMA_VARIABLE: session.schema_name},
        count=plan.processes,
    )


def _consume(session: Session, plan: Plan, handler: Callable[[Any], Any], kind: Any) -> None:
    if processes.is_child():
        processes.end_with_parent(grace=plan.grace.total_seconds())
    else:
        talk(f"consuming {plan.stream} as {plan.group} until Ctrl-C or SIGTERM")
    with session.client(manager=plan.manager) as client:
        consumer = client.stream(plan.stream, kind).consumer(plan.group)
        consumer.consume(
            handler,
            transactional=plan.transactional,
            batch=plan.batch,
            concurrency=plan.concurrency,
            prefetch=plan.prefetch,
            grace=plan.grace,
        )
    if session.as_json:
        render.print_json_line(consumer.stats)
    else:
        stats = consumer.stats
        talk(f"process {os.getpid()} handled {stats.handled:,}, failed {stats.failed:,}, delayed {stats.delayed:,}")
