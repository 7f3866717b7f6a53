"""Clients that follow jobs, vanish, or are still there at the end: real processes, raw sockets."""

import asyncio
import json
import re
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvicorn
from api.conftest import web_server
from support.processes import open_files
from support.service import Service, wait_until
from support.sql import our_connections, rows
from support.streams import SocketStream, Told, told
from support.waiting import eventually
from system.conftest import Start
from system.stores import SQL, Store
from system.test_shutdown import FINAL_SECONDS, SLACK_SECONDS

from app.api.server import WebServer
from app.db.postgres.adapter import MAX_POOL_CONNECTIONS

CLIENTS = 500
AT_ONCE = 50
STREAMS = 50
BACK_TO_START_SECONDS = 30.0
# What allocators keep of 500 requests; one stream that stays costs about 60 KiB.
MEMORY_SLACK_KIB = 8 * 1024


def _memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def _statuses(events: list[Told]) -> list[str]:
    return [event.data["status"] for event in events if event.name == "status"]


def _stories(events: list[Told]) -> list[tuple[str, int]]:
    """Everything that has an id."""
    return [(event.name, event.id) for event in events if event.id is not None]


# -- clients that vanish ----------------------------------------------------------------------


def _open_stream(service: Service, job_id: str) -> SocketStream:
    assert service.url is not None
    return SocketStream(service.url, f"/jobs/{job_id}/events")


def _vanish_from_streams(service: Service, job_id: str, count: int) -> None:
    """Half of them with a reset; every tenth before the answer has begun."""
    for first in range(0, count, AT_ONCE):
        clients = [_open_stream(service, job_id) for _ in range(min(AT_ONCE, count - first))]
        for n, client in enumerate(clients):
            if n % 10:
                client.until(b"event: status")
        for n, client in enumerate(clients):
            if n % 2:
                client.abort()
            else:
                client.socket.close()


def _vanish_from_requests(service: Service, job_id: str, count: int) -> None:
    """They wait for a job, read its log, post half a body or a whole one, and do not stay."""
    assert service.url is not None
    address = service.url.removeprefix("http://").rsplit(":", 1)
    half = b"POST /enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    requests = [
        f"GET /jobs/{job_id}?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"GET /jobs/{job_id}/logs HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        f"GET /jobs/{job_id} HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=30\r\n\r\n".encode(),
        half + b"Content-Length: 1000\r\n\r\n{",
        half + b'Content-Length: 15\r\n\r\n{"payload": {}}',
    ]
    for first in range(0, count, AT_ONCE):
        clients = []
        for n in range(min(AT_ONCE, count - first)):
            client = socket.create_connection((address[0], int(address[1])), timeout=20)
            client.sendall(requests[n % len(requests)])
            clients.append(client)
        # Served in between, so that the server has begun with them.
        assert service.client.get(f"/jobs/{job_id}").status_code == 200
        for n, client in enumerate(clients):
            if n % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()


@pytest.mark.needs(SQL)
def test_what_clients_that_vanish_took_up_is_given_back(
    start: Start, store: Store, subtests: pytest.Subtests
) -> None:
    [job_id] = store.insert_jobs("demo-echo", notify=False)
    with start("api") as service:
        for vanish in (_vanish_from_streams, _vanish_from_requests):
            with subtests.test(vanish.__name__):
                # Pool, caches and allocators take what they take once.
                vanish(service, job_id, 2 * AT_ONCE)
                files = wait_until(lambda: _settled(lambda: open_files(service.pid)), "rest", 30)
                memory = _memory_kib(service.pid)

                vanish(service, job_id, CLIENTS)

                wait_until(
                    lambda files=files: open_files(service.pid) <= files,  # type: ignore[misc]
                    "descriptors as before",
                    BACK_TO_START_SECONDS,
                )
                assert _memory_kib(service.pid) - memory < MEMORY_SLACK_KIB
                assert len(our_connections(store.url)) <= MAX_POOL_CONNECTIONS + 1
                assert not rows(
                    store.url,
                    "select from pg_stat_activity where datname = current_database()"
                    " and state like 'idle in transaction%' and application_name like 'haulage%'",
                )
        for _ in range(20):
            assert service.client.get(f"/jobs/{job_id}").status_code == 200
        assert service.stop() == 0
        assert "Traceback" not in service.log.read_text()


def _settled(look: Callable[[], int]) -> int | None:
    """What `look` gives where it gives the same for a while."""
    before = look()
    for _ in range(10):
        time.sleep(0.05)
        if look() != before:
            return None
    return before


@asynccontextmanager
async def _served(web: WebServer) -> AsyncGenerator[int, None]:
    """The port of a server in this very process, whose tasks can be counted."""
    server = uvicorn.Server(uvicorn.Config(web.app, port=0, log_config=None, lifespan="on"))
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    serving = asyncio.ensure_future(server.serve())

    async def has_started() -> bool:
        return server.started

    await eventually(has_started, "start")
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        web.refuse_traffic()
        server.should_exit = True
        await serving


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


@pytest.mark.needs(SQL)
async def test_no_task_stays_behind_clients_that_vanish(store: Store) -> None:
    web = web_server(store.url)
    async with _served(web) as port:
        job_id = await web._db.insert_pending_job({})

        async def follow(n: int) -> None:
            path = (
                f"/jobs/{job_id}/events",
                f"/jobs/{job_id}/logs?follow=true",
                f"/jobs/{job_id}?wait=30",
            )[n % 3]
            reading, writing = await asyncio.open_connection("127.0.0.1", port)
            writing.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            if n % 3 < 2:
                await reading.readuntil(b"retry: ")
            if n % 2:
                writing.transport.abort()
            else:
                writing.close()

        async def is_quiet() -> bool:
            return len(web._followers) == 0

        await follow(0)
        await eventually(is_quiet, "end of the first one")
        tasks = _names()
        for _ in range(CLIENTS // AT_ONCE):
            await asyncio.gather(*(follow(n) for n in range(AT_ONCE)))
        await eventually(is_quiet, "end of all followers")

        async def as_before() -> bool:
            return _names() == tasks

        await eventually(as_before, f"tasks as before: {tasks}")
        # And nobody asks the database for nobody.
        assert not web._followers._somebody.is_set()


def _names() -> list[str]:
    return sorted(
        str(task.get_coro()).split()[2]
        for task in asyncio.all_tasks()
        # That one ends by itself soon after the job was stored.
        if task is not asyncio.current_task() and "_send_wanted" not in str(task.get_coro())
    )


# -- clients that are there at the end --------------------------------------------------------


def test_open_streams_do_not_hold_up_the_end(start: Start, tmp_path: Path) -> None:
    grace = 1
    with start("serve", shutdown_grace_seconds=grace) as service, ExitStack() as clients:
        assert service.url is not None
        job_id = service.enqueue({"gate": str(tmp_path / "never")}, "gate")
        service.wait_for_stage(job_id, "waiting")
        streams = [clients.enter_context(_open_stream(service, job_id)) for _ in range(STREAMS)]
        logs = clients.enter_context(SocketStream(service.url, f"/jobs/{job_id}/logs?follow=true"))
        for client in streams:
            client.until(b"event: progress")
        logs.until(b"retry: ")
        waiting = [clients.enter_context(SocketStream(service.url, "/livez")) for _ in range(5)]
        for client in waiting:
            client.until(b'"ok"}')
            client.socket.sendall(
                f"GET /jobs/{job_id}?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
        # Answered after those requests, of connections that it has accepted, were begun.
        assert service.client.get("/livez").status_code == 200

        began = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        # At once, not at the end of the grace: there is a job that uses it up.
        for client in [*streams, logs]:
            events = client.rest()
            assert events[-1] == Told("closing", {"reason": "stopping"})
        for client in waiting:
            answer = client.until(b'"status":"running"')
            assert answer.count(b"HTTP/1.1 200") == 2
        assert time.monotonic() - began < grace

        assert service.process.wait(30) == 0
        assert time.monotonic() - began < grace + FINAL_SECONDS + SLACK_SECONDS
        assert "Traceback" not in service.log.read_text()


@pytest.mark.needs(SQL)
def test_clients_that_take_nothing_do_not_hold_up_the_end(start: Start, store: Store) -> None:
    [job_id] = store.insert_jobs("demo-echo", notify=False)
    # More than all buffers between the two hold.
    rows(
        store.url,
        "insert into haulage.job_events"
        " (job_id, claim_no, attempt, kind, stage, fraction, message)"
        " select $1::text::uuid, 1, 1, 'milestone', 's' || n, 0.5, repeat('x', 4000)"
        " from generate_series(1, 2000) n",
        job_id,
    )
    grace = 1
    with start("api", shutdown_grace_seconds=grace) as service, ExitStack() as clients:
        memory = _memory_kib(service.pid)
        assert service.url is not None
        path = f"/jobs/{job_id}/events"
        streams = [
            clients.enter_context(SocketStream(service.url, path, buffer_bytes=4_096))
            for _ in range(20)
        ]
        for client in streams:
            client.until(b"event: milestone")
        # The others are served meanwhile.
        with _open_stream(service, job_id) as quick:
            quick.until(b'"stage":"s2000"')
        # 8 MB are waiting for each of them, and stay in the table.
        assert _memory_kib(service.pid) - memory < 60 * 1024
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < grace + FINAL_SECONDS + SLACK_SECONDS


# -- clients that come again ------------------------------------------------------------------


def test_a_client_follows_a_job_over_the_ends_of_two_services(start: Start, store: Store) -> None:
    story: list[Told] = []
    with start("serve") as third, start("api") as first, start("api") as second:
        job_id = first.enqueue({"seconds": 3, "steps": 30}, "telling")
        assert first.url is not None
        with SocketStream(first.url, f"/jobs/{job_id}/events") as client:
            client.until(b'"stage":"step 3"')
            assert first.stop() == 0
            story += client.rest()
        assert story[-1].name == "closing"
        last = _stories(story)[-1][1]
        # A server that dies without a word cuts the stream; what was whole counts.
        assert second.url is not None
        with SocketStream(second.url, f"/jobs/{job_id}/events", Last_Event_ID=str(last)) as client:
            client.until(b'"stage":"step 12"')
            second.process.kill()
            second.process.wait()
            while not client.is_at_end:
                client.read()
            received = client.received
        body = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", received.partition(b"\r\n\r\n")[2])
        blocks = body.decode().split("\n\n")
        story += [told(block) for block in blocks[1:-1]]
        last = _stories(story)[-1][1]
        assert third.url is not None
        with SocketStream(third.url, f"/jobs/{job_id}/events", Last_Event_ID=str(last)) as client:
            story += client.rest()

    assert story[-1].data == {"id": job_id, "status": "completed"}
    stages = [event.data["stage"] for event in story if event.name == "milestone"]
    assert stages == [f"step {n}" for n in range(1, 31)]
    assert _statuses(story) == ["pending", "running", "completed"]
    ids = [event_id for _, event_id in _stories(story)]
    assert ids == sorted(set(ids))
    assert len(ids) == len(store.events(job_id))


def test_a_log_is_followed_while_the_job_writes_it(service: Service) -> None:
    assert service.url is not None
    job_id = service.enqueue({"seconds": 0.5, "steps": 10}, "telling")
    with SocketStream(service.url, f"/jobs/{job_id}/logs?follow=true") as client:
        events = client.rest()
    assert [event.data["text"] for event in events if event.name == "log"] == [
        f"step {n}" for n in range(1, 11)
    ]
    assert events[-1].data == {"id": job_id, "status": "completed"}

    text = service.client.get(f"/jobs/{job_id}/logs", headers={"accept": "text/plain"}).text
    assert [line.rpartition(": ")[2] for line in text.splitlines()] == [
        f"step {n}" for n in range(1, 11)
    ]
    waited = service.client.get(f"/jobs/{job_id}", headers={"prefer": "wait=5"})
    assert json.loads(waited.text)["status"] == "completed"


def test_a_wait_is_over_with_the_job(service: Service, shared_store: Store) -> None:
    job_id = service.enqueue({"seconds": 0.5, "steps": 1}, "demo-sleep")
    began = time.monotonic()
    response = service.client.get(f"/jobs/{job_id}?wait=25")
    assert response.json()["status"] == "completed"
    assert time.monotonic() - began < 20
    assert shared_store.milestones(job_id)
