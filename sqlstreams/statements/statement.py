"""What a statement is: the SQL of sql/*.sql filled in, its parameters, and what a row becomes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from sqlstreams import sql

RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")


class Statement(Struct, Generic[RowT], frozen=True):
    """One question to the database. `row` is called with the columns of each row of the answer.

    `parameters` is None for a text of several commands, which PostgreSQL takes only without parameters.
    """

    name: str
    query: bytes
    parameters: Mapping[str, Any] | None
    row: Callable[..., RowT]


Act = Generator[Statement[Any], list[Any], ResultT]
"""Steps that ask one statement after the other in one transaction; whoever drives it may wait, it never does."""


def ask(statement: Statement[RowT]) -> Act[list[RowT]]:
    """Ask one statement within an act; return its rows."""
    rows: list[RowT] = yield statement
    return rows


class Family(Struct, frozen=True):
    """Where a stream's tables are: the schema and the stream's id."""

    schema: str
    stream: int


class Nothing(Struct, frozen=True):
    """The row of a statement that is asked for its effect."""


class Identified(Struct, frozen=True):
    """A row that names something by its id."""

    id: int


Columns = tuple[Any, ...]


def nothing(*_: object) -> Nothing:
    """Make the row of a statement that is asked for its effect."""
    return Nothing()


def columns(*columns: Any) -> Columns:
    """Keep the columns as they come."""
    return columns


def first(row: Callable[..., RowT], count: int) -> Callable[..., RowT]:
    """Make rows of the first `count` columns."""
    # The columns behind `count` are settings made by the statement on its way.
    return lambda *columns: row(*columns[:count])


def of_system(
    name: str, schema: str, row: Callable[..., RowT], parameters: Mapping[str, Any] | None = None
) -> Statement[RowT]:
    """Return the statement `name` of an installation."""
    return Statement(name, sql.render(name, schema), parameters or {}, row)


def of_streams(
    name: str,
    schema: str,
    streams: Iterable[int],
    row: Callable[..., RowT],
    parameters: Mapping[str, Any] | None = None,
) -> Statement[RowT]:
    """Return the statement `name` of the tables of several streams at once: a select, and so the union of all."""
    parts = [sql.render(name, schema, stream) for stream in streams]
    return Statement(name, b"\nunion all\n".join(parts), parameters or {}, row)


def of_family(
    name: str, family: Family, row: Callable[..., RowT], parameters: Mapping[str, Any] | None = None
) -> Statement[RowT]:
    """Return the statement `name` of one stream's tables."""
    return Statement(name, sql.render(name, family.schema, family.stream), parameters or {}, row)
