"""`haulage analyse`: a file of answers in, themes out, over the REST interface that all use."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.cli.client import Client, own_service
from app.datasets.answers import AnswerTable, read_answers
from app.domain.errors import HaulageError
from app.results.themes import ThemesResult, theme_rows
from app.results.verifying import verify

POLL_SECONDS: Final = 0.2
THEME_WIDTH: Final = 30
_IN_WORDS: Final = {"running": "being cancelled"}


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--column", help="Column with the answers; found by its content if not named.")
@click.option("--id-column", help="Column with a unique id per row.")
@click.option("--group-by", multiple=True, help="Column to compare groups by; may be repeated.")
@click.option("--question", help="What people were asked.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first LIMIT rows.")
@click.option("--max-themes", type=click.IntRange(1, 100), help="At most so many themes.")
@click.option("--url", help="A running Haulage; without it one is started for this command.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result here (JSON).",
)
def analyse(
    file: Path,
    column: str | None,
    id_column: str | None,
    group_by: tuple[str, ...],
    question: str | None,
    limit: int | None,
    max_themes: int | None,
    url: str | None,
    output: Path | None,
) -> None:
    """Find the themes in FILE (CSV, TSV or JSON lines) of free-text answers."""
    began = time.monotonic()
    console = Console()
    answers = read_answers(file, text_column=column, id_column=id_column)
    rows = answers.table.rows[:limit]
    payload = _payload(answers, rows, group_by, question, max_themes)
    console.print(f"{len(rows):,} answers from {escape(file.name)}, column {answers.text_column!r}")
    with _service(url, console) as address, Client(address) as client:
        job_id = client.enqueue("thematic", payload)
        console.print(f"job {job_id} accepted by {address}")
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
        stored = client.result(job_id)
    result = ThemesResult.model_validate(stored)
    _check(result, payload)
    _show(result, console)
    if output is not None:
        output.write_text(json.dumps(stored, ensure_ascii=False, indent=2) + "\n", "utf-8")
        console.print(f"Result written to {escape(str(output))}")
    _show_next_steps(job_id, url, console)
    _show_summary(result, time.monotonic() - began, console)


def _payload(
    answers: AnswerTable,
    rows: list[dict[str, str]],
    group_by: tuple[str, ...],
    question: str | None,
    max_themes: int | None,
) -> dict[str, Any]:
    for name in group_by:
        if name not in answers.table.columns:
            known = ", ".join(answers.table.columns)
            raise click.BadParameter(f"no column {name!r}; found: {known}", param_hint="--group-by")
    kept = [answers.text_column, *group_by]
    if answers.id_column is not None:
        kept.append(answers.id_column)
    payload: dict[str, Any] = {
        "answers": [{name: row[name] for name in kept} for row in rows],
        "text_column": answers.text_column,
        "id_column": answers.id_column,
        "group_by": list(group_by),
        "question": question or answers.question,
        "max_themes": max_themes,
    }
    return {key: value for key, value in payload.items() if value not in (None, [])}


@contextlib.contextmanager
def _service(url: str | None, console: Console) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with console.status("starting PostgreSQL and Haulage"), contextlib.ExitStack() as stack:
        address = stack.enter_context(own_service())
        stopping = stack.pop_all()
    with stopping:
        yield address


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


def _check(result: ThemesResult, payload: dict[str, Any]) -> None:
    text, key = payload["text_column"], payload.get("id_column")
    given = {
        str(row[key]) if key else str(number): row[text]
        for number, row in enumerate(payload["answers"], start=1)
    }
    problems = verify(result, given)
    if problems:
        raise HaulageError(f"the result does not hold: {'; '.join(problems[:3])}")


def _show(result: ThemesResult, console: Console) -> None:
    labelling = result.labelling
    reasons = "; ".join(labelling.reasons)
    console.print(f"Themes named by {labelling.method}" + (f" ({reasons})" if reasons else ""))
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("Theme", max_width=THEME_WIDTH)
    table.add_column("Answers", justify="right")
    table.add_column("Share", justify="right")
    table.add_column("In their words", ratio=1)
    for row in theme_rows(result):
        # Two lines of the last column at most, however wide the terminal is.
        quote = shorten(row.quote, 2 * max(20, console.width - THEME_WIDTH - 22), placeholder=" …")
        shown = f"“{escape(quote)}”" if quote else ""
        table.add_row(escape(row.name), f"{row.responses:,}", f"{row.share:.1%}", shown)
    console.print(table)
    said_nothing = result.non_answers.responses
    if said_nothing:
        console.print(f"{said_nothing:,} answers say nothing (“n/a”, “-”) and are set apart.")
    for insight in result.insights:
        console.print(f"• {escape(insight.text)}")
    for warning in result.warnings:
        console.print(f"! {escape(warning.text)}", style="yellow")


def _show_next_steps(job_id: str, url: str | None, console: Console) -> None:
    console.print("\nWhere to look next:")
    program = sys.argv[0] if Path(sys.argv[0]).name == "haulage" else "haulage"
    lines = [f"curl -s {url.rstrip('/')}/jobs/{job_id}/result"] if url else [f"{program} serve"]
    tables = ("job_attempts", "job_events", "job_checkpoints")
    lines += [f'{program} db psql -c "table haulage.{table}"' for table in tables]
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)


def _show_summary(result: ThemesResult, seconds: float, console: Console) -> None:
    themes = sum(theme.parent is None for theme in result.themes)
    console.print(
        f"{result.input.rows:,} answers, {themes} themes, {result.metrics.coverage:.0%} covered, "
        f"{seconds:.0f} s",
        highlight=False,
    )
