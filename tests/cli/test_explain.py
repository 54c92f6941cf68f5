"""`sqlstreams explain` and the reference: what is known without a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlstreams.errors import CATALOGUE
from sqlstreams_cli.reference import reference
from tests.cli.command import NOWHERE, run_here

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("code", ["SQL0012", "sql0012", "SQL12", "12"])
def test_a_code_is_explained_offline_however_it_is_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("SQLSTREAMS_DATABASE_URL", NOWHERE)
    diagnosis = CATALOGUE["SQL0012"]

    ended = run_here(capsys, "explain", code, "--schema", "other")

    assert ended.code == 0
    assert ended.out.startswith(f"SQL0012  {diagnosis.title}\n")
    assert diagnosis.fix in ended.out
    assert "from other.stream_config" in ended.out


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_here(capsys, "explain", "--json").json()

    assert [each["code"] for each in listed] == list(CATALOGUE)
    assert {"title", "problem", "fix", "query"} <= listed[0].keys()


def test_an_unknown_code_ends_with_1_and_the_codes_that_are_near(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run_here(capsys, "explain", "SQL0113")

    assert (ended.code, ended.out) == (1, "")
    assert "there is no code SQL0113" in ended.err
    assert "did you mean SQL01" in ended.err


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")

    assert written == reference(), "run: python -m sqlstreams_cli.reference > docs/command.md"
