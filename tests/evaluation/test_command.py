import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.themes import measured
from benchmarks.themes.labelled import read

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(240)  # each starts the analysis in processes of its own
SCORES = {"count", "ami", "ari", "purity", "unassigned"}


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """Two topics, a note, an answer with two labels, a rare label and a non-answer."""
    path = tmp_path / "survey.csv"
    topics = {"parking": "The car park number {} was full", "food": "Lunch number {} was cold"}
    rows = [
        [text.format(number), label, "What was bad?"]
        for number in range(30)
        for label, text in topics.items()
    ]
    rows += [["Cold lunch, full car park", "food|parking", "What was bad?"]]
    rows += [["No idea", "food", "What was bad?"], ["Whatever", "(no content)", "What was bad?"]]
    rows += [["The doctor listened", "staff", "What was good?"]]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["answer", "codes", "asked"], *rows])
    return path


def test_answers_of_one_frequent_label_are_scored(survey: Path) -> None:
    everything = read(survey, text_column="answer", label_column="codes", question_column="asked")
    assert everything.labels[-4:] == [["food", "parking"], ["food"], [], ["staff"]]
    rows = everything.of_one_label(2)
    assert len(rows.texts) == len(rows.questions) == 61
    assert {label for labels in rows.labels for label in labels} == {"parking", "food"}


def test_a_missing_column_is_named(survey: Path) -> None:
    with pytest.raises(SystemExit, match=r"no column 'text'; there is answer, codes, asked"):
        read(survey, text_column="text", label_column="codes")


def written(path: Path, *rows: list[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    return path


def test_cells_that_are_missing_or_long_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "odd.csv", ["short"], [], ["long " * 40_000, "a"], ["fine", "b"])
    rows = read(path, text_column="text", label_column="label")
    assert rows.labels == [[], ["a"], ["b"]]
    assert rows.left_out() == {"without_label": 1, "several_labels": 0, "rare_label": 0}


def test_labels_may_hold_what_joins_others(tmp_path: Path) -> None:
    path = written(tmp_path / "odd.csv", ["x", "Fees|charges"], ["y", "a;b"], ["z", "c/d"])

    def labels(**given: str) -> list[list[str]]:
        return read(path, text_column="text", label_column="label", **given).labels

    assert labels() == [["Fees", "charges"], ["a", "b"], ["c/d"]]
    assert labels(joined_by="") == [["Fees|charges"], ["a;b"], ["c/d"]]
    assert labels(joined_by="/]") == [["Fees|charges"], ["a;b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id,text\n", "no column 'label'; there is id, text"),
        (b"", "no column 'text'; there is "),
        (b"text,label\n", "no row has exactly one label"),
        (b"text,label\na,\xff\n", "cannot be read"),
        (b"text,label\nn/a,x\nNo comment,y\n", "nothing to analyse: 2 rows"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_scored_is_said(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "odd.csv"
    if content is not None:
        path.write_bytes(content)
    command = [sys.executable, "-m", "benchmarks.themes", str(path)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_command_writes_scores_and_costs(survey: Path, tmp_path: Path, seeds: int) -> None:
    out = tmp_path / "out.json"
    command = ["-m", "benchmarks.themes", str(survey), "--text-column", "answer",
               "--label-column", "codes", "--question-column", "asked", "--min-label-count", "2",
               "--max-themes", "15", "--seeds", str(seeds), "--json", str(out)]  # fmt: skip
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)
    scores = json.loads(out.read_text(encoding="utf-8"))
    assert {"themes", "subthemes", "cpu_seconds", "peak_mib"} <= scores.keys()
    assert scores.keys() - {"rows", "labels", "seeds", "left_out"} == {
        "themes", "subthemes", "cpu_seconds", "peak_mib"
    }  # fmt: skip
    assert scores["left_out"] == {"without_label": 1, "several_labels": 1, "rare_label": 1}
    assert scores["themes"].keys() & scores["subthemes"].keys() >= SCORES
    assert scores["themes"]["purity"] > 0.9
    assert scores["themes"]["unassigned"] == pytest.approx(1 / 61, abs=1e-4)
    assert ("deviation" in scores["themes"]) == (seeds > 1)
    assert 0 < scores["cpu_seconds"] < 60
    assert 50 < scores["peak_mib"] < 1000


def test_two_processes_find_the_same(survey: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = read(survey, text_column="answer", label_column="codes", question_column="asked")
    groups = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        groups.append(measured.run(rows.texts, rows.questions, [3], max_themes=15).groups)
    assert groups[0] == groups[1]
    assert len(set(groups[0][0]["themes"])) > 2
