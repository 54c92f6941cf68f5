"""Statements of the manager: sql/manager.sql."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec import Struct

from sqlstreams.model import DutyStatus, ManagerInstance
from sqlstreams.statements.statement import Columns, Family, Nothing, Statement, columns, nothing, of_family, of_system


class DutyReport(Struct, frozen=True):
    """What one duty did since its last report. `ran_ago` and the like are seconds; None where it does not apply."""

    name: str
    runs: int
    done: int
    ran_ago: float | None
    took: float | None
    last_done: int | None
    running_for: float | None
    next_in: float | None
    failures: int
    error: str | None
    failed_ago: float | None


class LeaseAnswer(Struct, frozen=True):
    """Whether the manager's lease is ours: `id` and `term` if so, else in how many seconds to ask again.

    `suspended` are the duties that are to be left alone.
    """

    id: int | None
    term: int | None
    retry_in: float | None
    suspended: list[str]


class ManagerRow(Struct, frozen=True):
    """What was decided about the manager as a whole."""

    target_instances: int
    suspended: bool
    term: int


class Forgotten(Struct, frozen=True):
    """How many rows were removed."""

    count: int


class LogFill(Struct, frozen=True):
    """How far a log is filled: ids up to `last_id` were handed out, those below `edge` have a partition."""

    id: int
    name: str
    partition_rows: int
    edge: int
    last_id: int


class OutdatedLog(Struct, frozen=True):
    """A log of which the server's statistics are outdated."""

    id: int
    name: str


def take_or_renew(
    schema: str, *, token: UUID, hostname: str, pid: int, library: str, ttl: float, reports: Sequence[DutyReport]
) -> Statement[LeaseAnswer]:
    parameters = {
        "token": token,
        "hostname": hostname,
        "pid": pid,
        "library": library,
        "ttl": ttl,
        "reports": _json(reports),
    }
    return of_system("take_or_renew", schema, LeaseAnswer, parameters)


def resign(schema: str, *, token: UUID, reports: Sequence[DutyReport], channel: str) -> Statement[Nothing]:
    parameters = {"token": token, "reports": _json(reports), "channel": channel}
    return of_system("resign", schema, nothing, parameters)


def _json(reports: Sequence[DutyReport]) -> str:
    return msgspec.json.encode(reports).decode()


def get_manager(schema: str) -> Statement[ManagerRow]:
    return of_system("get_manager", schema, ManagerRow)


def list_manager_instances(schema: str) -> Statement[ManagerInstance]:
    return of_system("list_manager_instances", schema, ManagerInstance)


def list_duties(schema: str) -> Statement[DutyStatus]:
    return of_system("list_duties", schema, DutyStatus)


def set_manager_suspended(schema: str, *, suspended: bool, channel: str) -> Statement[Columns]:
    return of_system("set_manager_suspended", schema, columns, {"suspended": suspended, "channel": channel})


def set_duty_suspended(schema: str, *, name: str, suspended: bool, channel: str) -> Statement[Columns]:
    parameters = {"name": name, "suspended": suspended, "channel": channel}
    return of_system("set_duty_suspended", schema, columns, parameters)


def forget_expired(schema: str, *, limit: int) -> Statement[Forgotten]:
    return of_system("forget_expired", schema, Forgotten, {"limit": limit})


def list_logs(schema: str) -> Statement[LogFill]:
    return of_system("list_logs", schema, LogFill)


def list_outdated_statistics(schema: str, *, partitions: int, limit: int) -> Statement[OutdatedLog]:
    return of_system("list_outdated_statistics", schema, OutdatedLog, {"partitions": partitions, "limit": limit})


def analyze_log(family: Family) -> Statement[Nothing]:
    return of_family("analyze_log", family, nothing)
