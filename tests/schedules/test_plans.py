"""However many schedules wait, looking for what is due reads what is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from sqlstreams import statements
from sqlstreams.statements import Family, SlotToFire, Statement
from tests.schedules.ground import MINUTE, query, register

IDLE, DUE = 20_000, 50


@pytest.fixture(params=["never analyzed", "analyzed"])
def full_url(request: pytest.FixtureRequest, database_url: str) -> str:
    """Many schedules, of which a few are due."""
    register(database_url, "0 0 1 1 *", "first")
    query(database_url, "alter table sqlstreams.schedule_cursor set (autovacuum_enabled = off)")
    query(database_url, "alter table sqlstreams.schedule_config set (autovacuum_enabled = off)")
    query(
        database_url,
        """
        with made as (
            insert into sqlstreams.schedule_config
                   (name, stream_id, expression, timezone, payload, schema_version, concurrency, timeout_ns, catch_up,
                    catch_up_window, compaction)
            select 's' || n, 1, '* * * * *', 'UTC', '{}', 1, 'parallel', 1000, 'newest', '1 d', true
              from generate_series(1, %s) as n
            returning id
        )
        insert into sqlstreams.schedule_cursor (schedule_id, next_slot, due_at, zone_data)
        select id, at, at, '2026.1'
          from made
         cross join lateral (select now() + make_interval(mins => id::int - %s) as at) as a
        """,
        [IDLE, DUE],
    )
    if request.param == "analyzed":
        query(database_url, "analyze")
    return database_url


def read(url: str, statement: Statement[Any]) -> tuple[int, set[str]]:
    """Return how many rows a statement reads of the tables of schedules, and which it reads from end to end."""
    with psycopg.connect(url) as connection:
        row = connection.execute(b"explain (analyze, format json) " + statement.query, statement.parameters).fetchone()
        connection.rollback()
    assert row is not None
    nodes = [node for node in _walk(row[0][0]["Plan"]) if str(node.get("Relation Name", "")).startswith("schedule_")]
    rows = sum(
        round(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))) for node in nodes
    )
    return rows, {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _walk(inner)


def test_looking_for_what_is_due_and_for_what_comes(full_url: str) -> None:
    ids = list(range(2, DUE))
    for statement, most in (
        (statements.list_due_schedules("sqlstreams", within=0.1, limit=1_000), 3 * DUE),
        (statements.list_due_schedules("sqlstreams", within=0.1, limit=10), 30),
        (statements.list_coming_schedules("sqlstreams", within=600.0, limit=1_000), 40),
        (statements.lock_due_schedules("sqlstreams", schedule_ids=ids), 3 * DUE),
    ):
        rows, scanned = read(full_url, statement)
        assert scanned == set(), statement.name
        assert rows <= most, statement.name


def test_firing_reads_what_it_fires(full_url: str) -> None:
    due = query(full_url, "select schedule_id, next_slot from sqlstreams.schedule_cursor where due_at <= now()")
    slots = [
        SlotToFire(schedule_id, 1, slot, "slot", f"key {schedule_id}", Raw(b"{}"), 0, slot + MINUTE, slot + MINUTE)
        for schedule_id, slot in due
    ]
    statement = statements.fire_slots(Family("sqlstreams", 1), slots=slots, zone_data="2026.1", fired_by="a test")
    rows, scanned = read(full_url, statement)
    assert scanned == set()
    # Each schedule and its cursor, and the cursor again to move it.
    assert len(due) >= DUE - 1
    assert rows <= 3 * len(due) + DUE
