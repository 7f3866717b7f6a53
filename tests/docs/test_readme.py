"""The README: its generated parts are fresh, what it names exists, its example runs."""

import re
from pathlib import Path

import pytest
from support.service import running

from docs.render import PARTS, README, ROOT, rendered

TEXT = README.read_text("utf-8")


def test_generated_parts_are_what_the_code_says() -> None:
    assert rendered(TEXT) == TEXT, "run `python docs/render.py`"


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_part_without_its_marks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"the part '{name}' is there 0 times"):
        rendered(TEXT.replace(f"<!-- {name}:begin -->", ""))


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guarantees.md",
        "docs/databases.md",
        "docs/decisions.md",
        "docs/reporting.md",
        "docs/settings.md",
        "docs/thematic-analysis.md",
        "docs/worked-queries.md",
    ],
)
def test_every_linked_file_exists(page: str) -> None:
    linked = set(re.findall(r"\]\(([^)#:]+)[)#]", (ROOT / page).read_text("utf-8")))
    folder = (ROOT / page).parent
    assert sorted(path for path in linked if not (folder / path).exists()) == []


def test_the_readme_links_every_page_of_the_documentation() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    pages -= {"soak.md", "worked-queries.md"}  # linked from guarantees.md and reporting.md
    assert {name for name in pages if f"docs/{name}" not in TEXT} == set()


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z]+)`?", TEXT))
    assert {"demo", "serve"} < targets
    assert sorted(name for name in targets if f"\n{name}:" not in makefile) == []


def test_readme_is_short() -> None:
    assert 100 <= len(TEXT.splitlines()) <= 180


@pytest.mark.system
def test_the_example_pipeline_counts_words(database_url: str, tmp_path: Path) -> None:
    pipelines = "word-count=examples.word_count:WordCount"
    with running("serve", database_url, tmp_path / "log", pipelines=pipelines) as service:
        job_id = service.enqueue({"texts": ["to be", "or not to be"]}, "word-count")
        assert service.wait_for_end(job_id)["status"] == "completed"
        assert service.result(job_id) == {"words": {"to": 2, "be": 2, "or": 1, "not": 1}}
