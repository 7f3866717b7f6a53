"""Several processes on one database: each job goes to one of them, to one that can run it."""

from pathlib import Path

from support.processes import descendants
from support.service import wait_until
from system.conftest import Start
from system.stores import UNFINISHED, Store


def test_two_nodes_share_two_hundred_jobs_and_run_each_once(start: Start, store: Store) -> None:
    with start("worker") as first, start("worker") as second:
        store.insert_jobs("demo-echo", count=200)
        wait_until(lambda: not store.count_jobs(*UNFINISHED), "end of the jobs", 40)
        assert (first.stop(), second.stop()) == (0, 0)
    runs = store.all_attempts()
    assert len(runs) == len({job_id for job_id, _ in runs}) == 200
    assert {(run.claim_no, run.outcome) for _, run in runs} == {(1, "completed")}
    nodes = {node.id: node.pid for node in store.nodes()}
    assert {nodes[run.node_id] for _, run in runs} == {first.pid, second.pid}


def test_api_and_worker_work_together_as_processes_of_their_own(start: Start) -> None:
    with start("api") as api, start("worker") as worker:
        job_id = api.enqueue({"a": 1}, "demo-echo")
        job = api.wait_for_end(job_id)
        assert job["status"] == "completed"
        assert api.result(job_id)["echo"] == {"a": 1}
        assert descendants(api.pid) == set()
        assert (api.stop(), worker.stop()) == (0, 0)


def test_a_node_leaves_alone_what_it_cannot_run(start: Start, store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with start("worker", pipelines={}):
        [unknown] = store.insert_jobs("gate", {"gate": str(gate)})
        [known] = store.insert_jobs("demo-echo")
        wait_until(lambda: store.job(known).status == "completed", "known job")
        assert not store.attempts(unknown)
        with start("worker"):
            wait_until(lambda: store.attempts(unknown), "claim by the other node")
            gate.touch()
            wait_until(lambda: store.job(unknown).status == "completed", "its end")
