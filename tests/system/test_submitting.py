"""Many clients at once, and several processes that they talk to."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
from support.service import Service
from system.conftest import Start
from system.stores import Store

REQUESTS = 100


def test_a_hundred_posts_with_one_key_to_two_nodes_make_one_job(start: Start, store: Store) -> None:
    with start() as first, start() as second:

        def post(number: int) -> httpx2.Response:
            node: Service = (first, second)[number % 2]
            return node.client.post(
                "/enqueue",
                json={"payload": {"a": 1}, "pipeline": "demo-echo"},
                headers={"Idempotency-Key": '"one"'},
            )

        with ThreadPoolExecutor(REQUESTS // 2) as clients:
            responses = list(clients.map(post, range(REQUESTS)))

        assert {response.status_code for response in responses} == {200}
        [job_id] = {response.json()["id"] for response in responses}
        new = [r for r in responses if "idempotency-replayed" not in r.headers]
        assert len(new) == 1
        assert first.wait_for_end(job_id)["status"] == "completed"
        assert store.count_jobs() == 1
        assert [attempt.outcome for attempt in store.attempts(job_id)] == ["completed"]


def test_every_acknowledged_job_exists_when_the_service_is_stopped_under_load(
    start: Start, store: Store
) -> None:
    with start("api") as api:

        def post_until_stopped(number: int) -> list[str]:
            ids: list[str] = []
            body = {"payload": {"n": number}, "pipeline": "demo-echo"}
            with httpx2.Client(base_url=api.url or "", timeout=30.0) as client:
                while True:
                    try:
                        response = client.post("/enqueue", json=body)
                    except httpx2.TransportError:
                        return ids
                    if response.status_code != 200:
                        return ids
                    ids.append(response.json()["id"])
                    if len(ids) == 5 and number == 0:
                        api.process.terminate()

        with ThreadPoolExecutor(16) as clients:
            acknowledged = [
                job_id for ids in clients.map(post_until_stopped, range(16)) for job_id in ids
            ]
        assert api.stop() == 0

    assert len(acknowledged) >= 5
    # Each with its payload.
    assert len(store.payloads(acknowledged)) == len(set(acknowledged)) == len(acknowledged)
