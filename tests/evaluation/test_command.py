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


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_command_writes_scores_and_costs(survey: Path, tmp_path: Path, seeds: int) -> None:
    out = tmp_path / "out.json"
    command = ["-m", "benchmarks.themes", str(survey), "--text-column", "answer",
               "--label-column", "codes", "--question-column", "asked", "--min-label-count", "2",
               "--max-themes", "15", "--seeds", str(seeds), "--json", str(out)]  # fmt: skip
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)
    scores = json.loads(out.read_text(encoding="utf-8"))
    assert {"themes", "subthemes", "cpu_seconds", "peak_mib"} <= scores.keys()
    assert scores.keys() - {"rows", "labels", "seeds"} == {
        "themes", "subthemes", "cpu_seconds", "peak_mib"
    }  # fmt: skip
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
