"""A bounded run of `make fuzz`: no 5xx, no status and no body that is not documented."""

from pathlib import Path

import pytest
from fuzz.run import fuzz
from support.service import running

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_no_generated_request_gets_an_answer_that_is_not_documented(
    database_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with running("api", database_url, log) as service:
        assert service.url is not None
        done = fuzz(service.url, examples=10, seed=2026, folder=tmp_path)
        # It lives, and so does its database.
        assert service.client.get("/readyz").status_code == 200

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in log.read_text()
