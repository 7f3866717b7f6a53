"""More than 200 requests of no honest client, sent as bytes to a service as a user starts it."""

import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.hostile_requests import Hostile, hostile_requests, request
from support.service import Service, running
from support.sql import value

SECONDS = 5.0


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with running("api", database_url, tmp_path / "log", pipeline="demo-echo") as service:
        yield service


def sent(service: Service, data: bytes) -> bytes:
    """The first answer, or what there is of it when the service hangs up or is silent."""
    where = urlsplit(service.url or "")
    answer = b""
    with socket.create_connection((where.hostname, where.port), SECONDS) as connection:
        with contextlib.suppress(ConnectionError):  # it has hung up before it has read everything
            connection.sendall(data)
        with contextlib.suppress(ConnectionError, TimeoutError):
            while not is_whole(answer) and (chunk := connection.recv(65_536)):
                answer += chunk
    return answer


def is_whole(answer: bytes) -> bool:
    head, end, rest = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return bool(end) and (length is None or len(rest) >= int(length[1]))


def first_answer(data: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    head, _, rest = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = rest[: int(headers.get("content-length", "0"))]
    return int(status.split()[1]), headers, json.loads(body) if body else {}


def wrong_in(case: Hostile, data: bytes) -> str | None:
    """What is not as it should be in the answer to a hostile request."""
    if not data:
        return "no answer"
    status, headers, body = first_answer(data)
    if status not in case.statuses:
        return f"status {status}: {body}"
    if headers.get("content-type") != "application/problem+json":
        return f"no problem: {headers}"
    if case.data.startswith(b"HEAD "):
        return None
    if body.get("status") != status or not str(body.get("type")).startswith("urn:haulage:problem:"):
        return f"no proper problem: {body}"
    if headers.get("x-content-type-options") != "nosniff":
        return "no security headers"
    if len(body["detail"]) > 3_000:
        return "an endless detail"
    return None


def test_hostile_requests_are_refused_and_leave_nothing(
    service: Service, database_url: str
) -> None:
    cases = hostile_requests()
    assert len(cases) >= 200
    wrong = {}
    for case in cases:
        found = wrong_in(case, sent(service, case.data))
        if found is not None:
            wrong[case.name] = found

    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())
    assert value(database_url, "select count(*) from haulage.jobs") == 0
    log = service.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log
    status, _, body = first_answer(sent(service, request(b"/enqueue")))
    assert (status, body["status"]) == (200, "pending")
    assert value(database_url, "select count(*) from haulage.jobs") == 1
    assert service.stop() == 0


def test_who_speaks_no_http_is_hung_up_on(service: Service) -> None:
    where = urlsplit(service.url or "")
    with socket.create_connection((where.hostname, where.port), SECONDS) as connection:
        connection.sendall(b"EHLO evil.example\r\n\r\n")
        answer = b""
        while chunk := connection.recv(65_536):  # to the end, or a time-out
            answer += chunk
    assert first_answer(answer)[0] == 400


def test_clients_that_vanish_leave_nothing_and_no_traceback(
    service: Service, database_url: str
) -> None:
    whole = request(b"/enqueue", b'{"payload":{"a":"' + b"x" * 100_000 + b'"}}')
    where = urlsplit(service.url or "")
    for length in (10, 60, 200, 1_000, 90_000):
        for is_reset in (False, True):
            with socket.create_connection((where.hostname, where.port), SECONDS) as connection:
                connection.sendall(whole[:length])
                if is_reset:
                    # Closing then sends a reset instead of an end.
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert first_answer(sent(service, request(b"/enqueue")))[0] == 200
    assert value(database_url, "select count(*) from haulage.jobs") == 1
    assert service.stop() == 0
    log = service.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log
