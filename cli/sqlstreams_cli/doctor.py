"""`sqlstreams doctor`: look at everything that commonly goes wrong, and say what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from msgspec import Struct

from sqlstreams_cli import render
from sqlstreams_cli.connect import Session
from sqlstreams_cli.failing import FAILED, without_password
from sqlstreams_cli.values import describe_duration

if TYPE_CHECKING:
    from sqlstreams import Client, GroupStatus, Holder, ServerStatus

_OLDEST, _NEWEST = 15, 18
_LONG_ENOUGH = timedelta(seconds=1)
_FORGOTTEN = timedelta(minutes=1)
_SYSTEM_ZONES = Path("/usr/share/zoneinfo")


class Check(Struct, frozen=True):
    """What was looked at, how it is, and what to do when it is not well."""

    name: str
    state: Literal["ok", "info", "warn", "fail"]
    text: str
    fix: str | None = None


def doctor(session: Session) -> None:
    """Check the database, the installation and this host. Exits with 1 when something fails.

    JSON: one object with healthy and checks, an array of objects with name, state (ok, info, warn or fail), text, fix.
    """
    checks = []
    for check in _examine(session):
        checks.append(check)
        if not session.as_json:
            _print(check)
    healthy = all(check.state != "fail" for check in checks)
    if session.as_json:
        render.print_json({"healthy": healthy, "checks": checks})
    if not healthy:
        raise typer.Exit(FAILED)


def _print(check: Check) -> None:
    print(f"{check.state:<4}  {check.name}: {check.text}")
    if check.fix is not None:
        print(f"      fix: {check.fix}")


def _examine(session: Session) -> Iterator[Check]:
    yield from _guarded("connection", lambda: _with_database(session))
    yield from _zone_data(datetime.now(UTC))


def _with_database(session: Session) -> Iterator[Check]:
    with session.client() as client:
        asked = datetime.now(UTC)
        server = client.system.server()
        answered = datetime.now(UTC)
        yield _connection(session, server)
        yield from _server(server)
        yield _clock(server.settings.read_at - (asked + (answered - asked) / 2))
        yield from _guarded("installation", lambda: _installation(client))
        yield from _guarded("privileges", lambda: [_privileges(session, server)])
        yield from _guarded("groups", lambda: _groups(session, client))
        yield from _guarded("manager", lambda: _manager(client))


def _guarded(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield what a look finds, and turn its failure into a check that failed."""
    import psycopg

    from sqlstreams.errors import SqlstreamsError, explain

    try:
        yield from look()
    except SqlstreamsError as error:
        diagnosis = explain(error.code)
        yield Check(
            name, "fail", f"{error.code}: {without_password(str(error))}", None if diagnosis is None else diagnosis.fix
        )
    except psycopg.Error as error:
        yield Check(name, "fail", str(error).strip(), "grant this role what it lacks, or give another role in the URL")


def _connection(session: Session, server: ServerStatus) -> Check:
    from psycopg.conninfo import conninfo_to_dict

    told = server.settings
    given = {} if session.given_url is None else conninfo_to_dict(session.given_url)
    host = given.get("host") or given.get("hostaddr")
    at = f" at {host}" if host else ""
    text = f"PostgreSQL {told.version}{at}, database {told.database}, role {told.role}"
    major = told.version_number // 10_000
    if major < _OLDEST:
        return Check("connection", "fail", text, f"sqlstreams needs PostgreSQL {_OLDEST} or newer: upgrade the server")
    if major > _NEWEST:
        return Check("connection", "warn", f"{text}, which is newer than {_NEWEST}, the last one tested")
    return Check("connection", "ok", text)


def _server(server: ServerStatus) -> Iterator[Check]:
    told = server.settings
    if told.in_recovery:
        yield Check("server", "fail", "it is a standby, which takes no writes", "give the URL of the primary")
    for name, is_on in (("fsync", told.fsync), ("full_page_writes", told.full_page_writes)):
        if not is_on:
            fix = f"set {name} = on in postgresql.conf, unless this data may be lost"
            yield Check(name, "warn", "it is off: a crash of the machine may destroy the database", fix)
    yield _synchronous_commit(told.synchronous_commit)
    yield _headroom(told.connections, told.connection_limit)
    yield from _prepared(server.prepared)


def _synchronous_commit(value: str) -> Check:
    if value == "off":
        fix = "alter role ... set synchronous_commit = on, or take it out of postgresql.conf or the URL"
        text = "it is off: a message that was produced may be gone after a crash of the server"
        return Check("synchronous_commit", "warn", text, fix)
    return Check("synchronous_commit", "ok", f"it is {value}")


def _headroom(connections: int, limit: int) -> Check:
    free = limit - connections
    text = f"{connections} of {limit} in use"
    if free < max(5, limit // 10):
        fix = "raise max_connections, make pools smaller (pool_size), or put PgBouncer in between"
        return Check("connections", "warn", text, fix)
    return Check("connections", "ok", text)


def _prepared(prepared: Iterable[Holder]) -> Iterator[Check]:
    for each in prepared:
        fix = f"commit prepared '{each.gid}' or rollback prepared '{each.gid}'"
        forgotten = each.age is not None and each.age > _FORGOTTEN
        yield Check("prepared transactions", "warn" if forgotten else "info", str(each), fix if forgotten else None)


def _clock(skew: timedelta) -> Check:
    relation = "behind" if skew > timedelta(0) else "ahead of"
    text = f"this host is {describe_duration(abs(skew))} {relation} the server; nothing depends on it"
    return Check("clock", "info", text)


def _installation(client: Client) -> Iterator[Check]:
    status = client.system.status()
    if not status.installed:
        text = f"schema {status.schema} holds no installation"
        yield Check("installation", "fail", text, "sqlstreams system register")
    elif status.pending:
        names = ", ".join(f"{step.version:04} {step.name}" for step in status.pending)
        yield Check("installation", "fail", f"it lacks migrations: {names}", "sqlstreams system migrate")
    else:
        client.list_streams()  # refuses what this library cannot work with
        yield Check("installation", "ok", f"schema {status.schema}, {len(status.applied)} migrations, all applied")
    if status.through_pooler:
        fix = "give clients listen_url, a URL that reaches PostgreSQL directly, where milliseconds matter"
        yield Check("pooler", "warn", "the connection goes through one: wake-ups are found by polling", fix)
    else:
        yield Check("pooler", "ok", "the connection reaches PostgreSQL directly")


def _privileges(session: Session, server: ServerStatus) -> Check:
    may, role, schema = server.privileges, server.settings.role, session.schema_name
    if may is None:
        if server.settings.may_create_schema:
            return Check("privileges", "ok", f"role {role} may install sqlstreams")
        fix = f"grant create on database {server.settings.database} to {role}"
        return Check("privileges", "fail", f"role {role} may not create schema {schema}", fix)
    if not (may.may_use and may.may_register and may.may_consume):
        lacks = "use the schema" if not may.may_use else "write to its tables"
        fix = f"connect as the owner of schema {schema}, or grant {role} what it lacks"
        return Check("privileges", "fail", f"role {role} may not {lacks}", fix)
    if not server.settings.may_see_sessions:
        text = f"role {role} may work, but not see who holds back a claim"
        return Check("privileges", "warn", text, f"grant pg_read_all_stats to {role}")
    return Check("privileges", "ok", f"role {role} may work and see other sessions")


def _groups(session: Session, client: Client) -> Iterator[Check]:
    if not client.system.status().installed:
        return
    groups = client.list_consumers()
    found = [
        problem for group in groups for problem in _group(client.stream(group.stream).consumer(group.name).status())
    ]
    yield from found
    if not found:
        yield Check("groups", "ok", f"{len(groups)}, none held back and none without a process")


def _group(status: GroupStatus) -> Iterator[Check]:
    name = f"group {status.name} of stream {status.stream}"
    for holder in status.holders:
        held = f"its next claim waits for {holder}"
        if holder.age is not None and holder.age < _LONG_ENOUGH:
            yield Check(name, "info", held)
        else:
            yield Check(name, "warn", held, _how_to_end(holder))
    if status.lag and not status.processes:
        text = f"{status.lag:,} ids behind ({describe_duration(status.lag_time)}), and no process runs it"
        fix = f"sqlstreams consumer run MODULE:FUNCTION --stream {status.stream} --group {status.name}"
        yield Check(name, "warn", text, fix)
    if status.unread:
        text = f"{status.unread:,} messages are of a schema version that no process could read"
        yield Check(name, "warn", text, "sqlstreams explain SQL0108")
    if status.dead:
        yield Check(name, "info", f"{status.dead:,} messages are dead")


def _how_to_end(holder: Holder) -> str:
    if holder.prepared:
        return f"commit prepared '{holder.gid}' or rollback prepared '{holder.gid}'"
    return f"let it commit or roll back, or end it with: select pg_terminate_backend({holder.pid})"


def _manager(client: Client) -> Iterator[Check]:
    if not client.system.status().installed:
        return
    status = client.manager.list()
    live = [each for each in status.instances if not each.expired]
    if status.suspended:
        yield Check("manager", "warn", "it is suspended: nobody does its duties", "sqlstreams manager unsuspend")
    elif live:
        where = ", ".join(f"{each.hostname} (process {each.pid})" for each in live)
        yield Check("manager", "ok", f"it runs at {where}, term {live[-1].term}")
    else:
        yield _nobody_manages(client)
    for duty in status.duties:
        if duty.failures:
            text = f"it failed {duty.failures:,} times in a row: {_first_line(duty.last_error)}"
            yield Check(f"duty {duty.name}", "warn", text, "sqlstreams manager list")
        elif duty.suspended:
            fix = f"sqlstreams manager unsuspend {duty.name}"
            yield Check(f"duty {duty.name}", "info", "it is suspended", fix)


def _nobody_manages(client: Client) -> Check:
    schedules, deadlines = (
        sum(not each.suspended for each in found) for found in (client.list_schedules(), client.list_deadlines())
    )
    counted = ((schedules, "schedules"), (deadlines, "deadlines"))
    waiting = " and ".join(f"{count:,} {noun if count > 1 else noun[:-1]}" for count, noun in counted if count)
    what = f"{waiting} will not be seen to, and " if waiting else ""
    text = f"no process runs it: {what}no upkeep is done. Every process that consumes would"
    return Check("manager", "warn" if waiting else "info", text, "sqlstreams manager run")


def _first_line(text: str | None) -> str:
    return text.splitlines()[0] if text else "-"


def _zone_data(now: datetime) -> Iterator[Check]:
    package = _package_zones()
    year = int(package[:4])
    if year < now.year - 1:
        text = f"the package tzdata has {package}, more than a year old"
        yield Check("zone data", "warn", text, "pip install --upgrade tzdata")
    else:
        yield Check("zone data", "ok", f"the package tzdata has {package}")
    system = _system_zones()
    if system is not None and system != package:
        text = f"this system has {system}, the package tzdata {package}; schedules follow the package"
        yield Check("zone data", "warn", text, "upgrade the older one: the system's package, or pip's tzdata")


def _package_zones() -> str:
    """Return the release of the package's zone data, such as 2026c."""
    year, number, *_ = metadata.version("tzdata").split(".")
    return f"{year}{chr(ord('a') + int(number) - 1)}"


def _system_zones() -> str | None:
    """Return the release of the system's zone data, where it tells."""
    for name, pattern in (("tzdata.zi", r"# version (\S+)"), ("+VERSION", r"(\S+)")):
        try:
            with (_SYSTEM_ZONES / name).open(encoding="utf-8", errors="replace") as file:
                told = re.match(pattern, file.readline())
        except OSError:
            continue
        if told:
            return told[1]
    return None
