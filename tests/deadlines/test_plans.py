"""Finding and claiming rows reads as many as are taken, however many came due before and will come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from sqlstreams import Client, statements
from sqlstreams.database import execute
from sqlstreams.statements import Rows, Statement
from tests.database.databases import database_of_a_module
from tests.deadlines.ground import COLUMNS, TABLE, query

ROWS = Rows("public", "reservations", "id", "pg_catalog.int8", "expires_at", "state", "held", "expired", None)
INDEXES = ["(state, expires_at)", "(expires_at) where state = 'held'"]


@pytest.fixture(scope="module", params=INDEXES)
def url(request: pytest.FixtureRequest, server_url: str, template: str) -> Iterator[str]:
    """A database with 20,000 reservations: 1,000 due, 1,000 that come, 50 put aside, and what was settled before."""
    for made in database_of_a_module(server_url, template, "deadlines"):
        query(made, TABLE)
        query(made, "drop index reservations_state_expires_at_idx")
        query(made, f"create index on reservations {request.param}")
        query(
            made,
            "insert into reservations (expires_at, state)"
            " select now() + (n - 19000) * interval '1 s', case when n > 18000 then 'held' else 'expired' end"
            " from generate_series(1, 20000) n",
        )
        with Client(made) as client:
            client.stream("expired").register()
            client.deadline("expiry").register("expired", **COLUMNS)
        query(
            made,
            "insert into sqlstreams.deadline_aside (deadline_id, key, last_error, retry_at)"
            " select 1, n::text, 'no', now() from generate_series(18001, 18050) n",
        )
        query(made, "analyze reservations")
        yield made


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        (statements.find_next_due("sqlstreams", ROWS, deadline_id=1), 1 + 50),
        (statements.claim_due_rows("sqlstreams", ROWS, deadline_id=1, limit=200), 200 + 50),
    ],
    ids=lambda given: given.name if isinstance(given, Statement) else None,
)
def test_a_look_reads_what_it_takes(url: str, statement: Statement[object], most: int) -> None:
    before = (0, 0, 0)
    with psycopg.connect(url) as connection:
        # Often enough to be prepared, by the driver and then by the server.
        for _ in range(12):
            execute(connection, statement)
            now = _touched(connection)
            assert now[0] == 0
            assert now[1] - before[1] == 1
            assert now[2] - before[2] <= most
            before = now


def _touched(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    query = "select seq_scan, idx_scan, idx_tup_fetch from pg_stat_xact_user_tables where relname = 'reservations'"
    ((scanned, looked_up, fetched),) = connection.execute(query.encode()).fetchall()
    return scanned, looked_up, fetched
