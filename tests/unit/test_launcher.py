"""`WorkerLauncher` where no process can come up."""

from pathlib import Path

import pytest
from support.mock_database import MockDatabase, claimed_job

from app.db.interface import DBFactory
from app.domain.jobs import Registration
from app.orchestrator.launching import WorkerLauncher, WorkerStartError
from app.telemetry import Telemetry

_unpicklable: DBFactory = lambda: MockDatabase()  # noqa: E731, PLW0108  a lambda cannot cross
ECHO = "app.pipelines.demo:Echo"


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [(_unpicklable, {}), (MockDatabase, {"size": object()})],
    ids=["factory that cannot be pickled", "arguments that are not JSON"],
)
async def test_a_launch_that_fails_says_why_and_leaves_nothing(
    factory: DBFactory, arguments: dict[str, object]
) -> None:
    launcher = WorkerLauncher("spawn", factory, Telemetry())
    with pytest.raises(WorkerStartError):  # what is made once is made now
        await launcher.launch(claimed_job(), Registration("echo", ECHO, arguments))
    before = _open_descriptors()

    with pytest.raises(WorkerStartError, match=r"pickle|JSON"):
        await launcher.launch(claimed_job(), Registration("echo", ECHO, arguments))

    assert _open_descriptors() == before


def _open_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
