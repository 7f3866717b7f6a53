"""Answers assigned to a given codebook: by embeddings, and by an LLM where one is named.

    python -m benchmarks.themes.codebook [--rows 100] [--llm-base-url URL --llm-model NAME]

The codebook is the names of the codes that the researchers gave to the answers of nhs-fft, without
a definition; scored is the whole pipeline on the same answers, against all their codes. With
`--rows` so many answers, spread evenly over the file.
"""

import argparse
import asyncio
import time
from collections import Counter
from typing import Any

from app.pipelines.thematic.pipeline import ThematicAnalysis
from benchmarks.harness.figures import show_machine
from benchmarks.themes.all import SETS
from benchmarks.themes.labelled import Labelled, read
from benchmarks.themes.scaling import Forgetful
from benchmarks.themes.scoring import macro_f1, samples_f1


def coded(count: int | None) -> Labelled:
    """The answers with at least one code, `count` of them."""
    rows = read(SETS[0].file, text_column="text", label_column="labels",
                question_column="question")  # fmt: skip
    with_codes = [row for row, labels in enumerate(rows.labels) if labels]
    if count is None or count >= len(with_codes):
        return rows.only(with_codes)
    return rows.only([with_codes[at * len(with_codes) // count] for at in range(count)])


def assigned(
    rows: Labelled, codes: list[str], **parameters: Any
) -> tuple[list[set[str]], int, Any]:
    """Answer -> names of its themes, how many the LLM judged, and what the analysis used."""
    asked = list(dict.fromkeys(rows.questions))
    columns = {question: f"q{number}" for number, question in enumerate(asked)}
    payload = {
        "answers": [
            {"id": str(row), columns[question]: text}
            for row, (text, question) in enumerate(zip(rows.texts, rows.questions, strict=True))
        ],
        "id_column": "id",
        "text_column": list(columns.values()),
        "question": {column: question for question, column in columns.items()},
        "codebook": [{"name": code} for code in codes],
        **parameters,
    }
    analysis = ThematicAnalysis(
        defaults={"llm": parameters.pop("llm")} if "llm" in parameters else None
    )
    result = asyncio.run(analysis.run(payload, Forgetful()))
    name_of = {theme["id"]: theme["name"] for theme in result["themes"]}
    given: list[set[str]] = [set() for _ in rows.texts]
    judged = 0
    for entry in result["assignments"]:
        row = int(entry["response_id"].split("/")[0])
        given[row].update(name_of[theme] for theme in entry["theme_ids"])
        judged += entry["method"] == "llm"
    return given, judged, result["usage"]


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(description="Assignment to a given codebook.")
    parser.add_argument("--rows", type=int, help="all without it")
    parser.add_argument("--llm-base-url")
    parser.add_argument("--llm-model", default="SmolLM2-135M-Instruct")
    given = parser.parse_args()
    rows = coded(given.rows)
    times = Counter(code for labels in rows.labels for code in labels)
    codes = sorted(times)
    show_machine()
    print(f"{len(rows.texts):,} answers, {len(codes)} codes, "
          f"{times.total() / len(rows.texts):.2f} per answer\n")  # fmt: skip
    print("| | samples-F1 | macro-F1 | without a code | judged by the LLM | calls "
          "| tokens in / out | seconds |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    ways: dict[str, dict[str, Any]] = {"embeddings": {"mode": "keywords"}}
    if given.llm_base_url:
        # A small model on a busy machine takes minutes for a batch.
        llm = {"base_url": given.llm_base_url, "model": given.llm_model, "concurrency": 1,
               "timeout_seconds": 600, "max_retries": 1}  # fmt: skip
        ways[given.llm_model] = {"mode": "full", "llm": llm}
    for way, parameters in ways.items():
        began = time.perf_counter()
        ours, judged, usage = assigned(rows, codes, **parameters)
        none = sum(not themes for themes in ours) / len(ours)
        print(f"| {way} | {samples_f1(rows.labels, ours):.3f} | {macro_f1(rows.labels, ours):.3f} "
              f"| {none:.3f} | {judged} | {usage['llm_calls']} | {usage['prompt_tokens']:,} / "
              f"{usage['completion_tokens']:,} | {time.perf_counter() - began:.0f} |",
              flush=True)  # fmt: skip
    most = times.most_common(1)[0][0]
    print(f"\nAlways the most frequent code: {samples_f1(rows.labels, [[most]] * len(ours)):.3f}")


if __name__ == "__main__":
    main()
