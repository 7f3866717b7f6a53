"""`haulage analyse` as the first thing that somebody tries: themes at the end, nothing left."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from reporting.kept import VIEWS
from support.processes import with_mark, with_word
from support.service import ROOT, environment, wait_until
from support.sql import rows

from app.db.postgres.embedded import EmbeddedPostgres

# As in the Makefile, the columns apart.
DEMO = ("--group-by", "service", "--limit", "2000")
ANSWERS = ROOT / "examples" / "nhs-fft" / "nhs-fft.csv"


@dataclass(frozen=True)
class Desk:
    """Somebody without any database: a data folder, and a mark on every process started there."""

    folder: Path
    mark: str

    def analyse(self, *arguments: str) -> "subprocess.Popen[str]":
        settings = environment("", data_dir=self.folder, mark=self.mark)
        del settings["HAULAGE_DATABASE_URL"]
        command = [sys.executable, "-m", "app", "analyse", str(ANSWERS), *arguments]
        command += ["--column", "text", "--id-column", "id"]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def processes(self) -> set[int]:
        """Ours by their mark; PostgreSQL's, whose environment is empty, by their data folder."""
        return with_mark(f"HAULAGE_MARK={self.mark}") | with_word(f"{self.folder}/")


@pytest.fixture
def desk() -> Iterator[Desk]:
    folder = Path(tempfile.mkdtemp(prefix="haulage-demo-"))
    folder.chmod(0o755)  # as root the server runs under an account that has to get in
    desk = Desk(folder, uuid.uuid4().hex)
    yield desk
    wait_until(lambda: not desk.processes(), "end of every process")
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_bundled_answers_give_themes_and_nothing_is_left(desk: Desk, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    with desk.analyse(*DEMO, "--output", str(output)) as process:
        said, _ = process.communicate(timeout=150)

    assert process.returncode == 0, said
    last = said.rstrip().splitlines()[-1]
    found = re.fullmatch(r"2,000 answers, (\d+) themes, \d+ ?% covered, \d+ s", last)
    assert found, said
    themes = [t for t in json.loads(output.read_text())["themes"] if t["parent"] is None]
    assert int(found[1]) == len(themes) >= 8
    assert sum(theme["responses"] >= 2 for theme in themes) >= 8
    with EmbeddedPostgres(desk.folder, durable=False) as server:
        url = server.url("haulage")
        for view in VIEWS:
            assert rows(url, f"table reporting.{view}"), view
        counted = rows(url, "select theme_id, count(*) from reporting.response_themes group by 1")
    assert dict(map(tuple, counted)) == {theme["id"]: theme["responses"] for theme in themes}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_analysis_leaves_nothing_running(desk: Desk, number: int) -> None:
    with desk.analyse("--limit", "2000") as process:
        assert process.stdout is not None
        line = ""
        while "accepted by" not in line:
            line = process.stdout.readline()
            assert line, "it ended before its job was accepted"
        assert len(desk.processes()) > 2

        process.send_signal(number)

        wait_until(lambda: not desk.processes(), "end of every process")
        said, _ = process.communicate(timeout=10)
        assert process.returncode in {130, -signal.SIGKILL}
        if number == signal.SIGINT:
            # Nobody waits for it any more: the next service must not begin with it.
            assert re.search(r"interrupted; job \S+ is (being )?cancelled", " ".join(said.split()))
