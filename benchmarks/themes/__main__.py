"""How well themes and sub-themes agree with the labels of a CSV file, and what they cost.

    python -m benchmarks.themes FILE.csv --text-column text --label-column label --json OUT.json

Analysed are the answers with exactly one label, by the stages that a job without an LLM runs;
several labels in a cell are joined by ";" or "|", and such answers are left out.
"""

import argparse
import json
from pathlib import Path

from benchmarks.themes.evaluation import evaluate
from benchmarks.themes.labelled import read


def main() -> None:
    """Score one file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.themes", description="Themes against the labels of a CSV file."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--question-column", help="what was asked, where it differs by row")
    parser.add_argument("--min-label-count", type=int, default=1, metavar="N",
                        help="leave out labels that fewer rows have (default 1)")  # fmt: skip
    parser.add_argument("--max-themes", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many; means are written")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="else printed")
    given = parser.parse_args()
    rows = read(
        given.file,
        text_column=given.text_column,
        label_column=given.label_column,
        question_column=given.question_column,
    ).of_one_label(given.min_label_count)
    if not rows.texts:
        raise SystemExit(f"{given.file.name}: no row has exactly one label")
    seeds = list(range(given.seed, given.seed + given.seeds))
    scores = json.dumps(evaluate(rows, max_themes=given.max_themes, seeds=seeds), indent=2)
    if given.json:
        given.json.write_text(scores + "\n", encoding="utf-8")
    else:
        print(scores)


if __name__ == "__main__":
    main()
