"""A process that dies between sending and writing: the message comes again, under the same id."""

import http.server
import threading
from collections.abc import Iterator
from signal import SIGKILL

import pytest
from support.service import wait_until
from system.conftest import Start
from system.stores import Store


class Endpoint(http.server.ThreadingHTTPServer):
    """Keeps the ids that it is sent, and answers none before it may."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ids: list[str] = []
        self.may_answer = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.ids.append(self.headers["webhook-id"])
        self.server.may_answer.wait(20.0)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass

    def handle_error(self) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


def test_a_message_is_sent_again_when_its_sender_was_killed(
    start: Start, store: Store, endpoint: Endpoint
) -> None:
    with start("api", webhook_allow="127.0.0.1") as service:
        url = f"http://127.0.0.1:{endpoint.server_port}/"
        response = service.client.post("/webhooks", json={"url": url})
        assert response.status_code == 201, response.text
        job = service.enqueue({}, "demo-echo")
        assert service.client.post(f"/jobs/{job}/cancel").status_code == 200
        wait_until(lambda: endpoint.ids, "the message arrives")
        service.stop(SIGKILL)
    [delivery] = store.deliveries()
    assert (delivery.id, delivery.status, delivery.attempt) == (endpoint.ids[0], "pending", 1)
    # In place of the minute that its lease has.
    store.make_deliveries_due()
    endpoint.may_answer.set()
    with start("api", webhook_allow="127.0.0.1") as service:
        wait_until(lambda: store.deliveries()[0].status == "delivered", "it is delivered")
        assert service.stop() == 0
    assert endpoint.ids == [delivery.id] * 2
    assert "whsec_" not in service.log.read_text()
