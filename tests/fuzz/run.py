"""Fuzzing the API: schemathesis over the committed OpenAPI document, against a real service."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from support.service import ROOT

DOCUMENT: Final = ROOT / "docs" / "openapi.json"
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
# Waiting is tested elsewhere; here it would only take its time.
SETTINGS: Final = """\
[parameters]
"query.wait" = 0
"query.follow" = false
"header.Prefer" = "respond-async"
"""
# A stream of events goes on for as long as its job does, which nobody runs here.
STREAMS: Final = "/jobs/{job_id}/events"


def fuzz(url: str, examples: int, seed: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Send generated requests to the service at `url`; exit code 0 where every answer is right.

    Args:
        examples: at most so many for each operation and phase.
        folder: where it may leave files.
    """
    settings = folder / "schemathesis.toml"
    settings.write_text(SETTINGS)
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        f"--config-file={settings}",
        "run",
        str(DOCUMENT),
        f"--url={url}",
        f"--checks={','.join(CHECKS)}",
        f"--max-examples={examples}",
        f"--seed={seed}",
        f"--exclude-path={STREAMS}",
        "--phases=examples,coverage,fuzzing,stateful",
        "--request-timeout=35",
        "--continue-on-failure",
        "--generation-database=none",
        "--suppress-health-check=all",
        "--no-color",
    ]
    tests = str(ROOT / "tests")
    environment = {**os.environ, "PYTHONPATH": tests, "SCHEMATHESIS_HOOKS": "fuzz.hooks"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
