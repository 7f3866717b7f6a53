"""`haulage analyse`: a file of answers in, themes out, over the REST interface that all use."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from app.cli.client import Client, own_service
from app.cli.storing import stored_dataset
from app.cli.themes import show, show_summary
from app.config import load_settings
from app.datasets.answers import AnswerTable, read_answers
from app.datasets.decoding import FALLBACK
from app.domain.errors import HaulageError
from app.domain.keys import new_key
from app.results.themes import ThemesResult
from app.results.verifying import verify

POLL_SECONDS: Final = 0.2
MODES: Final = ("auto", "keywords", "name", "full")
_IN_WORDS: Final = {"running": "being cancelled"}


@dataclass(frozen=True, slots=True)
class LLMChoice:
    """Which LLM is to be asked; what is None the service decides.

    Attributes:
        api_key_env: name of the environment variable with the key, which goes nowhere from here.
    """

    base_url: str | None
    model: str | None
    api_key_env: str | None

    @property
    def as_payload(self) -> dict[str, Any]:
        """As a job's wish, for a service that somebody else has set up."""
        return {"llm": self._given} if self._given else {}

    @property
    def as_settings(self) -> dict[str, str]:
        """As environment variables of a service of our own."""
        return {f"HAULAGE_LLM_{name.upper()}": value for name, value in self._given.items()}

    @property
    def is_without_key(self) -> bool:
        """Whether a server is named without a key; it gets none that is set for another one."""
        return self.base_url is not None and self.api_key_env is None

    @property
    def _given(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class StageOfJob(click.ParamType[dict[str, str]]):
    """JOB:STAGE as the payload has it."""

    name = "JOB:STAGE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        """Take the text apart; whether there is such a stage is for the pipeline to say."""
        job, _, stage = str(value).partition(":")
        try:
            UUID(job)
        except ValueError:
            self.fail(f"{value!r}: begin with the id of a job", param, ctx)
        if not stage:
            self.fail(f"{value!r}: name a stage after the colon", param, ctx)
        return {"job": job, "stage": stage}


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--column", help="Column with the answers; found by its content if not named.")
@click.option("--id-column", help="Column with a unique id per row.")
@click.option(
    "--header-rows",
    type=click.IntRange(0, 3),
    help="Rows above the first answer; found by their content if not given.",
)
@click.option("--sheet", help="Sheet of a workbook; the first visible one if not named.")
@click.option("--encoding", help="Encoding of a text file, such as cp1250; found if not named.")
@click.option("--group-by", multiple=True, help="Column to compare groups by; may be repeated.")
@click.option("--question", help="What people were asked.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first LIMIT rows.")
@click.option("--max-themes", type=click.IntRange(1, 100), help="At most so many themes.")
@click.option("--mode", type=click.Choice(MODES), help="How much an LLM does; default auto.")
@click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same themes.")
@click.option("--llm-base-url", help="OpenAI-compatible server, such as http://127.0.0.1:8080/v1.")
@click.option("--llm-model", help="Name of its model.")
@click.option("--llm-api-key-env", help="Environment variable that holds its key.")
@click.option(
    "--start-from",
    type=StageOfJob(),
    help="Take over what an earlier job had finished up to and including this stage.",
)
@click.option("--url", help="A running Haulage; without it one is started for this command.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=lambda _context, _option, path: _writable(path),
    help="Write the result here (JSON).",
)
def analyse(
    file: Path,
    column: str | None,
    id_column: str | None,
    header_rows: int | None,
    sheet: str | None,
    encoding: str | None,
    group_by: tuple[str, ...],
    question: str | None,
    limit: int | None,
    llm_base_url: str | None,
    llm_model: str | None,
    llm_api_key_env: str | None,
    url: str | None,
    output: Path | None,
    **parameters: Any,
) -> None:
    """Find the themes in FILE (CSV, TSV, JSON, JSON lines, XLSX or ODS) of free-text answers."""
    began = time.monotonic()
    console = Console()
    llm = LLMChoice(llm_base_url, llm_model, llm_api_key_env)
    answers = read_answers(
        file,
        text_column=column,
        id_column=id_column,
        header_rows=header_rows,
        sheet=sheet,
        encoding=encoding,
    )
    # A name of a file is bytes; what of it is no UTF-8 can be neither shown nor stored.
    name = os.fsencode(file.name).decode("utf-8", "replace")
    rows = answers.table.rows[:limit]
    payload = _payload(answers, group_by, question, parameters)
    console.print(
        f"{len(rows):,} answers from {escape(name)}, column {escape(repr(answers.text_column))}"
    )
    if encoding is None and answers.table.detected.encoding == FALLBACK:
        console.print(
            f"! {escape(name)} is no UTF-8 and was read as {FALLBACK}: if letters look wrong, "
            "say --encoding",
            style="yellow",
        )
    key = _key(url)
    with _service(url, llm, key, console) as address, Client(address, key) as client:
        if url is None:
            payload["dataset"] = {"id": stored_dataset(name, answers.table, rows)}
        else:
            payload |= {"answers": _inline(rows, payload), **llm.as_payload}
        job_id = client.enqueue("thematic", payload)
        console.print(f"job {job_id} accepted by {address}")
        stored = _result(client, job_id, console)
    result = ThemesResult.model_validate(stored)
    _check(result, answers, rows, group_by)
    show(result, console)
    if output is not None:
        _write(output, stored, job_id)
        console.print(f"Result written to {escape(str(output))}")
    _show_next_steps(job_id, url, console)
    show_summary(result, time.monotonic() - began, console)


def _key(url: str | None) -> str | None:
    """What a running service is asked with, or a service of our own is to be asked with."""
    if url is None:
        return new_key()
    api_key = load_settings().api_key
    return None if api_key is None else api_key.get_secret_value()


def _writable(path: Path | None) -> Path | None:
    """The path if it can be written there; said before the run rather than after it."""
    if path is None or path.exists():  # what is there, /dev/stdout as well, click has looked at
        return path
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise click.BadParameter(f"{str(path.parent)!r} is no folder that can be written to")
    return path


def _write(path: Path, result: Any, job_id: str) -> None:
    try:
        path.write_text(json.dumps(result, ensure_ascii=False, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise HaulageError(
            f"{path} cannot be written: {error.strerror}; the result is that of job {job_id} still"
        ) from error


def _payload(
    answers: AnswerTable,
    group_by: tuple[str, ...],
    question: str | None,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """All but the answers; what was not said is left out."""
    for name in group_by:
        if name not in answers.table.columns:
            known = ", ".join(answers.table.columns)
            raise click.BadParameter(f"no column {name!r}; found: {known}", param_hint="--group-by")
    payload: dict[str, Any] = {
        "text_column": answers.text_column,
        "id_column": answers.id_column,
        "group_by": list(group_by),
        "question": question or answers.question,
        **parameters,
    }
    return {key: value for key, value in payload.items() if value not in (None, [])}


def _inline(rows: list[dict[str, str]], payload: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows with the columns that the payload names."""
    kept = [payload["text_column"], *payload.get("group_by", [])]
    if "id_column" in payload:
        kept.append(payload["id_column"])
    return [{name: row[name] for name in kept} for row in rows]


@contextlib.contextmanager
def _service(url: str | None, llm: LLMChoice, key: str | None, console: Console) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with console.status("starting PostgreSQL and Haulage"), contextlib.ExitStack() as stack:
        assert key is not None  # noqa: S101  there is one for a service of our own
        service = own_service(llm.as_settings, key=key, llm_without_key=llm.is_without_key)
        address = stack.enter_context(service)
        stopping = stack.pop_all()
    with stopping:
        yield address


def _result(client: Client, job_id: str, console: Console) -> Any:
    """What the job returned; HaulageError where it ended otherwise."""
    try:
        job = _follow(client, job_id, console)
    except KeyboardInterrupt:
        with contextlib.suppress(HaulageError):  # the service may have gone the same way
            status = client.cancel(job_id)
            console.print(f"interrupted; job {job_id} is {_IN_WORDS.get(status, status)}")
        raise
    if job["status"] != "completed":
        error = job["error"] or {"message": "no reason given", "cause": job["status"]}
        raise HaulageError(f"the job {job['status']}: {error['message']}")
    return client.result(job_id)


def _follow(client: Client, job_id: str, console: Console) -> dict[str, Any]:
    """Show progress and print each milestone once until the job has ended."""
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=40),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[message]}"),
    )
    told = 0
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("waiting", total=1.0, message="")
        while True:
            job = client.job(job_id)
            for milestone in job["milestones"][told:]:
                told += 1
                message = milestone["message"] or ""
                bar.console.print(f"  {milestone['stage']:<10} {escape(message)}", style="dim")
            progress = job["progress"] or {"fraction": 0.0, "stage": None, "message": None}
            bar.update(
                task,
                completed=progress["fraction"],
                description=progress["stage"] or job["status"],
                message=escape(progress["message"] or ""),
            )
            if job["status"] in {"completed", "failed", "cancelled"}:
                bar.update(task, description=job["status"], message="")
                return job
            time.sleep(POLL_SECONDS)


def _check(
    result: ThemesResult,
    answers: AnswerTable,
    rows: list[dict[str, str]],
    group_by: tuple[str, ...],
) -> None:
    key = answers.id_column
    by_id = {row[key] if key else str(number): row for number, row in enumerate(rows, start=1)}
    given, *labels = (
        {response_id: row[column] for response_id, row in by_id.items()}
        for column in (answers.text_column, *group_by)
    )
    problems = verify(result, given, dict(zip(group_by, labels, strict=True)))
    if problems:
        raise HaulageError(f"the result does not hold: {'; '.join(problems[:3])}")


def _has_views() -> bool:
    """Whether the database can be asked in SQL."""
    from app.db.mongo_urls import MongoURL

    given = load_settings().database_url
    return given is None or not MongoURL.matches(given.get_secret_value())


def _show_next_steps(job_id: str, url: str | None, console: Console) -> None:
    console.print("\nWhere to look next:")
    program = sys.argv[0] if Path(sys.argv[0]).name == "haulage" else "haulage"
    lines = [f"curl -s {url.rstrip('/')}/jobs/{job_id}/result"] if url else [f"{program} serve"]
    views = ("themes", "theme_quotes", "insights") if _has_views() else ()
    lines += [f'{program} db psql -c "table reporting.{view}"' for view in views]
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
