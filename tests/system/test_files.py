"""Uploads and exports that are given up, by the client or with the service: nothing stays."""

import os
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from support.processes import descendants, held_files, living
from support.service import Service, wait_until
from support.sql import holding, our_pids, rows, value
from system.conftest import Start
from system.stores import SQL
from thematic.surveys import topics

from app.api.datasets import MAX_UPLOADS

pytestmark = pytest.mark.needs(SQL)

HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
BODY = HEAD + b"id,text\r\n1,kind staff\r\n2,cold food\r\n--b--\r\n"
FILES = {"file": ("a.csv", b"text\nsome words\n")}
LOCKED = "lock table haulage.datasets in exclusive mode"


@contextmanager
def sending(service: Service, sent: bytes, declared: int = len(BODY)) -> Iterator[socket.socket]:
    """A connection over which an upload begins."""
    assert service.url is not None
    to = urlsplit(service.url)
    with socket.create_connection((to.hostname, to.port)) as connection:
        connection.sendall(
            b"POST /datasets HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n%s" % (declared, sent)
        )
        yield connection


def temporary_files(service: Service) -> int:
    return sum(name.endswith("(deleted)") for name in held_files(service.pid).elements())


def break_off(connection: socket.socket) -> None:
    """Close without a farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_nothing_is_left_of_uploads_whose_clients_go_half_way(
    start: Start, database_url: str
) -> None:
    with start("api", pipelines={}) as service:
        before = held_files(service.pid)
        # More than may be taken in at once, so each has to give its place back.
        for number in range(2 * MAX_UPLOADS):
            with sending(service, BODY[:-20]) as connection:
                wait_until(lambda: temporary_files(service) == 1, "a file that takes the body in")
                if number % 2:
                    break_off(connection)
            wait_until(lambda: temporary_files(service) == 0, "end of the file")

        response = service.client.post("/datasets", files=FILES)
        assert response.status_code == 201, response.text
        wait_until(lambda: held_files(service.pid).keys() <= before.keys(), "what was held before")
        assert not descendants(service.pid)
        assert value(database_url, "select count(*) from haulage.datasets") == 1
        assert "rror" not in service.log.read_text()


def test_a_file_is_given_up_when_its_client_has_gone(start: Start, database_url: str) -> None:
    with start("api", pipelines={}) as service:
        with holding(database_url, LOCKED):
            with sending(service, BODY) as connection:
                wait_until(lambda: is_storing(database_url), "a file that is being stored")
                break_off(connection)
            wait_until(lambda: not descendants(service.pid), "end of the process")
            wait_until(lambda: temporary_files(service) == 0, "end of the file")
        wait_until(lambda: not our_pids(database_url, "haulage-aside"), "end of its session")

        assert rows(database_url, "select from haulage.datasets") == []


def is_storing(database_url: str) -> bool:
    return bool(
        rows(
            database_url,
            "select from pg_stat_activity where datname = current_database()"
            " and application_name = 'haulage-aside' and wait_event_type = 'Lock'",
        )
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_file_that_is_being_stored_goes_with_the_service(
    start: Start, database_url: str, number: int
) -> None:
    with start("api", pipelines={}) as service, ThreadPoolExecutor(1) as reader:
        with holding(database_url, LOCKED), sending(service, BODY) as connection:
            wait_until(lambda: is_storing(database_url), "a file that is being stored")
            started = descendants(service.pid)
            assert started
            answer = reader.submit(connection.recv, 65_536)
            code = service.stop(number, timeout_seconds=5.0)
            wait_until(lambda: not living(started), "end of the process")
            if number == signal.SIGTERM:
                assert code == 0
                assert answer.result().startswith(b"HTTP/1.1 503")
        wait_until(lambda: not our_pids(database_url, "haulage-aside"), "end of its session")
        assert rows(database_url, "select from haulage.datasets") == []


def test_a_process_that_is_killed_is_told_as_such(start: Start, database_url: str) -> None:
    with start("api", pipelines={}) as service, ThreadPoolExecutor(1) as sender:
        with holding(database_url, LOCKED):
            waiting = sender.submit(service.client.post, "/datasets", files=FILES)
            wait_until(lambda: is_storing(database_url), "a file that is being stored")
            for pid in descendants(service.pid):
                os.kill(pid, signal.SIGKILL)
            response = waiting.result()
        assert response.status_code == 503
        assert response.json()["type"] == "urn:haulage:problem:busy"
        assert "exit code -9" in service.log.read_text()
        assert service.client.post("/datasets", files=FILES).status_code == 201


def test_a_file_becomes_themes(start: Start) -> None:
    answers = topics(20)
    lines = [f"{row['id']};{row['topic']};{row['text']}" for row in answers]
    content = "\r\n".join(["id;topic;text", *lines]).encode("cp1252")
    with start("serve", pipelines={}) as service:
        client = service.client
        dataset = client.post("/v1/datasets", files={"file": ("survey.csv", content)}).json()
        assert (dataset["text_column"], dataset["id_column"]) == ("text", "id")
        payload = {"dataset": {"id": dataset["id"]}, "group_by": ["topic"], "mode": "keywords"}
        job_id = service.enqueue({**payload, "embedding": {"backend": "lsa"}}, "thematic")
        job = service.wait_for_end(job_id, timeout_seconds=50.0)
        assert job["status"] == "completed", job["error"]

        result = f"/v1/jobs/{job_id}/result"
        themes = client.get(f"{result}/themes").json()["themes"]
        assert sum(theme["responses"] for theme in themes if theme["parent"] is None) >= 60
        page = client.get(f"{result}/themes/1/quotes?limit=1").json()
        assert page["items"] == themes[0]["quotes"][:1]
        csv_lines = client.get(f"{result}?format=csv").content.decode("utf-8-sig").splitlines()
        assert csv_lines[0].startswith("response_id,text,status,")
        first = answers[0]
        assert csv_lines[1].startswith(f"{first['id']},{first['text']},")
        page_text = client.get(f"{result}?format=html").text
        assert themes[0]["name"] in page_text
