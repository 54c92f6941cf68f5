"""The drill of the example ends well, and explains itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRILL = Path(__file__).parents[2] / "examples" / "reservations" / "drill.py"


def test_the_reservations_survive_a_bad_quarter_of_an_hour(database_url: str) -> None:
    ended = subprocess.run(
        [sys.executable, DRILL, "--size", "600", "--database-url", database_url],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, "FAILED" in ended.stdout) == (0, False), ended.stdout + ended.stderr
    assert ended.stdout.count("  ok ") == 8
