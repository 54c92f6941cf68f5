"""`sqlstreams dev`: a server with its URL on stdout, until a signal."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import COMMAND


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give a directory that the user who runs PostgreSQL can enter, which tmp_path is not."""
    above = Path(tempfile.mkdtemp(prefix="sqlstreams-dev-"))
    above.chmod(0o755)
    yield above / "pg"
    shutil.rmtree(above)


def test_a_server_runs_until_the_last_dev_ends(directory: Path) -> None:
    first = _dev(directory)
    url = _line(first)
    second = _dev(directory)
    try:
        assert _line(second) == url
        with psycopg.connect(url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    finally:
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=30)
        assert (first.returncode, out) == (0, "")
        with psycopg.connect(url):
            second.send_signal(signal.SIGTERM)
        _, joined = second.communicate(timeout=30)

    assert second.returncode == 0
    assert "started" in err
    assert str(directory) in err
    assert "joined, shared with 1 other process" in joined
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def _dev(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "dev", "--directory", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
