"""Stage 11, check and package: the result as `themes/1`, and proof that it is sound."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.domain.errors import HaulageError
from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.choosing import STANCES
from app.pipelines.thematic.codebook import suggested_names
from app.pipelines.thematic.counting import Tables, tables, theme_id
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import MODELS
from app.pipelines.thematic.facts import input_facts, non_answers
from app.pipelines.thematic.insights import Sentence
from app.pipelines.thematic.judging import labelled, metrics, mode_run, share, usage, warnings
from app.pipelines.thematic.outcomes import Outcomes
from app.pipelines.thematic.parameters import Request
from app.pipelines.thematic.quotes import Slice, subtheme_of_row
from app.results.themes import (
    SCHEMA,
    Assignment,
    CreatedBy,
    Embedding,
    Evidence,
    Failed,
    GroupCount,
    Insight,
    Other,
    Quote,
    StanceCounts,
    StartedFrom,
    Suggestion,
    Theme,
    ThemesResult,
)
from app.results.verifying import unexplained_figures, verify


class ResultCheckError(HaulageError):
    """A finished result contradicts its own input; a fault of this program, never of the answers.

    Attributes:
        problems: what `verify` found.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__(f"the result failed its check: {'; '.join(problems[:5])}")
        self.problems = problems


def package(request: Request, version: str, made: Outcomes) -> dict[str, Any]:
    """Put the stages' outcomes together, verify the whole and give it as JSON.

    Raises:
        ResultCheckError: a count, share, quote or figure does not hold.
    """
    answers, prepared = made.answers, made.prepared
    counted = tables(
        answers, prepared, made.assignments.of, len(made.labels.names), made.stances.of
    )
    given = dict(zip(answers.ids, answers.texts, strict=True))
    shown = counted.shown(with_empty=bool(request.parameters.codebook))
    themes = _Themes(request, made, given, counted, shown).themes()
    facts = input_facts(answers, prepared, counted.silent, made.embedded.too_long)
    result = ThemesResult(
        schema=SCHEMA,
        question=answers.questions[0] if len(answers.questions) == 1 else None,
        created_by=CreatedBy(
            pipeline="thematic",
            version=version,
            mode=mode_run(request, made),
            seed=request.parameters.seed,
            params_hash=request.params_hash,
            started_from=_started_from(request),
        ),
        labelling=labelled(request, made, shown),
        embedding=Embedding(
            backend=made.embedded.backend,
            model=MODELS.get(made.embedded.backend)
            or request.parameters.embedding_model
            or made.embedded.backend,
        ),
        input=facts,
        themes=themes,
        other=_other(made, given, counted),
        failed=_failed(counted),
        non_answers=non_answers(prepared, counted.silent),
        insights=[_insight(sentence, themes) for sentence in made.sentences.insights],
        metrics=metrics(made, counted, shown),
        usage=usage(made.costs, made.expected),
        warnings=warnings(request, made, counted, facts.languages),
        assignments=_assignments(request, made, counted),
    )
    groups = {
        column: dict(zip(answers.ids, labels, strict=True))
        for column, labels in answers.groups.items()
    }
    problems = verify(result, given, groups)
    if problems:
        raise ResultCheckError(problems)
    return result.model_dump(mode="json")


def _started_from(request: Request) -> StartedFrom | None:
    start = request.start_from
    return StartedFrom(job=start.job, stage=start.stage) if start is not None else None


def _other(made: Outcomes, given: Mapping[str, str], counted: Tables) -> Other:
    homes = Counter(
        home
        for home, each in zip(counted.home, counted.of_row, strict=True)
        if each is not None and each.status == "other"
    )
    groups = made.assignments.suggested
    named = suggested_names(made.prepared, made.people, groups) if groups else []
    return Other(
        responses=counted.others,
        share=share(counted.others, counted.analysed),
        sample=_quotes(made.chosen.other, given),
        suggested=[
            Suggestion(
                name=name,
                keywords=keywords,
                responses=sum(homes[text] for text in texts),
                quotes=_quotes(quotes, given),
            )
            for (name, keywords), texts, quotes in zip(
                named, groups, made.chosen.suggested, strict=True
            )
        ],
    )


def _failed(counted: Tables) -> Failed:
    reasons = Counter(
        each.reason or "" for each in counted.of_row if each is not None and each.status == "failed"
    )
    return Failed(
        responses=counted.failed,
        share=share(counted.failed, counted.analysed),
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def _quotes(slices: Iterable[Slice], given: Mapping[str, str]) -> list[Quote]:
    return [
        Quote(**slice_, verified=_is_verbatim(slice_, given[slice_["response_id"]]))
        for slice_ in slices
    ]


def _is_verbatim(slice_: Slice, answer: str) -> bool:
    return answer[slice_["start"] : slice_["end"]] == slice_["text"]


def _insight(sentence: Sentence, themes: Sequence[Theme]) -> Insight:
    names = [theme.name for theme in themes if theme.id in sentence["theme_ids"]]
    strange = unexplained_figures(sentence["text"], sentence["numbers"], names)
    return Insight(
        text=sentence["text"],
        source="llm" if sentence["source"] == "llm" else "template",
        theme_ids=sentence["theme_ids"],
        evidence=[Evidence(response_id=response_id) for response_id in sentence["evidence"]],
        numbers=sentence["numbers"],
        numbers_checked=not strange,
    )


def _subtheme_ids(found: Discovered) -> list[str]:
    """As "T01.2" for the second sub-theme of the first theme."""
    within: Counter[int] = Counter()
    ids = []
    for parent in found.parent_of:
        within[parent] += 1
        ids.append(f"{theme_id(parent)}.{within[parent]}")
    return ids


def _assignments(request: Request, made: Outcomes, counted: Tables) -> list[Assignment]:
    subtheme_ids = _subtheme_ids(made.found)
    subthemes = subtheme_of_row(counted, made.found)
    rows = zip(made.answers.ids, counted.of_row, subthemes, strict=True)
    return [
        _assignment(response_id, each, subtheme_ids[sub] if sub >= 0 else None, request)
        for response_id, each, sub in rows
    ]


def _assignment(
    response_id: str, each: Assigned | None, subtheme_id: str | None, request: Request
) -> Assignment:
    if each is None:
        each = Assigned("non_answer", [], None, None)
    stance = None
    if request.parameters.stance and each.stance:
        told = zip(map(theme_id, each.themes), each.stance, strict=True)
        stance = {theme: said for theme, said in told if said} or None
    return Assignment.model_validate(
        {
            "response_id": response_id,
            "status": each.status,
            "theme_ids": [theme_id(theme) for theme in each.themes],
            "subtheme_id": subtheme_id,
            "score": each.score,
            "method": each.method,
            "stance": stance,
            "reason": each.reason,
        }
    )


class _Themes:
    """Builds the themes' entries: each theme, and after it its sub-themes."""

    def __init__(
        self,
        request: Request,
        made: Outcomes,
        given: Mapping[str, str],
        counted: Tables,
        shown: Sequence[int],
    ) -> None:
        self._request = request
        self._made = made
        self._given = given
        self._shown = shown
        self._counted = counted
        self._subtheme_ids = _subtheme_ids(made.found)
        self._theme_rows: dict[int, list[int]] = defaultdict(list)
        self._subtheme_rows: dict[int, list[int]] = defaultdict(list)
        for row, each in enumerate(counted.of_row):
            for theme in each.themes if each is not None else ():
                self._theme_rows[theme].append(row)
        for row, subtheme in enumerate(subtheme_of_row(counted, made.found)):
            self._subtheme_rows[subtheme].append(row)
        self._group_sizes = {
            column: Counter(
                group for group, silent in zip(groups, counted.silent, strict=True) if not silent
            )
            for column, groups in made.answers.groups.items()
        }

    def themes(self) -> list[Theme]:
        """The largest theme first, sub-themes after their own."""
        found = self._made.found
        themes = []
        for number in self._shown:
            themes.append(self._theme(number))
            themes += [
                self._subtheme(sub)
                for sub, parent in enumerate(found.parent_of)
                if parent == number
            ]
        return themes

    def _theme(self, number: int) -> Theme:
        labels, found = self._made.labels, self._made.found
        return self._entry(
            {
                "id": theme_id(number),
                "parent": None,
                "name": labels.names[number],
                "name_source": labels.sources[number],
                "description": labels.descriptions[number],
                "keywords": labels.keywords[number],
                "merged_from": self._made.reviewed.merged_from[number],
                "cohesion": found.cohesion[number] if self._theme_rows[number] else None,
                "separation": found.separation[number] if found.separation else None,
                "quotes": _quotes(self._made.chosen.themes[number], self._given),
            },
            self._theme_rows[number],
            number,
        )

    def _subtheme(self, number: int) -> Theme:
        labels, found = self._made.labels, self._made.found
        return self._entry(
            {
                "id": self._subtheme_ids[number],
                "parent": theme_id(found.parent_of[number]),
                "name": labels.subnames[number],
                "name_source": labels.subsources[number],
                "description": labels.subdescriptions[number],
                "keywords": labels.subkeywords[number],
                "merged_from": [],
                "cohesion": found.subcohesion[number] if self._subtheme_rows[number] else None,
                "separation": None,
                "quotes": _quotes(self._made.chosen.subthemes[number], self._given),
            },
            self._subtheme_rows[number],
            found.parent_of[number],
        )

    def _entry(self, described: dict[str, Any], rows: list[int], theme: int) -> Theme:
        wordings = self._made.prepared.wording_of
        return Theme.model_validate(
            {
                **described,
                "responses": len(rows),
                "share": share(len(rows), self._counted.analysed),
                "unique_texts": len({wordings[row] for row in rows}),
                "by_group": self._by_group(rows),
                "stance": self._stance(rows, theme),
            }
        )

    def _stance(self, rows: list[int], theme: int) -> StanceCounts | None:
        if not self._request.parameters.stance or self._request.parameters.llm is None:
            return None
        told: Counter[str] = Counter()
        for row in rows:
            each = self._counted.of_row[row]
            if each is not None and each.stance:
                told[each.stance[each.themes.index(theme)]] += 1
        return StanceCounts(**{stance: told[stance] for stance in STANCES})

    def _by_group(self, rows: list[int]) -> dict[str, dict[str, GroupCount]]:
        by_group = {}
        for column, groups in self._made.answers.groups.items():
            counts = Counter(groups[row] for row in rows)
            sizes = self._group_sizes[column]
            by_group[column] = {
                group: GroupCount(responses=counts[group], share=share(counts[group], size))
                for group, size in sorted(sizes.items())
            }
        return by_group
