"""An answer to POST /enqueue is a promise that survives the database's sudden end."""

from pathlib import Path

from support.service import running
from system.conftest import SETTINGS
from system.servers import Server

ROUNDS = 3


def test_a_job_that_was_answered_is_there_after_a_crash(server: Server, tmp_path: Path) -> None:
    settings = {**SETTINGS, "auto_migrate": True}
    with (
        server.new_store() as store,
        running("api", store.url, tmp_path / "log", **settings) as api,
    ):
        for number in range(ROUNDS):
            job_id = api.enqueue({"number": number}, "demo-echo")
            server.crash()
            server.start()
            assert api.job(job_id)["status"] == "pending"
        # While it is away the answer is a plain no, never a promise.
        server.crash()
        answer = api.client.post("/enqueue", json={"payload": {}, "pipeline": "demo-echo"})
        server.start()
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
