"""Every benchmark can be run at a tiny size and is described."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_has_a_tiny_size_and_answers_programs_too(program: Path) -> None:
    run = subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, check=True)
    assert "--tiny" in run.stdout
    assert "--json" in run.stdout


def test_the_page_describes_every_benchmark_and_no_other() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    described = {line.removeprefix("### `").removesuffix("`") for line in page.splitlines() if line.startswith("### `")}
    assert described == {path.relative_to(ROOT).as_posix() for path in PROGRAMS}
