"""An answer to POST /enqueue is a promise that survives the database's sudden end."""

from pathlib import Path

from support.cluster import crash
from support.service import running
from system.conftest import SETTINGS

from app.db.postgres.embedded import EmbeddedPostgres

ROUNDS = 3


def test_a_job_that_was_answered_is_there_after_a_crash(
    cluster: EmbeddedPostgres, tmp_path: Path
) -> None:
    cluster.ensure_database("durable")
    url = cluster.url("durable")
    settings = {**SETTINGS, "auto_migrate": True}
    with running("api", url, tmp_path / "log", **settings) as api:
        for number in range(ROUNDS):
            job_id = api.enqueue({"number": number}, "demo-echo")
            crash(cluster)
            cluster.start()
            assert api.job(job_id)["status"] == "pending"
        # While it is away the answer is a plain no, never a promise.
        crash(cluster)
        answer = api.client.post("/enqueue", json={"payload": {}, "pipeline": "demo-echo"})
        cluster.start()
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
