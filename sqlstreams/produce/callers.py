"""The caller's transaction: finding the psycopg connection behind what a caller works with."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from sqlstreams.errors import InvalidInput

_FIELD: Final = "connection"


def driver_connection(connection: Any) -> psycopg.Connection[Any]:
    """Return the psycopg connection of a caller's connection, with its transaction begun where that is its way.

    Takes a `psycopg.Connection`, a Session or Connection of SQLAlchemy, or a connection of Django. Raises
    `InvalidInput` for everything else.
    """
    if isinstance(connection, psycopg.Connection):
        return connection
    found = _behind_django(connection) if _is_of(connection, "django") else _behind_sqlalchemy(connection)
    if isinstance(found, psycopg.Connection):
        return found
    raise _refused(connection, found, wanted="psycopg.Connection", has_async=psycopg.AsyncConnection)


async def async_driver_connection(connection: Any) -> psycopg.AsyncConnection[Any]:
    """Return the psycopg connection of a caller's connection, with its transaction begun where that is its way.

    Takes a `psycopg.AsyncConnection`, or an AsyncSession or AsyncConnection of SQLAlchemy. Raises `InvalidInput` for
    everything else.
    """
    if isinstance(connection, psycopg.AsyncConnection):
        return connection
    found = await _behind_async_sqlalchemy(connection)
    if isinstance(found, psycopg.AsyncConnection):
        return found
    raise _refused(connection, found, wanted="psycopg.AsyncConnection", has_async=psycopg.Connection)


def _is_of(connection: Any, library: str) -> bool:
    return any(kind.__module__.partition(".")[0] == library for kind in type(connection).__mro__)


def _behind_django(connection: Any) -> Any:
    if hasattr(connection, "ensure_connection"):
        connection.ensure_connection()
    return getattr(connection, "connection", None)


def _behind_sqlalchemy(connection: Any) -> Any:
    if not _is_of(connection, "sqlalchemy"):
        return None
    if hasattr(connection, "get_bind"):  # a Session: its connection begins the transaction, as a query would
        connection = connection.connection()
    return getattr(getattr(connection, "connection", None), "driver_connection", None)


async def _behind_async_sqlalchemy(connection: Any) -> Any:
    if not _is_of(connection, "sqlalchemy"):
        return None
    if hasattr(connection, "get_bind"):
        connection = await connection.connection()
    if not hasattr(connection, "get_raw_connection"):
        return _behind_sqlalchemy(connection)
    return (await connection.get_raw_connection()).driver_connection


def _refused(connection: Any, found: Any, *, wanted: str, has_async: type[Any]) -> InvalidInput:
    if isinstance(connection, has_async) or isinstance(found, has_async):
        other = "AsyncClient" if wanted == "psycopg.Connection" else "Client"
        return InvalidInput(_FIELD, f"must be a {wanted}, or stand for one; use {other} for this one")
    given = connection if found is None else found
    return InvalidInput(
        _FIELD,
        f"must be a {wanted}, or stand for one (SQLAlchemy or Django with the driver psycopg 3), "
        f"got {type(given).__module__}.{type(given).__qualname__}",
    )
