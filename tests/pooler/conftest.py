"""PgBouncer in transaction mode before the test server, and tests that take either road to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

POOL_SIZE = 5
_CONFIG = """
[databases]
* = {server} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
query_wait_timeout = 20
log_connections = 0
log_disconnections = 0
"""


@pytest.fixture(scope="session")
def pooler_url(server_url: str) -> Iterator[str]:
    """A PgBouncer of this run alone; it knows every database of the test server."""
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        pytest.fail("PgBouncer is not installed: apt-get install pgbouncer (or put it on PATH)", pytrace=False)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="sqlstreams-pooler-") as directory:
        config = Path(directory) / "pgbouncer.ini"
        config.write_text(_configuration(server_url, port))
        config.chmod(0o644)
        Path(directory).chmod(0o755)
        pooler = _start(binary, config, as_owner_of=_socket_directory(server_url) or config)
        try:
            _await_start(pooler, port)
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            pooler.terminate()
            pooler.wait(timeout=10)


@pytest.fixture(params=["direct", "pooler"])
def road(request: pytest.FixtureRequest) -> str:
    """By which road the test goes to the server."""
    return str(request.param)


@pytest.fixture
def url(road: str, database_url: str, request: pytest.FixtureRequest) -> str:
    """The test's own database with an installation, by either road."""
    return _by_road(road, database_url, request)


@pytest.fixture
def empty_url(road: str, empty_database_url: str, request: pytest.FixtureRequest) -> str:
    """The test's own database with nothing in it, by either road."""
    return _by_road(road, empty_database_url, request)


@pytest.fixture
def pooled_url(database_url: str, pooler_url: str) -> str:
    """The test's own database with an installation, through the pooler."""
    return make_conninfo(pooler_url, dbname=conninfo_to_dict(database_url)["dbname"])


def _by_road(road: str, database_url: str, request: pytest.FixtureRequest) -> str:
    if road == "direct":
        return database_url
    pooler_url: str = request.getfixturevalue("pooler_url")
    return make_conninfo(pooler_url, dbname=conninfo_to_dict(database_url)["dbname"])


def _configuration(server_url: str, port: int) -> str:
    given = conninfo_to_dict(server_url)
    server = " ".join(f"{name}={given[name]}" for name in ("host", "port", "password") if name in given)
    return _CONFIG.format(server=server, user=given.get("user", "postgres"), port=port, pool_size=POOL_SIZE)


def _socket_directory(server_url: str) -> Path | None:
    host = str(conninfo_to_dict(server_url).get("host", ""))
    return Path(host) if host.startswith("/") else None


def _start(binary: str, config: Path, *, as_owner_of: Path) -> subprocess.Popen[bytes]:
    command = [binary, "--quiet", str(config)]
    if os.geteuid() != 0:
        return subprocess.Popen(command)
    # It refuses to run as root, and must be able to enter the directory of the server's socket.
    owner = as_owner_of.stat()
    user, group = (owner.st_uid, owner.st_gid) if owner.st_uid else ("nobody", "nogroup")
    return subprocess.Popen(command, user=user, group=group, extra_groups=[])


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_start(pooler: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres").close()
        except psycopg.OperationalError:
            assert pooler.poll() is None, f"PgBouncer ended at once, with status {pooler.returncode}"
            assert time.monotonic() < until, "PgBouncer accepts no connection"
            time.sleep(0.02)
        else:
            return
