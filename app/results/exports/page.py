"""An analysis as one page: self-contained, without scripts, for screens and for paper."""

from importlib.resources import files
from typing import BinaryIO, Final

from app.results.exports.markup import Markup, joined, markup
from app.results.themes import Insight, Quote, Theme, ThemesResult

MAX_TEXTS: Final = 50
"""Wordings of non-answers that are listed."""

_STYLE: Final = Markup((files("app.results.exports") / "page.css").read_text("utf-8"))
_MOSTLY: Final = 0.8
_NOTHING: Final = Markup("")


def write_page(result: ThemesResult, file: BinaryIO, name: str) -> None:
    """Write the page; `name` says in its foot whose result it is."""
    file.write(page(result, name).encode())


def page(result: ThemesResult, name: str) -> Markup:
    """The whole page."""
    title = result.question or "Themes"
    return markup(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="robots" content="noindex">\n'
        "<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        "<header>\n<h1>{title}</h1>\n{labelling}</header>\n<main>\n"
        "{facts}{warnings}{insights}{overview}{themes}{rest}</main>\n"
        '<footer class="soft"><p>{foot}</p></footer>\n</body>\n</html>\n',
        title=title,
        style=_STYLE,
        labelling=_labelling(result),
        facts=_facts(result),
        warnings=joined(
            markup('<p class="warn">{text}</p>\n', text=warning.text) for warning in result.warnings
        ),
        insights=_insights(result),
        overview=_overview(result),
        themes=_themes(result),
        rest=_rest(result),
        foot=f"{name}, {result.created_by.pipeline} {result.created_by.version}",
    )


def _labelling(result: ThemesResult) -> Markup:
    by = {"keywords": "their keywords", "codebook": "the given codebook"}
    method = result.labelling.method
    model = result.labelling.model or "an LLM"
    named = by.get(method, model if method == "llm" else f"{model} and by keywords")
    reasons = "; ".join(result.labelling.reasons)
    text = f"Themes named by {named}" + (f" ({reasons})" if reasons else "")
    return markup('<p class="soft">{text}</p>\n', text=text)


def _facts(result: ThemesResult) -> Markup:
    tops = [theme for theme in result.themes if theme.parent is None]
    facts = [
        (f"{result.input.analysed:,}", "answers analysed"),
        (f"{len(tops):,}", "theme" if len(tops) == 1 else "themes"),
        (f"{result.metrics.coverage:.0%}", "have a theme"),
        (f"{result.non_answers.responses:,}", "say nothing"),
    ]
    items = joined(
        markup("<li><b>{number}</b>{what}</li>\n", number=number, what=what)
        for number, what in facts
    )
    return markup('<ul class="facts">\n{items}</ul>\n', items=items)


def _insights(result: ThemesResult) -> Markup:
    if not result.insights:
        return _NOTHING
    items = joined(map(_insight, result.insights))
    return markup("<h2>What stands out</h2>\n<ul>\n{items}</ul>\n", items=items)


def _insight(insight: Insight) -> Markup:
    return markup("<li>{text}</li>\n", text=insight.text)


def _overview(result: ThemesResult) -> Markup:
    """The themes with bars, the longest of which is full."""
    tops = [theme for theme in result.themes if theme.parent is None]
    lines = [(theme.id, theme.name, theme.responses, theme.share) for theme in tops]
    if result.other.responses:
        lines.append(("other", "Other", result.other.responses, result.other.share))
    if result.failed.responses:
        lines.append(("failed", "Not judged", result.failed.responses, result.failed.share))
    longest = max((share for *_, share in lines), default=0.0)
    rows = joined(
        markup(
            '<tr><td><a href="#{key}">{name}</a></td><td class="number">{responses}</td>'
            '<td class="number">{share}</td><td class="bar">{bar}</td></tr>\n',
            key=key,
            name=name,
            responses=f"{responses:,}",
            share=f"{share:.1%}",
            bar=_bar(share, longest),
        )
        for key, name, responses, share in lines
    )
    return markup(
        '<h2>Themes</h2>\n<table>\n<thead><tr><th scope="col">Theme</th>'
        '<th scope="col" class="number">Answers</th><th scope="col" class="number">Share</th>'
        "<td></td></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
        '<p class="soft">Of all analysed answers. An answer may have several themes.</p>\n',
        rows=rows,
    )


def _bar(share: float, longest: float) -> Markup:
    width = 100 * share / longest if longest else 0.0
    return markup(
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8" rx="1"/>'
        '<rect class="share" width="{width}" height="8" rx="1"/></svg>',
        width=f"{width:.2f}",
    )


def _themes(result: ThemesResult) -> Markup:
    language = _language(result)
    within: dict[str, list[Theme]] = {}
    for theme in result.themes:
        if theme.parent is not None:
            within.setdefault(theme.parent, []).append(theme)
    return joined(
        _theme(theme, within.get(theme.id, []), language)
        for theme in result.themes
        if theme.parent is None
    )


def _theme(theme: Theme, parts: list[Theme], language: Markup) -> Markup:
    level = 3 if theme.parent is None else 4
    return markup(
        '<article id="{key}">\n<div class="head"><h{level}>{name}</h{level}>'
        "<span>{responses} ({share})</span></div>\n{about}{stance}{quotes}{groups}{parts}"
        "</article>\n",
        key=theme.id,
        level=level,
        name=theme.name,
        responses=f"{theme.responses:,}",
        share=f"{theme.share:.1%}",
        about=_about(theme),
        stance=_stance(theme),
        quotes=joined(_quote(quote, language) for quote in theme.quotes),
        groups=joined(_group(column, theme) for column in theme.by_group),
        parts=joined(_theme(part, [], language) for part in parts),
    )


def _about(theme: Theme) -> Markup:
    text = theme.description
    keywords = ", ".join(theme.keywords)
    shown = _NOTHING if text is None else markup("<p>{text}</p>\n", text=text)
    if keywords:
        words = markup('<p class="soft">Typical words: {words}</p>\n', words=keywords)
        shown = joined((shown, words))
    return shown


def _stance(theme: Theme) -> Markup:
    counts = theme.stance
    if counts is None:
        return _NOTHING
    text = (
        f"{counts.positive:,} positive, {counts.negative:,} negative, {counts.mixed:,} mixed, "
        f"{counts.neutral:,} neutral"
    )
    return markup('<p class="soft">{text}</p>\n', text=text)


def _quote(quote: Quote, language: Markup) -> Markup:
    return markup(
        '<blockquote{language}><p>{text}</p><p class="soft" lang="en">answer {key}</p>'
        "</blockquote>\n",
        language=language,
        text=quote.text,
        key=quote.response_id,
    )


def _group(column: str, theme: Theme) -> Markup:
    counts = theme.by_group[column]
    longest = max((count.share for count in counts.values()), default=0.0)
    rows = joined(
        markup(
            '<tr><td>{group}</td><td class="number">{responses}</td>'
            '<td class="number">{share}</td><td class="bar">{bar}</td></tr>\n',
            group=group,
            responses=f"{count.responses:,}",
            share=f"{count.share:.1%}",
            bar=_bar(count.share, longest),
        )
        for group, count in counts.items()
    )
    return markup(
        '<table>\n<thead><tr><th scope="col">{column}</th><th scope="col" class="number">Answers'
        '</th><th scope="col" class="number">Share of the group</th><td></td></tr></thead>\n'
        "<tbody>\n{rows}</tbody>\n</table>\n",
        column=column,
        rows=rows,
    )


def _rest(result: ThemesResult) -> Markup:
    language = _language(result)
    pieces = []
    other = result.other
    if other.responses:
        pieces.append(
            markup(
                '<article id="other">\n<div class="head"><h3>Other</h3>'
                "<span>{responses} ({share})</span></div>\n"
                '<p class="soft">Answers without a theme, some of them:</p>\n{sample}</article>\n',
                responses=f"{other.responses:,}",
                share=f"{other.share:.1%}",
                sample=joined(_quote(quote, language) for quote in other.sample),
            )
        )
    failed = result.failed
    if failed.responses:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in failed.reasons.items())
        pieces.append(
            markup(
                '<article id="failed">\n<div class="head"><h3>Not judged</h3>'
                "<span>{responses} ({share})</span></div>\n<p>{reasons}</p></article>\n",
                responses=f"{failed.responses:,}",
                share=f"{failed.share:.1%}",
                reasons=reasons,
            )
        )
    silent = result.non_answers
    if silent.responses:
        texts = ", ".join(
            f"“{wording.text}” ({wording.responses:,})"
            if wording.text
            else f"empty ({wording.responses:,})"
            for wording in silent.texts[:MAX_TEXTS]
        )
        pieces.append(
            markup(
                "<h2>Rows that say nothing</h2>\n<p>{rule}</p>\n<p>{texts}</p>\n",
                rule=silent.rule,
                texts=texts,
            )
        )
    return joined(pieces)


def _language(result: ThemesResult) -> Markup:
    """The attribute of quotes where nearly all are in one language."""
    languages = result.input.languages
    known = sum(count for code, count in languages.items() if code != "und")
    for code, count in languages.items():
        if code != "und" and count > _MOSTLY * known:
            return markup(' lang="{code}"', code=code)
    return _NOTHING
