"""Statements of deadlines: sql/deadline.sql."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from sqlstreams import sql
from sqlstreams.model import DeadlineAside, DeadlineEdit, DeadlineInfo, JsonSchema
from sqlstreams.sql import quote_identifier
from sqlstreams.statements.statement import Identified, Nothing, RowT, Statement, nothing, of_system

_MOST_COUNTED: Final = 100_000


class Table(Struct, frozen=True):
    """A table of a user's; `rows` is what the server thinks that it has."""

    id: int
    schema: str
    name: str
    kind: str
    temporary: bool
    rows: float


class Column(Struct, frozen=True):
    """A column of a user's table: its type for people and for SQL, and whether it can name a row."""

    name: str
    type: str
    type_name: str
    category: str
    is_key: bool


class Index(Struct, frozen=True):
    """An index of a user's table; a column that is an expression is None."""

    name: str
    columns: tuple[str | None, ...]
    predicate: str | None


class Rows(Struct, frozen=True):
    """Where rows come due: a table with its columns, what the state must be, and what else the rows must have."""

    table_schema: str
    table_name: str
    key: str
    key_type: str
    deadline: str
    state: str
    from_state: str
    to_state: str
    columns: tuple[str, ...] | None
    only: tuple[tuple[str, str], ...] = ()

    @property
    def table(self) -> str:
        """The table as SQL has it."""
        return f"{quote_identifier(self.table_schema)}.{quote_identifier(self.table_name)}"

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """What is filled in for it: identifiers, quoted, and nothing else that a user has said."""
        return (
            ("table", self.table),
            ("key", quote_identifier(self.key)),
            ("key_type", self.key_type),
            ("deadline", quote_identifier(self.deadline)),
            ("state", quote_identifier(self.state)),
            ("row", self._row),
            ("narrow", self._narrow),
        )

    @property
    def values(self) -> dict[str, str]:
        """The parameters that say what the columns in `only` must be."""
        return {f"only_{number}": value for number, (_, value) in enumerate(self.only)}

    @property
    def _row(self) -> str:
        if self.columns is None:
            return "row_to_json(t.*)"
        chosen = ", ".join(f"t.{quote_identifier(column)}" for column in self.columns)
        return f"(select row_to_json(c.*) from (select {chosen}) as c)"  # noqa: S608  # quoted identifiers

    @property
    def _narrow(self) -> str:
        named = [quote_identifier(column).replace("%", "%%") for column, _ in self.only]
        return " ".join(f"and t.{column} = %(only_{number})s" for number, column in enumerate(named))


class DeclaredDeadline(Struct, frozen=True):
    """Everything a deadline says of itself; what those who operate it say is not part of it."""

    stream_id: int
    schema_version: int
    fingerprint: str | None
    rows: Rows
    batch: int


class StoredDeadline(Struct, frozen=True):
    """A deadline as it is on record; the rows of `declared` are not narrowed down, those of `rows` are."""

    info: DeadlineInfo
    declared: DeclaredDeadline

    @property
    def rows(self) -> Rows:
        """The rows that it moves."""
        return msgspec.structs.replace(self.declared.rows, only=tuple(self.info.only.items()))


class RunningDeadline(Struct, frozen=True):
    """A deadline that is not stopped, with all that is needed to move its rows."""

    id: int
    name: str
    revision: int
    stream_id: int
    schema_version: int
    rows: Rows
    batch: int
    mode: str
    max_payload: int
    json_schema: JsonSchema | None
    retry_in: float | None
    aside_in: float | None


class ClaimedRow(Struct, frozen=True):
    """A row that is due and locked by us: its key, and its deadline where a client can hold it, as text."""

    key: str
    deadline: str | None


class MovedRow(Struct, frozen=True):
    """A row that was to get its new state, as JSON, and whether it has it."""

    key: str
    moved: bool
    payload: bytes


class DueRow(Struct, frozen=True):
    """A row that has come due and been moved, with all that its message says."""

    key: str
    deadline: str | None
    payload: bytes


class Due(Struct, frozen=True):
    """What is due now, counted up to a limit, and what comes next."""

    due: int
    oldest_due: datetime | None
    next_deadline: datetime | None


class ScanPlan(Struct, frozen=True):
    """How the server would find the rows that are due, and what it thinks that this costs."""

    cost: float
    node: str


class DeadlineRecord(Struct, frozen=True):
    """What is on record of how a deadline fares."""

    name: str
    id: int
    stream: str
    table: str
    mode: str
    suspended: bool
    moved: int
    replayed: int
    last_run_at: datetime | None
    last_moved_at: datetime | None
    aside: int
    consecutive_failures: int
    last_error: str | None
    failed_at: datetime | None
    retry_at: datetime | None


def _rows(
    table_schema: str,
    table_name: str,
    key: str,
    key_type: str,
    deadline: str,
    state: str,
    from_state: str,
    to_state: str,
    columns: list[str] | None,
) -> Rows:
    chosen = None if columns is None else tuple(columns)
    return Rows(table_schema, table_name, key, key_type, deadline, state, from_state, to_state, chosen)


def _only(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str])


def _stored(
    deadline_id: int, name: str, stream: str, stream_id: int, shown_table: str, *columns: Any
) -> StoredDeadline:
    table_schema, table_name, key, key_type, deadline, state, from_state, to_state, batch, chosen, mode, only, *rest = (
        columns
    )
    rows = _rows(table_schema, table_name, key, key_type, deadline, state, from_state, to_state, chosen)
    info = DeadlineInfo(
        deadline_id,
        name,
        stream,
        shown_table,
        key,
        deadline,
        state,
        from_state,
        to_state,
        batch,
        rows.columns,
        mode,
        _only(only),
        *rest,
    )
    declared = DeclaredDeadline(stream_id, info.schema_version, info.fingerprint, rows, batch)
    return StoredDeadline(info, declared)


def _running(
    deadline_id: int, name: str, revision: int, stream_id: int, schema_version: int, *columns: Any
) -> RunningDeadline:
    *described, only, batch, mode, max_payload, json_schema, retry_in, aside_in = columns
    rows = msgspec.structs.replace(_rows(*described), only=tuple(_only(only).items()))
    shape = None if json_schema is None else msgspec.json.decode(json_schema)
    return RunningDeadline(
        deadline_id,
        name,
        revision,
        stream_id,
        schema_version,
        rows,
        batch,
        mode,
        max_payload,
        shape,
        retry_in,
        aside_in,
    )


def _index(name: str, columns: list[str | None], predicate: str | None) -> Index:
    return Index(name, tuple(columns), predicate)


def _moved(key: str, moved: bool, payload: str) -> MovedRow:
    return MovedRow(key, moved, payload.encode())


def _due(key: str, deadline: str | None, payload: str) -> DueRow:
    return DueRow(key, deadline, payload.encode())


def _plan(plan: bytes) -> ScanPlan:
    node = msgspec.json.decode(plan)[0]["Plan"]
    cost = node["Total Cost"]
    names = []
    while node is not None:
        names.append(f"{node['Node Type']} using {node['Index Name']}" if "Index Name" in node else node["Node Type"])
        node = next(iter(node.get("Plans", ())), None)
    return ScanPlan(cost, " of ".join(name for name in names if name != "Limit"))


def _edit(deadline_id: int, action: str, config: str, changed_by: str, changed_at: datetime) -> DeadlineEdit:
    return DeadlineEdit(deadline_id, action, msgspec.json.decode(config), changed_by, changed_at)


def _of_rows(
    name: str, schema: str, rows: Rows, row: Callable[..., RowT], parameters: Mapping[str, Any]
) -> Statement[RowT]:
    narrowed = rows.values if "{narrow}" in sql.statement_texts()[name] else {}
    return Statement(name, sql.render_rows(name, schema, rows.places), {**parameters, **narrowed}, row)


# What a table is


def find_table(schema: str, *, table: str) -> Statement[Table]:
    return of_system("find_table", schema, Table, {"table": table})


def list_columns(schema: str, *, table_id: int) -> Statement[Column]:
    return of_system("list_columns", schema, Column, {"table_id": table_id})


def list_indexes(schema: str, *, table_id: int) -> Statement[Index]:
    return of_system("list_indexes", schema, _index, {"table_id": table_id})


def are_values(schema: str, *, values: Sequence[str], types: Sequence[str]) -> Statement[bool]:
    return of_system("are_values", schema, bool, {"values": list(values), "types": list(types)})


# What is declared


def insert_deadline(
    schema: str, *, name: str, declared: DeclaredDeadline, mode: str, only: Mapping[str, str]
) -> Statement[Identified]:
    settings = {"name": name, "mode": mode, "only_rows": msgspec.json.encode(only).decode(), **_settings(declared)}
    return of_system("insert_deadline", schema, Identified, settings)


def update_deadline(schema: str, *, deadline_id: int, declared: DeclaredDeadline) -> Statement[Nothing]:
    return of_system("update_deadline", schema, nothing, {"deadline_id": deadline_id, **_settings(declared)})


def _settings(declared: DeclaredDeadline) -> dict[str, Any]:
    rows = declared.rows
    return {
        "stream_id": declared.stream_id,
        "schema_version": declared.schema_version,
        "fingerprint": declared.fingerprint,
        "table_schema": rows.table_schema,
        "table_name": rows.table_name,
        "key_column": rows.key,
        "key_type": rows.key_type,
        "deadline_column": rows.deadline,
        "state_column": rows.state,
        "from_state": rows.from_state,
        "to_state": rows.to_state,
        "batch": declared.batch,
        "payload_columns": None if rows.columns is None else list(rows.columns),
    }


def set_deadline_mode(schema: str, *, deadline_id: int, mode: str, only: Mapping[str, str]) -> Statement[Nothing]:
    parameters = {"deadline_id": deadline_id, "mode": mode, "only_rows": msgspec.json.encode(only).decode()}
    return of_system("set_deadline_mode", schema, nothing, parameters)


def suspend_deadline(schema: str, *, deadline_id: int, suspended: bool) -> Statement[Nothing]:
    return of_system("suspend_deadline", schema, nothing, {"deadline_id": deadline_id, "suspended": suspended})


def get_deadline(schema: str, *, name: str) -> Statement[StoredDeadline]:
    return of_system("get_deadline", schema, _stored, {"name": name})


def lock_deadline(schema: str, *, name: str) -> Statement[StoredDeadline]:
    return of_system("lock_deadline", schema, _stored, {"name": name})


def list_deadlines(schema: str, *, stream_id: int | None) -> Statement[StoredDeadline]:
    return of_system("list_deadlines", schema, _stored, {"stream_id": stream_id})


def list_running_deadlines(schema: str) -> Statement[RunningDeadline]:
    return of_system("list_running_deadlines", schema, _running)


def get_producing_deadline(schema: str, *, name: str) -> Statement[RunningDeadline]:
    return of_system("get_producing_deadline", schema, _running, {"name": name})


def delete_deadline(schema: str, *, deadline_id: int) -> Statement[Nothing]:
    return of_system("delete_deadline", schema, nothing, {"deadline_id": deadline_id})


def log_deadline(schema: str, *, deadline_id: int, name: str, action: str, config: bytes) -> Statement[Nothing]:
    parameters = {"deadline_id": deadline_id, "name": name, "action": action, "config": config.decode()}
    return of_system("log_deadline", schema, nothing, parameters)


def list_deadline_edits(schema: str, *, name: str, limit: int) -> Statement[DeadlineEdit]:
    return of_system("list_deadline_edits", schema, _edit, {"name": name, "limit": limit})


def announce_deadlines(schema: str, *, channel: str) -> Statement[Nothing]:
    return of_system("announce_deadlines", schema, nothing, {"channel": channel})


# Moving rows


def bound_moving(schema: str) -> Statement[Nothing]:
    return of_system("bound_moving", schema, nothing)


def hold_deadline(schema: str, *, deadline_id: int, revision: int) -> Statement[Identified]:
    return of_system("hold_deadline", schema, Identified, {"deadline_id": deadline_id, "revision": revision})


def find_next_due(schema: str, rows: Rows, *, deadline_id: int) -> Statement[float]:
    return _of_rows("find_next_due", schema, rows, float, {"from_state": rows.from_state, "deadline_id": deadline_id})


def claim_due_rows(schema: str, rows: Rows, *, deadline_id: int, limit: int) -> Statement[ClaimedRow]:
    parameters = {"from_state": rows.from_state, "deadline_id": deadline_id, "limit": limit}
    return _of_rows("claim_due_rows", schema, rows, ClaimedRow, parameters)


def claim_named_rows(schema: str, rows: Rows, *, keys: Sequence[str]) -> Statement[ClaimedRow]:
    parameters = {"from_state": rows.from_state, "keys": list(keys)}
    return _of_rows("claim_named_rows", schema, rows, ClaimedRow, parameters)


def move_due_rows(schema: str, rows: Rows, *, keys: Sequence[str]) -> Statement[MovedRow]:
    parameters = {"from_state": rows.from_state, "to_state": rows.to_state, "keys": list(keys)}
    return _of_rows("move_due_rows", schema, rows, _moved, parameters)


def read_moved_rows(schema: str, rows: Rows, *, start: datetime, until: datetime, limit: int) -> Statement[DueRow]:
    parameters = {"to_state": rows.to_state, "start": start, "until": until, "limit": limit}
    return _of_rows("read_moved_rows", schema, rows, _due, parameters)


def sample_rows(schema: str, rows: Rows, *, limit: int) -> Statement[str]:
    return _of_rows("sample_rows", schema, rows, str, {"from_state": rows.from_state, "limit": limit})


def find_eligible_rows(schema: str, rows: Rows, *, keys: Sequence[str]) -> Statement[str]:
    return _of_rows("find_eligible_rows", schema, rows, str, {"from_state": rows.from_state, "keys": list(keys)})


def measure_due(schema: str, rows: Rows) -> Statement[Due]:
    return _of_rows("measure_due", schema, rows, Due, {"from_state": rows.from_state, "limit": _MOST_COUNTED})


def count_final(schema: str, rows: Rows) -> Statement[int]:
    parameters = {"from_state": rows.from_state, "to_state": rows.to_state, "limit": _MOST_COUNTED}
    return _of_rows("count_final", schema, rows, int, parameters)


def explain_claim(schema: str, rows: Rows, *, limit: int) -> Statement[ScanPlan]:
    return _of_rows("explain_claim", schema, rows, _plan, {"from_state": rows.from_state, "limit": limit})


# How it fares


def note_moved(schema: str, *, deadline_id: int, count: int) -> Statement[Nothing]:
    return of_system("note_moved", schema, nothing, {"deadline_id": deadline_id, "count": count})


def note_replayed(schema: str, *, deadline_id: int, count: int) -> Statement[Nothing]:
    return of_system("note_replayed", schema, nothing, {"deadline_id": deadline_id, "count": count})


def note_run(schema: str, *, deadline_id: int, observed_due: int | None) -> Statement[Nothing]:
    return of_system("note_run", schema, nothing, {"deadline_id": deadline_id, "observed_due": observed_due})


def fail_deadline(schema: str, *, deadline_id: int, error: str) -> Statement[int]:
    return of_system("fail_deadline", schema, int, {"deadline_id": deadline_id, "error": error})


def put_aside(schema: str, *, deadline_id: int, keys: Sequence[str], errors: Sequence[str]) -> Statement[Nothing]:
    parameters = {"deadline_id": deadline_id, "keys": list(keys), "errors": list(errors)}
    return of_system("put_aside", schema, nothing, parameters)


def list_asides(schema: str, *, deadline_id: int, limit: int) -> Statement[DeadlineAside]:
    return of_system("list_asides", schema, DeadlineAside, {"deadline_id": deadline_id, "limit": limit})


def find_due_asides(schema: str, *, deadline_id: int, limit: int) -> Statement[str]:
    return of_system("find_due_asides", schema, str, {"deadline_id": deadline_id, "limit": limit})


def forget_asides(schema: str, *, deadline_id: int, keys: Sequence[str]) -> Statement[Nothing]:
    return of_system("forget_asides", schema, nothing, {"deadline_id": deadline_id, "keys": list(keys)})


def forget_all_asides(schema: str, *, deadline_id: int) -> Statement[Nothing]:
    return of_system("forget_all_asides", schema, nothing, {"deadline_id": deadline_id})


def get_deadline_status(schema: str, *, name: str) -> Statement[DeadlineRecord]:
    return of_system("get_deadline_status", schema, DeadlineRecord, {"name": name})
