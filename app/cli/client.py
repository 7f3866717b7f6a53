"""Talking to a running Haulage over HTTP, and starting one for a single command."""

import contextlib
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

import httpx2

from app.domain.errors import HaulageError, ServiceUnreachableError

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 45.0
REQUEST_SECONDS: Final = 60.0

_READY: Final = re.compile(rb"ready at (\S+)")


class Client:
    """What the commands need of the REST interface.

    Args:
        key: an API key to send, None for none.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx2.Client(
            base_url=self.url,
            timeout=REQUEST_SECONDS,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def enqueue(self, pipeline: str, payload: dict[str, Any]) -> str:
        """Submit a job; its id."""
        answer = self._send("POST", "/enqueue", {"pipeline": pipeline, "payload": payload})
        return str(answer["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as `GET /jobs/{id}` tells it."""
        job: dict[str, Any] = self._send("GET", f"/jobs/{job_id}")
        return job

    def cancel(self, job_id: str) -> str:
        """Have the job end; its status afterwards, HaulageError where it has ended already."""
        return str(self._send("POST", f"/jobs/{job_id}/cancel")["status"])

    def result(self, job_id: str) -> Any:
        """What the pipeline returned."""
        return self._send("GET", f"/jobs/{job_id}/result")

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            response = self._http.request(method, path, json=body)
        except httpx2.TransportError as error:
            raise ServiceUnreachableError(f"{self.url} does not answer: {error}") from error
        if response.is_error:
            detail = response.text
            with contextlib.suppress(ValueError, KeyError):
                detail = response.json()["detail"]
            raise HaulageError(f"{method} {path} was refused ({response.status_code}): {detail}")
        return response.json()


@contextlib.contextmanager
def own_service(
    settings: Mapping[str, str], *, key: str, llm_without_key: bool = False
) -> Iterator[str]:
    """The URL of a `haulage serve` of our own on a free port; it ends with us, even killed.

    Args:
        settings: environment variables that it has beside ours.
        key: an API key that it is to ask for; others of this machine have no business with it.
        llm_without_key: it sends none, whatever the environment and its files say.
    """
    environment = {
        **os.environ,
        **settings,
        "HAULAGE_HOST": "127.0.0.1",
        "HAULAGE_ADMIN_KEY": key,
        "HAULAGE_LOG_LEVEL": "WARNING",
        # Who interrupts the command does not want to wait for its job.
        "HAULAGE_SHUTDOWN_GRACE_SECONDS": "0",
    }
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--until-stdin-ends"]
    if llm_without_key:
        command.append("--llm-without-key")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C is ours to handle: the service then stops in an orderly way.
            start_new_session=True,
        )
        try:
            url = _wait_until_ready(process)
            if url is None:
                log.seek(0)
                reason = log.read().decode("utf-8", "replace").strip()
                raise HaulageError(reason.removeprefix("haulage: ") or "the service did not start")
            yield url
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes]) -> str | None:
    assert process.stdout is not None  # noqa: S101  asked for above
    seen = b""
    end = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0 and selector.select(left):
            chunk = os.read(process.stdout.fileno(), 4096)
            seen += chunk
            if found := _READY.search(seen):
                return found[1].decode()
            if not chunk:
                process.wait(STOP_SECONDS)
                return None
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
