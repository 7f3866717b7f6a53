"""A result as tables: those of an analysis, or of any list of flat objects."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from app.domain.errors import ExportError
from app.results.exports.texts import Texts
from app.results.themes import Theme, ThemesResult

Cell = str | int | float | bool | None

STANCES: Final = ("positive", "negative", "mixed", "neutral")
MAX_COLUMNS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under column names."""

    name: str
    columns: Sequence[str]
    rows: Iterable[Sequence[Cell]]


def analysis_table(result: ThemesResult, part: str, texts: Texts = MappingProxyType({})) -> Table:
    """One of the tables of an analysis, by its name in `PARTS`.

    Args:
        texts: of the answers, as far as they are known.
    """
    return _responses(result, texts) if part == "responses" else _TABLES[part](result)


def flat_table(result: Any) -> Table:
    """A list of objects as a table, if each of their values fits into a cell; ExportError."""
    if not isinstance(result, list) or not all(isinstance(item, dict) for item in result):
        raise ExportError("only an analysis or a list of flat objects can be made a table")
    columns = list(dict.fromkeys(name for item in result for name in item))
    if len(columns) > MAX_COLUMNS:
        raise ExportError(f"the objects have more than {MAX_COLUMNS} different keys")
    for number, item in enumerate(result):
        for name, value in item.items():
            if isinstance(value, dict | list):
                raise ExportError(f"/{number}: {name!r} holds a list or an object, no cell")
    return Table("rows", columns, ([item.get(name) for name in columns] for item in result))


def theme_names(result: ThemesResult) -> dict[str, str]:
    """Id of each theme and sub-theme -> its name."""
    return {theme.id: theme.name for theme in result.themes}


def _themes(result: ThemesResult) -> Table:
    groups = _groups(result)
    columns = ["id", "parent", "name", "name_source", "description", "keywords", "responses"]
    columns += ["share", "unique_texts", *STANCES, "cohesion", "separation", "merged_from"]
    columns += [f"{column}: {group}" for column, group in groups]

    def rows() -> Iterator[list[Cell]]:
        for theme in result.themes:
            stance = theme.stance
            yield [
                theme.id,
                theme.parent,
                theme.name,
                theme.name_source,
                theme.description,
                ", ".join(theme.keywords),
                theme.responses,
                theme.share,
                theme.unique_texts,
                *(None if stance is None else getattr(stance, name) for name in STANCES),
                theme.cohesion,
                theme.separation,
                "; ".join(theme.merged_from),
                *(_count(theme, column, group) for column, group in groups),
            ]

    return Table("themes", columns, rows())


def _groups(result: ThemesResult) -> list[tuple[str, str]]:
    """Each group of each column that themes were counted by."""
    found = {
        (column, group): None
        for theme in result.themes
        for column, counts in theme.by_group.items()
        for group in counts
    }
    return list(found)


def _count(theme: Theme, column: str, group: str) -> int:
    counted = theme.by_group.get(column, {}).get(group)
    return 0 if counted is None else counted.responses


def _quotes(result: ThemesResult) -> Table:
    def rows() -> Iterator[list[Cell]]:
        for theme in result.themes:
            for quote in theme.quotes:
                yield [theme.id, theme.name, quote.response_id, quote.text]

    return Table("quotes", ["theme_id", "theme", "response_id", "quote"], rows())


def _responses(result: ThemesResult, texts: Texts) -> Table:
    names = theme_names(result)
    columns = [
        "response_id",
        *(["text"] if texts else []),
        "status",
        "theme_ids",
        "themes",
        "subtheme_id",
        "subtheme",
    ]
    columns += ["score", "method", "stance", "reason"]

    def rows() -> Iterator[list[Cell]]:
        for entry in result.assignments:
            sub = entry.subtheme_id
            stance = entry.stance or {}
            yield [
                entry.response_id,
                *([texts.get(entry.response_id)] if texts else []),
                entry.status,
                "; ".join(entry.theme_ids),
                "; ".join(names.get(theme, theme) for theme in entry.theme_ids),
                sub,
                None if sub is None else names.get(sub, sub),
                entry.score,
                entry.method,
                "; ".join(f"{theme}: {said}" for theme, said in sorted(stance.items())) or None,
                entry.reason,
            ]

    return Table("responses", columns, rows())


def _insights(result: ThemesResult) -> Table:
    names = theme_names(result)

    def rows() -> Iterator[list[Cell]]:
        for insight in result.insights:
            yield [
                insight.text,
                insight.source,
                "; ".join(names.get(theme, theme) for theme in insight.theme_ids),
                "; ".join(evidence.response_id for evidence in insight.evidence),
            ]

    return Table("insights", ["insight", "source", "themes", "response_ids"], rows())


_TABLES: Final[Mapping[str, Callable[[ThemesResult], Table]]] = MappingProxyType(
    {"themes": _themes, "quotes": _quotes, "insights": _insights}
)
