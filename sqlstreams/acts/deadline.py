"""What is asked of the database about deadlines; moving their rows is in manager/moving.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from sqlstreams import statements
from sqlstreams.acts.deadline_log import log_deadline
from sqlstreams.acts.stream import check_destroy, get_stream, record_shape
from sqlstreams.codec import Codec, DecodeFailed, fingerprint
from sqlstreams.errors import InvalidInput, NotFound
from sqlstreams.model import DeadlineEdit, DeadlineInfo, DeadlineStatus
from sqlstreams.options import DeadlineOptions
from sqlstreams.sql import quote_identifier, quote_literal
from sqlstreams.statements import (
    Act,
    Column,
    DeclaredDeadline,
    Index,
    Rows,
    StoredDeadline,
    Table,
    ask,
)

_SAMPLE: Final = 20
_SHOWN_ASIDES: Final = 100
# Counting what is final reads the whole table.
_COUNTED_ROWS: Final = 5_000_000
_WARNING: Final = "no index of {table} starts with ({state}, {deadline}): every look reads more rows than are due"


class RegisteredDeadline(Struct, frozen=True):
    """What a declaration came to: whether it was written, and what is not well about it."""

    is_new: bool
    warning: str | None = None


# Declaring


def register_deadline(
    schema: str,
    *,
    name: str,
    stream: str,
    codec: Codec[Any],
    options: DeadlineOptions,
    mode: str,
    only: Mapping[str, str],
) -> Act[RegisteredDeadline]:
    """Declare a deadline: made when absent, changed when other, else nothing is written."""
    info = yield from get_stream(schema, name=stream)
    table, columns = yield from _find_table(schema, options.table)
    rows = _rows(table, columns, options)
    yield from _check_values(schema, rows, columns, only)
    yield from record_shape(schema, info, codec)
    yield from _check_sample(schema, rows, codec)
    shape = codec.json_schema()
    digest = None if shape is None else fingerprint(shape)
    declared = DeclaredDeadline(info.id, codec.schema_version, digest, rows, options.batch)
    if not (yield from _write(schema, name, declared, mode, only)):
        return RegisteredDeadline(is_new=False)
    index = _suitable((yield from ask(statements.list_indexes(schema, table_id=table.id))), rows)
    return RegisteredDeadline(is_new=True, warning=None if index else _warning(rows))


def _write(schema: str, name: str, declared: DeclaredDeadline, mode: str, only: Mapping[str, str]) -> Act[bool]:
    known = yield from ask(statements.get_deadline(schema, name=name))
    if known and known[0].declared == declared:
        return False
    if not known and (
        yield from ask(statements.insert_deadline(schema, name=name, declared=declared, mode=mode, only=only))
    ):
        yield from _log(schema, name, "registered")
        return True
    locked = yield from _lock(schema, name)
    if locked.declared == declared:
        return False
    yield from ask(statements.update_deadline(schema, deadline_id=locked.info.id, declared=declared))
    yield from ask(statements.forget_all_asides(schema, deadline_id=locked.info.id))
    yield from _log(schema, name, "changed")
    return True


def _find_table(schema: str, name: str) -> Act[tuple[Table, dict[str, Column]]]:
    found = yield from ask(statements.find_table(schema, table=name))
    if not found:
        raise InvalidInput("table", f"does not exist, or no schema on the search path has it: {name}")
    table = found[0]
    if table.kind not in ("r", "p"):
        raise InvalidInput("table", f"must be a table whose rows can be locked; {name} is none (a view, for example)")
    if table.temporary:
        raise InvalidInput("table", f"must be there for every process; {name} is a temporary table")
    if table.schema == schema:
        raise InvalidInput("table", f"must be one of your own; {name} belongs to sqlstreams")
    columns = yield from ask(statements.list_columns(schema, table_id=table.id))
    return table, {column.name: column for column in columns}


def _rows(table: Table, columns: Mapping[str, Column], options: DeadlineOptions) -> Rows:
    named = {field: getattr(options, field) for field in ("key", "deadline", "state")}
    for number, column in enumerate(options.columns or ()):
        named[f"columns[{number}]"] = column
    for field, name in named.items():
        _check_column(field, name, table, columns)
    key, deadline = columns[options.key], columns[options.deadline]
    if not key.is_key or key.category == "A":
        raise InvalidInput(
            "key",
            f"must be one column that names a row by itself: a primary key, or not null with a unique index; "
            f"{options.key!r} is none, and keys of several columns are not taken: add a column that is unique",
        )
    if deadline.type_name != "pg_catalog.timestamptz":
        raise InvalidInput("deadline", _no_instant(deadline))
    return Rows(
        table.schema,
        table.name,
        options.key,
        key.type_name,
        options.deadline,
        options.state,
        options.from_state,
        options.to_state,
        options.columns,
    )


def _check_column(field: str, column: str, table: Table, columns: Mapping[str, Column]) -> None:
    if column not in columns:
        raise InvalidInput(field, f"names no column of {table.schema}.{table.name}: {column!r}")


def _no_instant(column: Column) -> str:
    name = quote_identifier(column.name)
    if column.type.startswith("timestamp") and column.type.endswith("without time zone"):
        return (
            f"must be timestamp with time zone, since a local time names no instant; {column.name!r} is {column.type}: "
            f"alter column {name} type timestamptz using {name} at time zone 'Europe/Berlin' (the zone it was meant in)"
        )
    return (
        f"must be timestamp with time zone; {column.name!r} is {column.type}: add a column that says at which instant "
        "a row comes due"
    )


def _check_values(schema: str, rows: Rows, columns: Mapping[str, Column], only: Mapping[str, str]) -> Act[None]:
    for name in only:
        if name not in columns:
            raise InvalidInput("only", f"names no column of {rows.table}: {name!r}")
    state = columns[rows.state]
    asked = [("from_state", rows.from_state, state), ("to_state", rows.to_state, state)]
    asked += [(f"only.{name}", value, columns[name]) for name, value in only.items()]
    answers = yield from ask(
        statements.are_values(
            schema, values=[value for _, value, _ in asked], types=[column.type_name for _, _, column in asked]
        )
    )
    for (field, value, column), is_value in zip(asked, answers, strict=True):
        if not is_value:
            raise InvalidInput(field, f"must be a value of {column.name!r}, which is {column.type}, got {value!r}")


def _check_sample(schema: str, rows: Rows, codec: Codec[Any]) -> Act[None]:
    # A row that does not fit is put aside when it comes due; when none does, the type is of something else.
    sample = yield from ask(statements.sample_rows(schema, rows, limit=_SAMPLE))
    problems = [problem for payload in sample if (problem := _problem(codec, payload)) is not None]
    if problems and len(problems) == len(sample):
        raise InvalidInput("payload_type", f"does not fit the rows of {rows.table}: {problems[0]}")


def _problem(codec: Codec[Any], payload: str) -> str | None:
    try:
        codec.decode(payload.encode())
    except DecodeFailed as error:
        return str(error)
    return None


# Operating


def observe_deadline(schema: str, *, name: str) -> Act[None]:
    """Have a deadline only look; nothing is written when it does so already."""
    locked = yield from _lock(schema, name)
    if locked.info.mode != "observe":
        yield from _set_mode(schema, locked, "observe", locked.info.only)
        yield from _log(schema, name, "observed")


def activate_deadline(schema: str, *, name: str, only: Mapping[str, str]) -> Act[None]:
    """Have a deadline move rows, all or those that have some values."""
    locked = yield from _lock(schema, name)
    if only:
        _, columns = yield from _find_table(schema, locked.info.table)
        yield from _check_values(schema, locked.rows, columns, only)
    if locked.info.mode != "active" or locked.info.only != only:
        yield from _set_mode(schema, locked, "active", only)
        yield from _log(schema, name, "activated")


def _set_mode(schema: str, locked: StoredDeadline, mode: str, only: Mapping[str, str]) -> Act[None]:
    yield from ask(statements.set_deadline_mode(schema, deadline_id=locked.info.id, mode=mode, only=only))


def suspend_deadline(schema: str, *, name: str) -> Act[None]:
    """Stop a deadline; nothing is written when it is stopped already."""
    yield from _suspend(schema, name, suspended=True)


def unsuspend_deadline(schema: str, *, name: str) -> Act[None]:
    """Let a deadline go on; nothing is written when it was not stopped."""
    yield from _suspend(schema, name, suspended=False)


def _suspend(schema: str, name: str, *, suspended: bool) -> Act[None]:
    locked = yield from _lock(schema, name)
    if locked.info.suspended != suspended:
        yield from ask(statements.suspend_deadline(schema, deadline_id=locked.info.id, suspended=suspended))
        yield from _log(schema, name, "suspended" if suspended else "unsuspended")


def destroy_deadline(schema: str, *, name: str, allowed: bool) -> Act[None]:
    """Remove a deadline with what is known of it; the rows and the messages stay."""
    check_destroy(allowed, "deadline", name)
    locked = yield from _lock(schema, name)
    yield from log_deadline(schema, locked.info, "destroyed")
    yield from ask(statements.delete_deadline(schema, deadline_id=locked.info.id))


# Looking


def get_deadline(schema: str, *, name: str) -> Act[StoredDeadline]:
    """Read one deadline; raise `NotFound` when it is absent."""
    found = yield from ask(statements.get_deadline(schema, name=name))
    if not found:
        raise NotFound("deadline", name)
    return found[0]


def list_deadlines(schema: str, *, stream: str | None) -> Act[list[DeadlineInfo]]:
    """Read every deadline, or those of one stream."""
    stream_id = None if stream is None else (yield from get_stream(schema, name=stream)).id
    found = yield from ask(statements.list_deadlines(schema, stream_id=stream_id))
    return [each.info for each in found]


def list_deadline_edits(schema: str, *, name: str, limit: int) -> Act[list[DeadlineEdit]]:
    """Read the changes of a deadline, the latest first; also of one that was destroyed."""
    return (yield from ask(statements.list_deadline_edits(schema, name=name, limit=limit)))


def deadline_status(schema: str, *, name: str) -> Act[DeadlineStatus]:
    """Read how a deadline fares, and measure what is due now."""
    stored = yield from get_deadline(schema, name=name)
    record = (yield from ask(statements.get_deadline_status(schema, name=name)))[0]
    asides = yield from ask(statements.list_asides(schema, deadline_id=record.id, limit=_SHOWN_ASIDES))
    problem = yield from find_problem(schema, stored.rows)
    measured = _NOT_MEASURED if problem else (yield from _measure(schema, stored))
    return DeadlineStatus(
        **msgspec.structs.asdict(record), **msgspec.structs.asdict(measured), problem=problem, asides=tuple(asides)
    )


class _Measured(Struct, frozen=True):
    due: int | None = None
    oldest_due: Any = None
    next_deadline: Any = None
    already_final: int | None = None
    scan_cost: float | None = None
    plan: str | None = None
    index: str | None = None
    warning: str | None = None


_NOT_MEASURED: Final = _Measured()


def _measure(schema: str, stored: StoredDeadline) -> Act[_Measured]:
    rows = stored.rows
    table = (yield from ask(statements.find_table(schema, table=rows.table)))[0]
    due = (yield from ask(statements.measure_due(schema, rows)))[0]
    final = None
    if table.rows <= _COUNTED_ROWS:
        final = (yield from ask(statements.count_final(schema, rows)))[0]
    plan = (yield from ask(statements.explain_claim(schema, rows, limit=stored.info.batch)))[0]
    index = _suitable((yield from ask(statements.list_indexes(schema, table_id=table.id))), rows)
    warning = None if index else _warning(rows)
    return _Measured(due.due, due.oldest_due, due.next_deadline, final, plan.cost, plan.node, index, warning)


def find_problem(schema: str, rows: Rows) -> Act[str | None]:
    """Return why the rows of a deadline cannot be asked for: the table or a column of it is gone."""
    found = yield from ask(statements.find_table(schema, table=rows.table))
    if not found:
        return f"the table {rows.table} is gone"
    columns = {column.name for column in (yield from ask(statements.list_columns(schema, table_id=found[0].id)))}
    needed = [rows.key, rows.deadline, rows.state, *(rows.columns or ()), *(column for column, _ in rows.only)]
    missing = [column for column in needed if column not in columns]
    return f"the table {rows.table} has no column {missing[0]!r} any more" if missing else None


def _suitable(indexes: Iterable[Index], rows: Rows) -> str | None:
    return next((index.name for index in indexes if _is_suitable(index, rows)), None)


def _is_suitable(index: Index, rows: Rows) -> bool:
    if index.predicate is None:
        return index.columns[:2] == (rows.state, rows.deadline)
    # One for the rows that are to be moved alone is as good: it has what comes due, and in order.
    leads = index.columns[0] == rows.deadline or index.columns[:2] == (rows.state, rows.deadline)
    return leads and rows.state in index.predicate and quote_literal(rows.from_state) in index.predicate


def _warning(rows: Rows) -> str:
    state, deadline = quote_identifier(rows.state), quote_identifier(rows.deadline)
    return _WARNING.format(table=rows.table, state=state, deadline=deadline)


def _lock(schema: str, name: str) -> Act[StoredDeadline]:
    found = yield from ask(statements.lock_deadline(schema, name=name))
    if not found:
        raise NotFound("deadline", name)
    return found[0]


def _log(schema: str, name: str, action: str) -> Act[None]:
    yield from log_deadline(schema, (yield from get_deadline(schema, name=name)).info, action)
