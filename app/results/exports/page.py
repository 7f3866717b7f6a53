"""An analysis as one page: self-contained, without scripts, for screens and for paper.

What it looks like is in `templates/page.html`; here is what it has to be told beside the result.
"""

from typing import Any, BinaryIO, Final

from app.results.themes import Failed, Other, Theme, ThemesResult

MAX_TEXTS: Final = 50
"""Wordings of non-answers that are listed."""

_MOSTLY: Final = 0.8


def write_page(result: ThemesResult, file: BinaryIO, name: str) -> None:
    """Write the page; `name` says in its foot whose result it is."""
    # A lone surrogate cannot be written; a page has better a sign instead than none.
    _template().stream(**_values(result, name)).dump(file, "utf-8", "replace")


def _template() -> Any:
    """The template, which escapes each value and knows no value that is missing."""
    from jinja2 import (  # noqa: PLC0415  only in a process that writes a page
        Environment,
        PackageLoader,
        StrictUndefined,
    )

    environment = Environment(
        loader=PackageLoader("app.results.exports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number="{:,}".format, percent="{:.1%}".format)
    return environment.get_template("page.html")


def _values(result: ThemesResult, name: str) -> dict[str, Any]:
    tops = [theme for theme in result.themes if theme.parent is None]
    parts: dict[str, list[Theme]] = {}
    for theme in result.themes:
        if theme.parent is not None:
            parts.setdefault(theme.parent, []).append(theme)
    overview: list[tuple[str, str, Theme | Other | Failed]] = [
        *((theme.id, theme.name, theme) for theme in tops),
        *([("other", "Other", result.other)] if result.other.responses else []),
        *([("failed", "Not judged", result.failed)] if result.failed.responses else []),
    ]
    return {
        "result": result,
        "title": result.question or "Themes",
        "labelling": _labelling(result),
        "language": _language(result),
        "themes": tops,
        "parts": parts,
        "overview": overview,
        "longest": max((counts.share for *_, counts in overview), default=0.0),
        "most_texts": MAX_TEXTS,
        "foot": f"{name}, {result.created_by.pipeline} {result.created_by.version}",
    }


def _labelling(result: ThemesResult) -> str:
    by = {"keywords": "their keywords", "codebook": "the given codebook"}
    method = result.labelling.method
    model = result.labelling.model or "an LLM"
    named = by.get(method, model if method == "llm" else f"{model} and by keywords")
    reasons = "; ".join(result.labelling.reasons)
    return f"Themes named by {named}" + (f" ({reasons})" if reasons else "")


def _language(result: ThemesResult) -> str | None:
    """That of quotes where nearly all are in one."""
    languages = result.input.languages
    known = sum(count for code, count in languages.items() if code != "und")
    for code, count in languages.items():
        if code != "und" and count > _MOSTLY * known:
            return code
    return None
