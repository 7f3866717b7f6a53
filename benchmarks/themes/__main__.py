"""How well themes and sub-themes agree with the labels of a CSV file, and what they cost.

    python -m benchmarks.themes FILE.csv --text-column text --label-column label --json OUT.json

Analysed are the answers with exactly one label, by the stages that a job without an LLM runs;
several labels in a cell are joined by ";" or "|" (`--joined-by`), and such answers are left out.
How many are left out, and why, is written and told.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.themes.evaluation import evaluate
from benchmarks.themes.labelled import JOINED_BY, read


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
    parser.add_argument("--joined-by", default=JOINED_BY, metavar="SIGNS",
                        help="between the labels of a cell (default ;|); '' takes cells as they "
                        "are")  # fmt: skip
    parser.add_argument("--max-themes", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many; means are written")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="else printed")
    given = parser.parse_args()
    everything = read(
        given.file,
        text_column=given.text_column,
        label_column=given.label_column,
        question_column=given.question_column,
        joined_by=given.joined_by,
    )
    rows = everything.of_one_label(given.min_label_count)
    left_out = everything.left_out(given.min_label_count)
    if any(left_out.values()):
        counts = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in left_out.items())
        print(f"{given.file.name}: left out: {counts}", file=sys.stderr)
    if not rows.texts:
        raise SystemExit(f"{given.file.name}: no row has exactly one label")
    seeds = list(range(given.seed, given.seed + given.seeds))
    try:
        found = evaluate(rows, max_themes=given.max_themes, seeds=seeds)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{given.file.name}: not analysed") from error
    scores = json.dumps({**found, "left_out": left_out}, indent=2)
    if given.json:
        given.json.write_text(scores + "\n", encoding="utf-8")
    else:
        print(scores)


if __name__ == "__main__":
    main()
