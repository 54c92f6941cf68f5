"""What the tests of the command share: how a run ended, and what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from sqlstreams_cli.main import main

COMMAND = str(Path(sys.executable).with_name("sqlstreams"))
NOWHERE = "postgresql://somebody:secret@127.0.0.1:1/nothing"

Process = subprocess.Popen[str]


class Ended(Struct, frozen=True):
    """How a run of the command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the one document on stdout."""
        return msgspec.json.decode(self.out)

    def json_lines(self) -> list[Any]:
        """Return the documents on stdout, one a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """Run the command in this process."""
    capsys.readouterr()
    code = main(arguments)
    said = capsys.readouterr()
    return Ended(code, said.out, said.err)


def environment(database_url: str) -> dict[str, str]:
    """Return variables for a process that uses a database."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SQLSTREAMS_DATABASE_URL": database_url}


def finish(process: Process) -> Ended:
    """Wait for the end of a process."""
    out, err = process.communicate(timeout=30)
    return Ended(process.returncode, out, err)
