"""A process of Haulage as a user starts it, and what a client does with it."""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2

ROOT = Path(__file__).parents[2]
READY_SECONDS = 30.0
TERMINAL = ("completed", "failed", "cancelled")

_Found = TypeVar("_Found")


def wait_until(
    look: Callable[[], _Found | bool | None], what: str, timeout_seconds: float = 20.0
) -> _Found:
    """What `look` gives once that is true; AssertionError after the time-out."""
    end = time.monotonic() + timeout_seconds
    while True:
        found = look()
        if found:
            return found  # type: ignore[return-value]
        assert time.monotonic() < end, f"not within {timeout_seconds} s: {what}"
        time.sleep(0.02)


@dataclass
class Service:
    """A running `haulage serve`, `api` or `worker`."""

    process: subprocess.Popen[bytes]
    url: str | None
    log: Path
    client: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx2.Client(base_url=self.url or "http://127.0.0.1", timeout=30.0)

    @property
    def pid(self) -> int:
        return self.process.pid

    def enqueue(self, payload: dict[str, Any], pipeline: str, **options: Any) -> str:
        body = {"payload": payload, "pipeline": pipeline, **options}
        response = self.client.post("/enqueue", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        response = self.client.get(f"/jobs/{job_id}")
        assert response.status_code == 200, response.text
        job: dict[str, Any] = response.json()
        return job

    def result(self, job_id: str) -> Any:
        response = self.client.get(f"/jobs/{job_id}/result")
        assert response.status_code == 200, response.text
        return response.json()

    def wait_for_end(self, job_id: str, timeout_seconds: float = 30.0) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["status"] in TERMINAL else None

        return wait_until(ended, f"end of job {job_id}", timeout_seconds)

    def wait_for_stage(self, job_id: str, stage: str) -> dict[str, Any]:
        """The job once it entered `stage` and its worker's pid is known."""

        def entered() -> dict[str, Any] | None:
            job = self.job(job_id)
            stages = [milestone["stage"] for milestone in job["milestones"]]
            return job if stage in stages and job["pid"] else None

        return wait_until(entered, f"stage {stage!r} of job {job_id}")

    def stop(self, number: int = signal.SIGTERM, timeout_seconds: float = 40.0) -> int:
        """Send a signal and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout_seconds)
        self.client.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self.client.close()


@contextlib.contextmanager
def running(
    role: str,
    database_url: str,
    log: Path,
    *arguments: str,
    import_from: Sequence[Path] = (),
    **settings: Any,
) -> Iterator[Service]:
    """Start a process of Haulage and stop it at the end; its log goes to the file `log`.

    Args:
        role: "serve", "api" or "worker".
        import_from: more folders for PYTHONPATH.
        settings: without their prefix, such as poll_interval_seconds=30.
    """
    command = [sys.executable, "-m", "app", role, *arguments]
    if role != "worker":
        command += ["--port", "0"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(database_url, import_from=import_from, **settings),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        url = None if role == "worker" else _ready_url(process, log)
        if url is None:
            _wait_for_worker(process, log)
        with Service(process, url, log) as service:
            yield service
    finally:
        _end(process)
        assert process.stdout is not None
        process.stdout.close()


@contextlib.contextmanager
def running_command(
    command: Sequence[str], database_url: str, log: Path, ready: str, **settings: Any
) -> Iterator[Service]:
    """Any other program that serves Haulage; all that it says goes to the file `log`.

    Args:
        ready: regular expression whose first group is the URL, once the program says it.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(database_url, **settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def url() -> str | None:
        assert process.poll() is None, f"the program ended:\n{log.read_text()}"
        found = re.search(ready, log.read_text())
        return found and found[1]

    try:
        with Service(process, wait_until(url, "start", READY_SECONDS), log) as service:
            yield service
    finally:
        _end(process)


def environment(
    database_url: str, *, import_from: Sequence[Path] = (), **settings: Any
) -> dict[str, str]:
    """That of a process of Haulage: this database, these settings and no others."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HAULAGE_")}
    return {
        **kept,
        "HAULAGE_DATABASE_URL": database_url,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", *import_from))),
        "PYTHONUNBUFFERED": "1",
        **{f"HAULAGE_{name.upper()}": _text(value) for name, value in settings.items()},
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def process_exists(pid: int) -> bool:
    """Whether a process with this pid lives (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _ready_url(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and selector.select(end - time.monotonic()):
            chunk = os.read(process.stdout.fileno(), 4096)
            seen += chunk
            if found := re.search(rb"ready at (\S+)", seen):
                return found[1].decode()
            if not chunk:
                break
    process.kill()
    process.wait()
    raise AssertionError(f"the service did not start:\n{log.read_text()}")


def _wait_for_worker(process: subprocess.Popen[bytes], log: Path) -> None:
    def started() -> bool:
        assert process.poll() is None, f"the worker ended:\n{log.read_text()}"
        return "manager.started" in log.read_text()

    wait_until(started, "start of the worker", READY_SECONDS)
