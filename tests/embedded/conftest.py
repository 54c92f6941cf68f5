"""Directories for servers, and users that end with the test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqlstreams import embedded
from tests.embedded.processes import User, eventually, postmaster_of, runs, supervisor_of


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory that every user of the system may enter, unlike tmp_path, and leave nothing running in it."""
    place = _public_directory()
    yield place
    _end_all(place)
    shutil.rmtree(place)


@pytest.fixture
def new_home(place: Path) -> Path:
    """Give a path for a server's directory, with nothing there yet."""
    return place / "pg"


@pytest.fixture
def home(place: Path, used_home: Path) -> Iterator[Path]:
    """Give the directory of a server that ran before, because making one takes most of a test's time."""
    if not used_home.exists():
        embedded.serve(used_home).close()
    for log in used_home.glob("server.log*"):
        log.unlink()
    home = used_home.rename(place / "pg")
    yield home
    _end_all(place)
    for version in place.glob("*/data/PG_VERSION"):
        version.parents[1].rename(used_home)


@pytest.fixture(scope="session")
def used_home() -> Iterator[Path]:
    """Give the path where that directory lies between the tests."""
    place = _public_directory()
    yield place / "pg"
    shutil.rmtree(place)


@pytest.fixture
def start_user() -> Iterator[Callable[..., User]]:
    """Start a process that uses the server of a directory, without waiting until it has it."""
    users: list[User] = []

    def start(home: Path, **how: str) -> User:
        users.append(User(home, **how))
        return users[-1]

    yield start
    for user in users:
        user.discard()


def _public_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="sqlstreams-test-", dir="/tmp")).resolve()
    directory.chmod(0o755)
    return directory


def _end_all(place: Path) -> None:
    homes = [lock.parent for lock in place.rglob("supervisor.lock")]
    try:
        eventually(lambda: not any(map(runs, homes)))
    finally:
        for home in homes:
            _kill_what_runs(home)


def _kill_what_runs(home: Path) -> None:
    for find in (supervisor_of, postmaster_of):
        if runs(home) and (pid := _found(find, home)):
            os.kill(pid, signal.SIGKILL)


def _found(find: Callable[[Path], int], home: Path) -> int | None:
    try:
        return find(home)
    except FileNotFoundError:
        return None
