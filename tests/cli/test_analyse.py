"""`haulage analyse`: what it sends where, without any service."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

from app import main
from app.cli import analyse as module
from app.cli.analyse import analyse
from app.cli.serve import serve
from app.cli.themes import costs, named_by
from app.datasets.tables import Table
from app.domain.errors import HaulageError
from app.domain.keys import is_well_formed
from app.results.themes import Labelling, Usage

JOB = "0199c0de-0000-7000-8000-000000000001"
DATASET = "0199c0de-0000-7000-8000-000000000002"
ROWS = "id,text,ward\n1,The nurses were kind,A\n2,We waited for hours and hours,B\n"


class Desk:
    """Somebody who runs the command beside a service that takes jobs and fails them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "answers.csv"
        self.file.write_text(ROWS)
        self.payload: dict[str, Any] = {}
        self.settings: Mapping[str, str] | None = None
        self.is_without_key = False
        self.sent_key: str | None = None
        self.service_key: str | None = None
        self.stored: tuple[str, Table, list[dict[str, str]]] | None = None

    def run(self, *options: str) -> Result:
        return CliRunner().invoke(analyse, [str(self.file), *options])

    # -- in place of the client and of the service ----------------------------------------------

    def __call__(self, address: str, key: str | None) -> "Desk":
        self.sent_key = key
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextlib.contextmanager
    def own_service(
        self, settings: Mapping[str, str], *, key: str, llm_without_key: bool
    ) -> Iterator[str]:
        self.settings = settings
        self.service_key = key
        self.is_without_key = llm_without_key
        yield "http://ours"

    def stored_dataset(self, name: str, table: Table, rows: list[dict[str, str]]) -> str:
        assert self.settings is not None, "the service brings the schema up to date"
        self.stored = (name, table, rows)
        return DATASET

    def enqueue(self, pipeline: str, payload: dict[str, Any]) -> str:
        assert pipeline == "thematic"
        self.payload = payload
        return JOB

    def job(self, job_id: str) -> dict[str, Any]:
        return {"status": "failed", "milestones": [], "progress": None, "error": {"message": "no"}}


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    monkeypatch.setattr(module, "Client", desk)
    monkeypatch.setattr(module, "own_service", desk.own_service)
    monkeypatch.setattr(module, "stored_dataset", desk.stored_dataset)
    return desk


def test_answers_go_inline_with_the_columns_that_are_needed(desk: Desk) -> None:
    done = desk.run("--url", "http://theirs", "--limit", "1")

    assert isinstance(done.exception, HaulageError)
    assert str(done.exception) == "the job failed: no"
    assert desk.payload == {
        "answers": [{"id": "1", "text": "The nurses were kind"}],
        "text_column": "text",
        "id_column": "id",
    }


def test_a_service_of_our_own_finds_the_answers_stored(desk: Desk) -> None:
    done = desk.run("--group-by", "ward")

    assert str(done.exception) == "the job failed: no"
    assert desk.stored is not None
    name, table, rows = desk.stored
    assert (name, table.columns, len(rows)) == ("answers.csv", ["id", "text", "ward"], 2)
    assert table.sha256 == hashlib.sha256(ROWS.encode()).hexdigest()
    assert desk.payload == {
        "dataset": {"id": DATASET},
        "text_column": "text",
        "id_column": "id",
        "group_by": ["ward"],
    }


def test_parameters_are_sent_as_they_are_said(desk: Desk) -> None:
    desk.run(
        *["--url", "http://theirs", "--group-by", "ward", "--question", "What was it like?"],
        *["--mode", "name", "--seed", "0", "--max-themes", "7", "--start-from", f"{JOB}:discover"],
    )

    assert desk.payload.pop("answers")[1] == {
        "id": "2",
        "text": "We waited for hours and hours",
        "ward": "B",
    }
    assert desk.payload == {
        "text_column": "text",
        "id_column": "id",
        "group_by": ["ward"],
        "question": "What was it like?",
        "mode": "name",
        "seed": 0,
        "max_themes": 7,
        "start_from": {"job": JOB, "stage": "discover"},
    }


def test_an_llm_is_a_setting_of_our_own_service_and_a_wish_to_another_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    llm = ["--llm-base-url", "http://127.0.0.1:8080/v1", "--llm-model", "small"]
    llm += ["--llm-api-key-env", "MY_KEY"]

    desk.run(*llm, "--url", "http://theirs")

    assert desk.settings is None
    assert desk.payload["llm"] == {
        "base_url": "http://127.0.0.1:8080/v1",
        "model": "small",
        "api_key_env": "MY_KEY",
    }
    desk.run(*llm)
    assert desk.settings == {
        "HAULAGE_LLM_BASE_URL": "http://127.0.0.1:8080/v1",
        "HAULAGE_LLM_MODEL": "small",
        "HAULAGE_LLM_API_KEY_ENV": "MY_KEY",
    }
    assert "llm" not in desk.payload
    assert "s3cret" not in str(desk.payload) + str(desk.settings)


def test_our_own_service_has_a_key_of_its_own_and_another_one_that_of_the_settings(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAULAGE_API_KEY", "hlg_theirs")
    desk.run()
    first = desk.sent_key
    assert first is not None
    assert is_well_formed(first)
    assert first == desk.service_key
    desk.run()
    assert desk.sent_key != first
    desk.run("--url", "http://theirs")
    assert desk.sent_key == "hlg_theirs"


def test_a_server_that_is_named_gets_no_key_of_another_one(desk: Desk) -> None:
    llm = ["--llm-base-url", "http://127.0.0.1:8080/v1", "--llm-model", "small"]
    desk.run(*llm)
    assert desk.is_without_key
    desk.run(*llm, "--llm-api-key-env", "THEIR_KEY")
    assert not desk.is_without_key
    desk.run("--llm-model", "small")
    assert not desk.is_without_key


def test_a_service_without_key_has_none_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HAULAGE_LLM_API_KEY_ENV", "THEIR_KEY")
    names: list[str | None] = []
    monkeypatch.setattr(
        main, "run", lambda _role, settings, **_: names.append(settings.llm_api_key_env)
    )

    for options in ([], ["--llm-without-key"]):
        assert CliRunner().invoke(serve, options).exit_code == 0

    assert names == ["THEIR_KEY", None]


def test_how_the_file_is_read_can_be_said(desk: Desk) -> None:
    desk.file.write_bytes("text\nza\u017c\u00f3\u0142\u0107\n".encode("cp1250"))
    done = desk.run("--url", "http://theirs", "--encoding", "cp1250", "--header-rows", "0")

    assert desk.payload["answers"] == [{"text": "text"}, {"text": "za\u017c\u00f3\u0142\u0107"}]
    assert "was read as" not in done.output
    refused = desk.run("--sheet", "One")
    assert str(refused.exception) == "no sheet 'One': this is no workbook"


def test_an_encoding_that_is_a_guess_is_told(desk: Desk) -> None:
    assert "was read as" not in desk.run().output
    desk.file.write_bytes("text\nCaf\u00e9\n".encode("cp1252"))
    assert "answers.csv is no UTF-8 and was read as cp1252" in desk.run().output


def test_a_name_that_is_no_utf_8_is_stored_without_what_is_wrong(desk: Desk) -> None:
    desk.file = Path(os.fsdecode(os.fsencode(desk.file.parent) + b"/caf\xe9.csv"))
    desk.file.write_text(ROWS)

    assert "2 answers from caf\ufffd.csv" in desk.run().output
    assert desk.stored is not None
    assert desk.stored[0] == "caf\ufffd.csv"


@pytest.mark.parametrize("output", ["absent/out.json", "answers.csv/out.json", "."])
def test_an_output_that_cannot_be_written_is_refused_at_the_start(desk: Desk, output: str) -> None:
    done = desk.run("--output", str(desk.file.parent / output))

    assert done.exit_code == 2
    assert "--output" in done.output
    assert desk.payload == {}


def test_an_output_that_cannot_be_written_at_the_end_names_the_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = desk.file.parent / "out"
    folder.mkdir()

    def result(*_: object) -> dict[str, Any]:
        folder.rmdir()
        return {}

    monkeypatch.setattr(module, "_result", result)
    monkeypatch.setattr(module, "ThemesResult", SimpleNamespace(model_validate=dict))
    for shown in ("_check", "show"):
        monkeypatch.setattr(module, shown, lambda *_: None)

    done = desk.run("--output", str(folder / "out.json"))

    assert isinstance(done.exception, HaulageError)
    assert "cannot be written: No such file" in str(done.exception)
    assert JOB in str(done.exception)


def test_the_help_names_the_formats() -> None:
    assert "JSON lines, XLSX or ODS" in CliRunner().invoke(analyse, ["--help"]).output


@pytest.mark.parametrize("given", ["", "discover", f"{JOB}:", f"{JOB}", "42:discover"])
def test_a_start_that_names_no_job_or_no_stage_is_refused(desk: Desk, given: str) -> None:
    done = desk.run("--start-from", given)

    assert done.exit_code == 2
    assert "--start-from" in done.output
    assert desk.payload == {}


def test_an_unknown_group_is_refused(desk: Desk) -> None:
    done = desk.run("--group-by", "service")

    assert done.exit_code == 2
    assert "no column 'service'; found: id, text, ward" in done.output


# -- what it shows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labelling", "words"),
    [
        (("keywords", None, ["no LLM configured"]), "keywords (no LLM configured)"),
        (("llm", "small", []), "small"),
        (("mixed", "small", ["2 of 9 failed"]), "small and by keywords (2 of 9 failed)"),
        (("codebook", None, []), "codebook"),
    ],
)
def test_it_says_who_named_the_themes(
    labelling: tuple[Any, str | None, list[str]], words: str
) -> None:
    method, model, reasons = labelling
    given = Labelling(method=method, model=model, degraded=bool(reasons), reasons=reasons)

    assert named_by(given) == f"Themes named by {words}"


def test_it_says_what_an_llm_cost() -> None:
    nothing: dict[str, Any] = {
        "llm_calls": 0,
        "cached_calls": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "retries": 0,
        "cost": 0.0,
        "by_stage": {},
        "seconds_by_stage": {},
        "estimate": None,
    }
    paid = {"llm_calls": 12, "prompt_tokens": 12_345, "completion_tokens": 678, "cost": 0.25}

    assert costs(Usage(**nothing)) is None
    assert costs(Usage(**{**nothing, **paid})) == (
        "LLM: 12 calls, 12,345 tokens in and 678 out, cost 0.2500"
    )
    assert costs(Usage(**{**nothing, "cached_calls": 3})) == (
        "LLM: 0 calls, 3 found answered, 0 tokens in and 0 out, cost 0.0000"
    )
