"""Running the command: in this process where that is enough, as a process of its own where signals and pipes count."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Ended, Process, environment, run_here


@pytest.fixture
def run(database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run the command in this process, on a database of this test alone."""
    monkeypatch.setenv("SQLSTREAMS_DATABASE_URL", database_url)
    monkeypatch.delenv("SQLSTREAMS_SCHEMA", raising=False)

    def run(*arguments: str) -> Ended:
        return run_here(capsys, *arguments)

    return run


@pytest.fixture
def start(database_url: str) -> Iterator[Callable[..., Process]]:
    """Start the command as a process, on a database of this test alone; whatever is left at the end is killed."""
    started: list[Process] = []

    def start(*arguments: str, cwd: Path | None = None) -> Process:
        process = subprocess.Popen(
            [COMMAND, *arguments],
            env=environment(database_url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.communicate()
