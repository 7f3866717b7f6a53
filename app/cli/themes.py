"""A thematic analysis on a terminal: themes, insights, who named them and what it cost."""

from textwrap import shorten
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.results.themes import Labelling, ThemesResult, Usage, theme_rows

THEME_WIDTH: Final = 30


def show(result: ThemesResult, console: Console) -> None:
    """All that somebody wants to read first."""
    console.print(escape(named_by(result.labelling)))
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
    if (cost := costs(result.usage)) is not None:
        console.print(cost, highlight=False)


def show_summary(result: ThemesResult, seconds: float, console: Console) -> None:
    """The last line."""
    themes = sum(theme.parent is None for theme in result.themes)
    console.print(
        f"{result.input.rows:,} answers, {themes} themes, {result.metrics.coverage:.0%} covered, "
        f"{seconds:.0f} s",
        highlight=False,
    )


def named_by(labelling: Labelling) -> str:
    """Who named the themes, and why it is so."""
    model = labelling.model or "an LLM"
    by = {"llm": model, "mixed": f"{model} and by keywords"}.get(labelling.method, labelling.method)
    reasons = "; ".join(labelling.reasons)
    return f"Themes named by {by}" + (f" ({reasons})" if reasons else "")


def costs(usage: Usage) -> str | None:
    """What the LLM cost, None where none was asked."""
    if not usage.llm_calls and not usage.cached_calls:
        return None
    kept = f", {usage.cached_calls:,} found answered" if usage.cached_calls else ""
    return (
        f"LLM: {usage.llm_calls:,} calls{kept}, {usage.prompt_tokens:,} tokens in and "
        f"{usage.completion_tokens:,} out, cost {usage.cost:.4f}"
    )
