"""Draining nodes, paused queues and retention with real services."""

from support.service import Service, wait_until
from system.conftest import Start
from system.stores import Store

from app.domain.jobs import JobStatus


def node_of(service: Service) -> dict[str, object]:
    [node] = [
        node
        for node in service.client.get("/nodes").json()["items"]
        if node["state"] in {"active", "draining"}
    ]
    found: dict[str, object] = node
    return found


def test_a_drained_node_finishes_and_claims_again_when_it_is_resumed(
    start: Start, store: Store
) -> None:
    # Nothing but a wake-up would make it claim within the time of this test.
    with start(poll_interval_seconds=600) as service:
        node = node_of(service)
        assert (node["state"], node["capacity"], node["running"]) == ("active", 4, 0)
        running = service.enqueue({"seconds": 600, "steps": 6000}, "demo-sleep")
        service.wait_for_stage(running, "sleeping")
        short = service.enqueue({"seconds": 1.0, "steps": 2}, "demo-sleep")
        service.wait_for_stage(short, "sleeping")

        held = service.client.post(f"/nodes/{node['id']}/drain").json()
        assert (held["state"], held["running"]) == ("draining", 2)
        waiting = service.enqueue({}, "demo-echo")
        # The end of a job wakes the node as well: it has room, and looks.
        assert service.wait_for_end(short)["status"] == "completed"
        heard = store.heartbeats_of(service.pid)
        wait_until(heard, "a further renewal")
        assert service.job(waiting)["status"] == "pending"
        assert service.job(running)["status"] == "running"

        assert service.client.post(f"/nodes/{node['id']}/resume").json()["state"] == "active"
        assert service.wait_for_end(waiting)["status"] == "completed"
        assert service.client.post("/jobs/cancel", json={"ids": [running]}).json()["changed"] == 1
        assert service.wait_for_end(running)["status"] == "cancelled"


def test_a_resumed_queue_starts_its_jobs_at_once(start: Start, store: Store) -> None:
    with start(poll_interval_seconds=600) as service:
        service.client.post("/queues/night/pause")
        waiting = service.enqueue({}, "demo-echo", queue="night")
        other = service.enqueue({}, "demo-echo")
        assert service.wait_for_end(other)["status"] == "completed"
        assert service.job(waiting)["status"] == "pending"

        service.client.post("/queues/night/resume")

        assert service.wait_for_end(waiting)["status"] == "completed"


def test_pipelines_of_others_are_told_without_being_imported(start: Start) -> None:
    with start(pipelines={"declared": "support.declaring:Declared"}) as service:
        told = {item["name"]: item for item in service.client.get("/pipelines").json()["items"]}

    assert told["thematic"]["payload_schema"]["properties"]["max_themes"]["maximum"] == 100
    assert told["declared"]["payload_schema"] == {"type": "object", "required": ["n"]}
    assert told["declared"]["description"] == "Says what it takes."
    assert told["declared"]["defaults"]["max_attempts"] == 2


def test_old_jobs_go_by_themselves_while_others_run(start: Start, store: Store) -> None:
    old = store.insert_jobs("demo-echo", {"text": "x" * 1_000}, 1_200)
    store.end_all(JobStatus.COMPLETED, days_ago=31)
    kept = store.insert_jobs("demo-echo")
    store.end_all(JobStatus.FAILED, days_ago=31)
    with start() as service:
        running = service.enqueue({}, "demo-echo")
        assert service.wait_for_end(running)["status"] == "completed"
        wait_until(lambda: store.count_jobs() == 2, "the end of the old jobs")

        assert service.client.get(f"/jobs/{old[0]}").status_code == 410
        assert service.client.get(f"/jobs/{old[0]}/result").status_code == 410
        assert service.job(kept[0])["status"] == "failed"
        assert service.job(running)["status"] == "completed"
        # Told when all that belonged to them has gone too.
        wait_until(
            lambda: "retention.pruned completed_jobs=1200" in service.log.read_text(),
            "word of the old jobs",
        )
    assert store.count_all("job_payloads") == 2


def test_nothing_goes_where_everything_is_to_be_kept(start: Start, store: Store) -> None:
    [old] = store.insert_jobs("demo-echo")
    store.end_all(JobStatus.COMPLETED, days_ago=9 * 365)
    # A node that is older than a week goes in the same pass, after the jobs would have.
    store.insert_lost_jobs("demo-echo")
    store.age_nodes(8)
    with start(retention_completed_days=0) as service:
        wait_until(lambda: "lost" not in {n.name for n in store.nodes()}, "a pass of retention")
        assert service.job(old)["status"] == "completed"
