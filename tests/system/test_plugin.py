"""A pipeline of another package: installed, then run by its name, without a line changed here."""

import json
import subprocess
import sys
from pathlib import Path

from support.service import ROOT, running
from support.sql import rows
from system.conftest import SETTINGS

PLUGIN = ROOT / "examples" / "etl-plugin"


def _install(target: Path) -> None:
    # Offline and without isolation: what the build needs is installed with the tests' own needs.
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline"]
    command += ["--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--target", str(target), str(PLUGIN)], check=True)


def test_an_installed_plugin_is_run_by_its_name(database_url: str, tmp_path: Path) -> None:
    target = tmp_path / "site"
    _install(target)
    order = json.loads((PLUGIN / "orders.json").read_text())

    log = tmp_path / "log"
    settings = {**SETTINGS, "pipelines": {}}
    with running("serve", database_url, log, import_from=[target], **settings) as service:
        job_id = service.enqueue(order["payload"], order["pipeline"])
        job = service.wait_for_end(job_id)

        assert job["status"] == "completed", job["error"]
        assert [m["stage"] for m in job["milestones"]] == ["clean", "by month", "by customer"]
        assert service.result(job_id) == {
            "kept": 3,
            "refused": {"no amount": 1, "no customer": 1, "no date": 1, "seen before": 1},
            "months": [
                {"month": "2025-03", "orders": 1, "turnover": "12.50"},
                {"month": "2025-04", "orders": 2, "turnover": "7.30"},
            ],
            "customers": [
                {"customer": "Ada Lovelace", "orders": 2, "turnover": "12.70"},
                {"customer": "Grace Hopper", "orders": 1, "turnover": "7.10"},
            ],
        }
        assert service.stop() == 0
    kept = rows(database_url, "select stage from haulage.job_checkpoints order by saved_at")
    assert [row[0] for row in kept] == ["clean", "by month", "by customer"]
