"""The schema that the migrations make is the one that was reviewed.

After a change of the migrations: `python -m tests.migrations.dump`, then look at what it did to schema.sql.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.migrations.dump import FILE, dump, install


def test_the_schema_is_the_one_that_was_reviewed(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        if connection.info.server_version < 180000:
            pytest.skip("older servers print views and identity columns in other words")
    install(empty_database_url)
    assert dump(empty_database_url).splitlines() == FILE.read_text(encoding="utf-8").splitlines()
