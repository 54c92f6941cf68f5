"""An error that ends a connection is told from one that says the statement was wrong."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from sqlstreams import DatabaseUnavailable, NotFound
from sqlstreams.database import is_broken


@pytest.mark.parametrize(
    "error",
    [
        pg.AdminShutdown(),
        pg.ReadOnlySqlTransaction(),
        pg.IdleInTransactionSessionTimeout(),
        PoolTimeout(),
        DatabaseUnavailable(),
        psycopg.OperationalError(),
    ],
    ids=repr,
)
def test_the_end_of_a_connection_is_recognised(error: Exception) -> None:
    assert is_broken(error)


@pytest.mark.parametrize(
    "error", [pg.UniqueViolation(), pg.DeadlockDetected(), NotFound("stream", "s"), ValueError()], ids=repr
)
def test_any_other_error_leaves_the_connection_alone(error: Exception) -> None:
    assert not is_broken(error)
