"""The database behind the worked queries: four real analyses, and jobs made up beside them.

    python docs/demo/data.py        analyse again and keep the results (about a minute)

The analyses are `make demo`, and three of 600 answers each to one question with the same codebook,
stored as if they were of three quarters. Their results are kept in a file: the queries then print
the same on every machine, while an analysis may turn out slightly otherwise where a processor
rounds otherwise.
"""

import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from types import MappingProxyType
from typing import Any, Final

import asyncpg

from app.cli.client import Client, own_service
from app.db.ids import new_id
from app.domain.keys import new_key

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = Path(__file__).parent / "analyses.json.gz"
JOBS: Final = Path(__file__).parent / "jobs.sql"
ANSWERS: Final = ROOT / "examples" / "nhs-fft" / "nhs-fft.csv"

DEMO: Final = ("--column", "text", "--id-column", "id", "--group-by", "service", "--limit", "2000")
QUESTION: Final = "How could we improve?"
WAVE: Final = 600
CODEBOOK: Final = MappingProxyType(
    {
        "Staff": "How staff treat people: kind, friendly, caring, helpful, rude, rushed.",
        "Waiting": "Waiting times, delays, being on time, how long it takes to be picked up.",
        "Phone": "Getting through on the phone, calls, answering, being put through.",
        "Transport": "Vehicles, drivers, journeys, seats, comfort, parking.",
        "Information": "Being told what happens, explanations, updates, clear advice.",
        "Appointments": "Booking, changing and cancelling appointments, opening hours.",
    }
)
# When each analysis is said to have ended, the demo's last: by every clock longer ago than the days
# that views of the present look back.
ENDED: Final = tuple(datetime(2025, month, 5, 12, tzinfo=UTC) for month in (4, 7, 10, 11))

_KEEP: Final = """
with job as (
    insert into haulage.jobs (
        id, pipeline, status, node_id, claim_no, attempt, created_at, started_at, finished_at
    )
    values ($1::text::uuid, 'thematic', 'completed', gen_random_uuid(), 1, 1, $2, $2, $3)
    returning id
)
insert into haulage.job_results (job_id, claim_no, result) select id, 1, $4::jsonb from job
"""


async def fill(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Put it all into a database with the newest schema and nothing else."""
    for result, ended in zip(kept(), ENDED, strict=True):
        began = ended - timedelta(seconds=30)
        await connection.execute(_KEEP, new_id(), began, ended, json.dumps(result))
    await connection.execute(JOBS.read_text("utf-8"))


def kept() -> list[dict[str, Any]]:
    """The results of the analyses, the oldest first."""
    results: list[dict[str, Any]] = json.loads(gzip.decompress(KEPT.read_bytes()))
    return results


def main() -> None:
    """Analyse and keep."""
    with tempfile.TemporaryDirectory(prefix="haulage-docs-") as folder:
        Path(folder).chmod(0o755)  # as root the server runs under an account that has to get in
        for name in [name for name in os.environ if name.startswith("HAULAGE_")]:
            del os.environ[name]
        os.environ["HAULAGE_DATA_DIR"] = folder
        results = [*_waves(), _demo(Path(folder) / "result.json")]
    text = json.dumps(results, ensure_ascii=False, separators=(",", ":"))
    KEPT.write_bytes(gzip.compress(text.encode(), mtime=0))


def _demo(output: Path) -> Any:
    command = [sys.executable, "-m", "app", "analyse", str(ANSWERS), *DEMO]
    subprocess.run([*command, "--output", str(output)], cwd=ROOT, check=True)
    return json.loads(output.read_text("utf-8"))


def _waves() -> Iterator[Any]:
    with ANSWERS.open(encoding="utf-8", newline="") as file:
        asked = [row for row in csv.DictReader(file) if row["question"] == QUESTION]
    key = new_key()
    with own_service({}, key=key) as url, Client(url, key) as client:
        for first in range(0, WAVE * 3, WAVE):
            rows = asked[first : first + WAVE]
            yield _analysed(client, {"answers": rows, "question": QUESTION})


def _analysed(client: Client, asked: dict[str, Any]) -> Any:
    codebook = [{"name": name, "definition": text} for name, text in CODEBOOK.items()]
    payload = {**asked, "id_column": "id", "group_by": ["rating"], "codebook": codebook}
    job_id = client.enqueue("thematic", payload)
    while (status := client.job(job_id)["status"]) in {"pending", "running"}:
        sleep(0.2)
    if status != "completed":
        raise RuntimeError(f"the job {status}")
    return client.result(job_id)


if __name__ == "__main__":
    main()
