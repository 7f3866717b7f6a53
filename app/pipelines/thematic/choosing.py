"""The closed question of the assignment: which of these themes does each answer speak of.

Every answer stands under a key of its own, and the form of the answer holds the names of the themes
and nothing else, so that a model can neither lose an answer nor invent a theme.
"""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, create_model

from app.pipelines.thematic.asker import Asks
from app.pipelines.thematic.codes import NOT_THEMES, is_no_theme
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.prompts import (
    Survey,
    bounded,
    items,
    keyed,
    messages,
    one_of,
    shown,
)

MOST_THEMES: Final = 4
STANCES: Final = ("positive", "negative", "mixed", "neutral")
OTHER, NON_ANSWER = NOT_THEMES

_TASK: Final = (
    "For every answer under `answers` list the names of the themes that it speaks of, from the "
    f"list under `themes`: the most important first, at most {MOST_THEMES}. List {OTHER!r} alone "
    f"where it speaks of none of them, and {NON_ANSWER!r} alone where it says nothing at all. "
    "Judge each answer by itself, under its own key."
)
_STANCE_TASK: Final = (
    " Say of each theme how the answer stands to it: positive (praise, agreement), negative "
    "(complaint, disagreement), mixed, or neutral."
)


class Question:
    """The closed question: which of these themes.

    Raises:
        ValueError: a theme is called as answers without a theme are, which would be its.
    """

    def __init__(self, labels: Labels, survey: Survey) -> None:
        self._survey = survey
        self.names = labels.names
        self._themes = [
            {"name": name, "description": description or ", ".join(keywords[:5])}
            for name, description, keywords in zip(
                labels.names, labels.descriptions, labels.keywords, strict=True
            )
        ]
        if strange := list(filter(is_no_theme, labels.names)):
            raise ValueError(f"a theme is called {strange[0]!r}")
        self._number = {name: number for number, name in enumerate(labels.names)}
        self.with_stance = False
        self._forms: dict[int, type[BaseModel]] = {}

    async def ask(
        self, asks: Asks, texts: Sequence[str]
    ) -> list[tuple[list[int | str], list[str]]]:
        """Themes (or OTHER, or NON_ANSWER) and stances of each text, each checked."""
        keys = [str(at) for at in range(1, len(texts) + 1)]
        answer = await asks.ask(
            "assign",
            messages(
                _TASK + (_STANCE_TASK if self.with_stance else ""),
                **self._survey.facts(),
                themes=self._themes,
                answers=dict(zip(keys, map(shown, texts), strict=True)),
            ),
            self._form(keys),
            self._check,
        )
        return [self._read(item) for item in items(answer).values()]

    def _form(self, keys: Sequence[str]) -> type[BaseModel]:
        """Made once per size of batch: a class that pydantic has made stays in memory."""
        if len(keys) not in self._forms:
            self._forms[len(keys)] = keyed("Assignments", self._item(), keys)
        return self._forms[len(keys)]

    def _item(self) -> Any:
        names: Any = one_of([*self._number, *NOT_THEMES])
        strict = ConfigDict(extra="forbid")
        each: Any = names
        if self.with_stance:
            stance: Any = one_of(STANCES)
            each = create_model("Told", __config__=strict, theme=(names, ...), stance=(stance, ...))
        themes = (list[each], bounded(items=MOST_THEMES))
        return create_model("Judged", __config__=strict, themes=themes)

    def _told(self, item: Any) -> dict[str, str]:
        """Theme -> stance, "" where it was not asked for; each theme once."""
        if self.with_stance:
            return {each.theme: each.stance for each in reversed(item.themes)}
        return dict.fromkeys(item.themes, "")

    def _check(self, answer: BaseModel) -> list[str]:
        problems = []
        for key, item in items(answer).items():
            told = self._told(item)
            if not told:
                problems.append(f"{key}: list at least one theme, {OTHER!r} or {NON_ANSWER!r}")
            if len(told) > MOST_THEMES:
                problems.append(f"{key}: list at most {MOST_THEMES} themes")
            if len(told) > 1 and not set(NOT_THEMES).isdisjoint(told):
                problems.append(f"{key}: {OTHER!r} and {NON_ANSWER!r} stand alone")
        return problems

    def _read(self, item: Any) -> tuple[list[int | str], list[str]]:
        told = self._told(item)
        order = [each.theme for each in item.themes] if self.with_stance else item.themes
        names = list(dict.fromkeys(order))
        themes: list[int | str] = [self._number.get(name, name) for name in names]
        stance = [told[name] for name in names if name in self._number] if self.with_stance else []
        return themes, stance
