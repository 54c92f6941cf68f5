"""A PostgreSQL for the whole run and a database for each test, made from a migrated template."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sqlstreams import Client, embedded

_numbers = itertools.count(1)
_ROOM = 4 * 1024**3
# A zone that is not that of anybody here, and that changes its clocks: nothing may depend on it.
_SETTINGS = {"fsync": "off", "timezone": "America/New_York"}
_TEMPLATE = f"sqlstreams_template_{os.getpid()}"


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """An embedded server of this run alone, or the one that SQLSTREAMS_TEST_URL names."""
    if given := os.environ.get("SQLSTREAMS_TEST_URL"):
        yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="sqlstreams-tests-", dir=_in_memory()))
    directory.chmod(0o755)
    try:
        with embedded.serve(directory / "pg", settings=_SETTINGS) as server:
            yield server.url
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _in_memory() -> str | None:
    # A database is 300 small files: made on a disk, it takes a test twenty times as long as in memory.
    memory = "/dev/shm"  # mkdtemp makes the name
    roomy = Path(memory).is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    return memory if roomy else None


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a database with an installation in schema sqlstreams."""
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {_TEMPLATE}")
        try:
            with Client(make_conninfo(server_url, dbname=_TEMPLATE)) as client:
                client.system.register()
            yield _TEMPLATE
        finally:
            admin.execute(f"drop database {_TEMPLATE} with (force)")


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A database of this test alone, with an installation in schema sqlstreams."""
    yield from _database(server_url, template)


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database of this test alone, with nothing in it."""
    yield from _database(server_url, "template1")


def _database(server_url: str, template: str) -> Iterator[str]:
    name = f"sqlstreams_test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template}")
    try:
        yield make_conninfo(server_url, dbname=name)
    finally:
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)")
