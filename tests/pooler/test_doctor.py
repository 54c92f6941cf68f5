"""The doctor sees the pooler that a connection goes through."""

from __future__ import annotations

import msgspec
import pytest

from sqlstreams_cli.main import main


def test_the_doctor_tells_of_a_pooler_and_stays_healthy(pooled_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--database-url", pooled_url, "--json"])

    report = msgspec.json.decode(capsys.readouterr().out)
    (pooler,) = [check for check in report["checks"] if check["name"] == "pooler"]
    assert (code, report["healthy"], pooler["state"]) == (0, True, "warn")
    assert "listen_url" in pooler["fix"]
