"""CPU-seconds and memory of the whole analysis without an LLM, by the number of answers.

    python -m benchmarks.themes.scaling [--sizes 500,5000,20000,50000] [--joined 1]

The answers are patients' real ones drawn again and again, each word left out with a probability
of one tenth: about half of 50,000 are unique then, as the table shows, and work grows with these.
With `--joined 2` each is made of two, and nearly all are unique. Each size is analysed in a process
of its own.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from app.domain.sharing import CallUsage
from benchmarks.harness.figures import show_machine
from benchmarks.themes import measured
from benchmarks.themes.all import SETS
from benchmarks.themes.labelled import read

WORD_DROPOUT = 0.1


def answers(count: int, joined: int = 1, seed: int = 0) -> list[str]:
    """So many answers, each made of so many of nhs-fft."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    originals = read(SETS[0].file, text_column="text", label_column="label").texts
    return [
        " ".join(_thinned(draw.choice(originals), draw) for _ in range(joined))
        for _ in range(count)
    ]


def _thinned(text: str, draw: random.Random) -> str:
    words = text.split()
    return " ".join(word for word in words if draw.random() >= WORD_DROPOUT) or text


class Forgetful:
    """A context that writes checkpoints as JSON, as a job does, and keeps nothing."""

    job_id = "00000000-0000-7000-8000-000000000000"
    attempt = 1
    deadline: datetime | None = None
    idempotency_key = "key"
    logger = logging.getLogger("benchmark")
    is_cancelled = False
    is_last_attempt = True

    def __init__(self) -> None:
        self.checkpoint_bytes: Counter[str] = Counter()
        self._spent: list[CallUsage] = []

    def check_cancelled(self) -> None:
        """Never cancelled."""

    def retry_later(self, delay_seconds: float, reason: str) -> NoReturn:
        """No second attempt."""
        raise AssertionError(delay_seconds, reason)

    def give_up(self, reason: str) -> NoReturn:
        """Fail."""
        raise AssertionError(reason)

    def nothing_to_do(self, reason: str) -> NoReturn:
        """Fail."""
        raise AssertionError(reason)

    async def progress(
        self, fraction: float, stage: str | None = None, message: str | None = None
    ) -> None:
        """Drop it."""

    async def save_checkpoint(self, stage: str, data: Any) -> None:
        """Write it, and note its size."""
        self.checkpoint_bytes[stage] = len(json.dumps(data))

    async def load_checkpoint(self, stage: str, *, of_job: str | None = None) -> None:
        """Find nothing."""

    async def load_call(self, key: str) -> None:
        """Find nothing."""

    async def save_call(
        self,
        key: str,  # noqa: ARG002 - as the context has it
        answer: Any,  # noqa: ARG002 - likewise
        *,
        stage: str,
        model: str,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        """Drop it, and note what it cost."""
        spent = CallUsage(stage, model, 1, 0, prompt_tokens, completion_tokens, cost)
        self._spent.append(spent)

    async def load_usage(self) -> list[CallUsage]:
        """What the calls have cost, one by one."""
        return self._spent

    async def count_cached_calls(self, stage: str, model: str, calls: int) -> None:
        """Drop it."""

    async def count_failed_calls(
        self,
        stage: str,
        model: str,
        calls: int,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        """Note it as spent."""
        spent = CallUsage(stage, model, calls, 0, prompt_tokens, completion_tokens, cost)
        self._spent.append(spent)

    async def dataset(self, dataset_id: str) -> NoReturn:
        """There are none."""
        raise AssertionError(dataset_id)

    def dataset_rows(
        self, dataset_id: str, columns: Sequence[str]
    ) -> AsyncIterator[Mapping[str, str]]:
        """There are none."""
        raise AssertionError(dataset_id, columns)


def _child(size: int, joined: int) -> None:
    from app.pipelines.thematic.pipeline import ThematicAnalysis  # noqa: PLC0415 - counted

    texts = answers(size, joined)
    began = time.process_time()
    context = Forgetful()
    payload = {"answers": texts, "question": "How could we improve?", "mode": "keywords"}
    result = asyncio.run(ThematicAnalysis().run(payload, context))
    figures = {
        "cpu_seconds": time.process_time() - began,
        "peak_mib": measured.peak_mib(),
        "themes": sum(theme["parent"] is None for theme in result["themes"]),
        "unique": len({text.casefold() for text in texts}),
        "seconds": result["usage"]["seconds_by_stage"],
        "checkpoint_mib": max(context.checkpoint_bytes.values()) / 1024**2,
    }
    json.dump(figures, sys.stdout)


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(description="What the analysis costs by size.")
    parser.add_argument("--sizes", default="500,5000,20000,50000")
    parser.add_argument("--joined", type=int, default=1, help="real answers to one (default 1)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child(given.child, given.joined)
        return
    show_machine()
    print("| answers | unique | themes | CPU-s | MiB | embed | discover | largest checkpoint |")
    print("|---|---|---|---|---|---|---|---|")
    for size in map(int, given.sizes.split(",")):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.themes.scaling", "--child", str(size),
             "--joined", str(given.joined)],
            stdout=subprocess.PIPE, text=True, check=True, cwd=measured.ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        its = json.loads(done.stdout)
        print(f"| {size:,} | {its['unique']:,} | {its['themes']} | {its['cpu_seconds']:.1f} "
              f"| {its['peak_mib']:.0f} | {its['seconds']['embed']:.0f} s "
              f"| {its['seconds']['discover']:.0f} s | {its['checkpoint_mib']:.0f} MiB |",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
