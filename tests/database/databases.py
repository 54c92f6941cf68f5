"""A database that the tests of one module share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import make_conninfo


def database_of_a_module(server_url: str, template: str, name: str) -> Iterator[str]:
    """Yield the URL of a database with an installation; for a fixture."""
    database = f"sqlstreams_{name}_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {database} template {template}")
    try:
        yield make_conninfo(server_url, dbname=database)
    finally:
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"drop database {database} with (force)")
