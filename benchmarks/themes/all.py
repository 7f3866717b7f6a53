"""The labelled sets that come with the project, one after the other, as a table.

python -m benchmarks.themes.all [--seeds 5]
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.figures import show_machine
from benchmarks.themes.evaluation import evaluate
from benchmarks.themes.labelled import Labelled, read
from benchmarks.themes.measured import ROOT


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A file with one label per row, and which of its rows are scored."""

    name: str
    file: Path
    min_label_count: int = 1
    question_column: str | None = None

    def rows(self) -> Labelled:
        """The rows that are scored."""
        everything = read(
            self.file,
            text_column="text",
            label_column="label",
            question_column=self.question_column,
        )
        return everything.of_one_label(self.min_label_count)


SETS = (
    LabelledSet("nhs-fft", ROOT / "examples" / "nhs-fft" / "nhs-fft.csv", 20, "question"),
    LabelledSet("banking77", ROOT / "tests" / "data" / "banking77" / "banking77.csv"),
)
HEADER = (
    f"{'data set':<10} {'rows':>5} {'labels':>6}  {'level':<9} {'count':>5} {'AMI':>5} {'ARI':>5} "
    f"{'purity':>6} {'F1':>5} {'unassigned':>10} {'CPU-s':>6} {'MiB':>4}"
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Themes against people's labels, all sets.")
    parser.add_argument("--seeds", type=int, default=5, help="means over so many (default 5)")
    seeds = list(range(parser.parse_args().seeds))
    show_machine()
    print(HEADER)
    for labelled in SETS:
        scores = evaluate(labelled.rows(), max_themes=15, seeds=seeds)
        for level in ("themes", "subthemes"):
            its = scores[level]
            print(
                f"{labelled.name:<10} {scores['rows']:>5} {scores['labels']:>6}  {level:<9} "
                f"{its['count']:>5.0f} {its['ami']:>5.3f} {its['ari']:>5.3f} "
                f"{its['purity']:>6.3f} {its['matched_f1']:>5.3f} {its['unassigned']:>10.3f} "
                f"{scores['cpu_seconds']:>6.1f} {scores['peak_mib']:>4.0f}"
            )


if __name__ == "__main__":
    main()
