"""One analysis in a process of its own, so that its CPU-seconds and its peak are its alone.

Reads a task as JSON from standard input and writes the groups as JSON; started by `run`.
"""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Measured:
    """What an analysis found for each seed, and what the first one cost.

    Attributes:
        groups: per seed, answer -> theme and answer -> sub-theme.
        cpu_seconds: from the start of the interpreter to the named themes of the first seed.
        peak_mib: of the process' resident memory until then.
    """

    groups: list[dict[str, list[int]]]
    cpu_seconds: float
    peak_mib: float


def run(
    texts: Sequence[str],
    questions: Sequence[str],
    seeds: Sequence[int],
    *,
    with_verdicts: bool = True,
    **parameters: Any,
) -> Measured:
    """Analyse `texts` in a new process, once per seed; `parameters` are those of the payload.

    Args:
        with_verdicts: as a job does, or without its lists of words that judge and name nothing.

    Raises:
        subprocess.CalledProcessError: there was nothing to analyse; the process has said so.
    """
    task = {
        "texts": list(texts),
        "questions": list(questions),
        "seeds": list(seeds),
        "with_verdicts": with_verdicts,
        "parameters": parameters,
    }
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.themes.measured"],
        input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
        env={**os.environ, **threads},
    )  # fmt: skip
    return Measured(**json.loads(done.stdout))


def peak_mib() -> float:
    """The most memory that this process ever had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage counts what the parent had before the program was replaced
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if sys.platform == "darwin" else peak / 1024


def _main() -> None:
    from app.domain.errors import DatasetError  # noqa: PLC0415 - counted, not run's
    from app.pipelines.thematic.parameters import Parameters  # noqa: PLC0415 - counted, not run's
    from benchmarks.themes import stages  # noqa: PLC0415

    task = json.load(sys.stdin)
    try:
        answers = stages.ready(task["texts"], task["questions"])
    except DatasetError as error:
        raise SystemExit(str(error)) from error
    groups: list[stages.Groups] = []
    cpu_seconds = peak = 0.0
    for seed in task["seeds"]:
        parameters = Parameters(seed=seed, **task["parameters"])
        found = stages.find(answers, parameters, with_verdicts=task["with_verdicts"])
        if not groups:
            stages.name(answers, found)
        groups.append(stages.groups(answers, found))
        cpu_seconds = cpu_seconds or time.process_time()
        peak = peak or peak_mib()
    measured = Measured([dataclasses.asdict(each) for each in groups], cpu_seconds, peak)
    json.dump(dataclasses.asdict(measured), sys.stdout)


if __name__ == "__main__":
    _main()
