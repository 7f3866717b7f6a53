"""Stage 8, check and package: the result as `themes/1`, its metrics, and proof that it is sound."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.domain.errors import HaulageError
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import MODELS, Embedded
from app.pipelines.thematic.facts import foreign_share, input_facts, non_answers, silent_rows
from app.pipelines.thematic.insights import Insights, Sentence, Tables, tables, theme_id
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.parameters import Request
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.quotes import Quotes, Slice
from app.pipelines.thematic.words import tokens
from app.results.themes import (
    SCHEMA,
    Assignment,
    CreatedBy,
    Embedding,
    Evidence,
    Failed,
    GroupCount,
    Insight,
    Labelling,
    Metrics,
    Other,
    Quote,
    Theme,
    ThemesResult,
    Usage,
    Warn,
)
from app.results.verifying import unexplained_figures, verify

FOREIGN_SHARE: Final = 0.2
REDUNDANT: Final = 0.85
OTHER_SHARE: Final = 0.2


class ResultCheckError(HaulageError):
    """A finished result contradicts its own input; a fault of this program, never of the answers.

    Attributes:
        problems: what `verify` found.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__(f"the result failed its check: {'; '.join(problems[:5])}")
        self.problems = problems


def package(
    request: Request,
    version: str,
    *,
    answers: Answers,
    prepared: Prepared,
    embedded: Embedded,
    found: Discovered,
    labels: Labels,
    chosen: Quotes,
    sentences: Insights,
) -> dict[str, Any]:
    """Put the stages' outcomes together, verify the whole and give it as JSON.

    Raises:
        ResultCheckError: a count, share, quote or figure does not hold.
    """
    counted = tables(prepared, found)
    subtheme_ids = _subtheme_ids(found)
    given = dict(zip(answers.ids, answers.texts, strict=True))
    builder = _Themes(answers, given, prepared, found, counted, subtheme_ids)
    themes = builder.themes(labels, chosen)
    silent = silent_rows(prepared)
    facts = input_facts(answers, prepared, silent, embedded.too_long)
    result = ThemesResult(
        schema=SCHEMA,
        question=answers.questions[0] if len(answers.questions) == 1 else None,
        created_by=CreatedBy(
            pipeline="thematic",
            version=version,
            mode="keywords",
            seed=request.parameters.seed,
            params_hash=request.params_hash,
            started_from=None,
        ),
        labelling=_labelling(request.parameters.mode),
        embedding=Embedding(backend=embedded.backend, model=MODELS[embedded.backend]),
        input=facts,
        themes=themes,
        other=Other(
            responses=counted.others,
            share=_share(counted.others, counted.analysed),
            sample=_quotes(chosen.other, given),
            suggested=[],
        ),
        failed=Failed(responses=0, share=0.0, reasons={}),
        non_answers=non_answers(prepared, silent),
        insights=[_insight(sentence, themes) for sentence in sentences.insights],
        metrics=_metrics(counted, found, labels, prepared),
        usage=_usage(),
        warnings=_warnings(request, facts.languages, embedded, found, counted),
        assignments=_assignments(answers, prepared, found, subtheme_ids),
    )
    problems = verify(result, given)
    if problems:
        raise ResultCheckError(problems)
    return result.model_dump(mode="json")


def _usage() -> Usage:
    """What a run without an LLM cost; the pipeline adds the seconds."""
    return Usage(
        llm_calls=0,
        cached_calls=0,
        prompt_tokens=0,
        completion_tokens=0,
        retries=0,
        cost=0.0,
        by_stage={},
        seconds_by_stage={},
        estimate=None,
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
        source="template",
        theme_ids=sentence["theme_ids"],
        evidence=[Evidence(response_id=response_id) for response_id in sentence["evidence"]],
        numbers=sentence["numbers"],
        numbers_checked=not strange,
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _labelling(mode: str) -> Labelling:
    wished = mode == "auto"
    reason = "no LLM configured" if wished else "names by keywords were asked for"
    return Labelling(method="keywords", model=None, degraded=wished, reasons=[reason])


def _subtheme_ids(found: Discovered) -> list[str]:
    """As "T01.2" for the second sub-theme of the first theme."""
    within: Counter[int] = Counter()
    ids = []
    for parent in found.parent_of:
        within[parent] += 1
        ids.append(f"{theme_id(parent)}.{within[parent]}")
    return ids


def _assignments(
    answers: Answers, prepared: Prepared, found: Discovered, subtheme_ids: list[str]
) -> list[Assignment]:
    assigned = []
    for response_id, text in zip(answers.ids, prepared.text_of, strict=True):
        theme = found.theme_of[text] if text >= 0 else -1
        subtheme = found.subtheme_of[text] if text >= 0 else -1
        assigned.append(
            Assignment(
                response_id=response_id,
                status="non_answer" if text < 0 else "other" if theme < 0 else "assigned",
                theme_ids=[theme_id(theme)] if theme >= 0 else [],
                subtheme_id=subtheme_ids[subtheme] if subtheme >= 0 else None,
                score=found.score[text] if theme >= 0 else None,
                method=None if text < 0 else "cluster",
                stance=None,
                reason=None,
            )
        )
    return assigned


class _Themes:
    """Builds the themes' entries: each theme, and after it its sub-themes."""

    def __init__(
        self,
        answers: Answers,
        given: Mapping[str, str],
        prepared: Prepared,
        found: Discovered,
        counted: Tables,
        subtheme_ids: list[str],
    ) -> None:
        self._answers = answers
        self._given = given
        self._found = found
        self._analysed = counted.analysed
        self._subtheme_ids = subtheme_ids
        self._theme_rows: dict[int, list[int]] = defaultdict(list)
        self._subtheme_rows: dict[int, list[int]] = defaultdict(list)
        for row, text in enumerate(prepared.text_of):
            if text >= 0:
                self._theme_rows[found.theme_of[text]].append(row)
                self._subtheme_rows[found.subtheme_of[text]].append(row)
        self._wording_of = prepared.wording_of
        analysed = [row for row, text in enumerate(prepared.text_of) if text >= 0]
        self._group_sizes = {
            column: Counter(groups[row] for row in analysed)
            for column, groups in answers.groups.items()
        }

    def themes(self, labels: Labels, chosen: Quotes) -> list[Theme]:
        found = self._found
        themes = []
        for number, cohesion in enumerate(found.cohesion):
            top = theme_id(number)
            name, keywords = labels.names[number], labels.keywords[number]
            rows, quotes = self._theme_rows[number], chosen.themes[number]
            separation = found.separation[number] if found.separation else None
            themes.append(
                self._entry(top, None, name, keywords, rows, quotes, cohesion, separation)
            )
            for sub in (sub for sub, parent in enumerate(found.parent_of) if parent == number):
                name, keywords = labels.subnames[sub], labels.subkeywords[sub]
                rows, quotes = self._subtheme_rows[sub], chosen.subthemes[sub]
                subcohesion, identity = found.subcohesion[sub], self._subtheme_ids[sub]
                themes.append(
                    self._entry(identity, top, name, keywords, rows, quotes, subcohesion, None)
                )
        return themes

    def _entry(
        self,
        identity: str,
        parent: str | None,
        name: str,
        keywords: list[str],
        rows: list[int],
        quotes: list[Slice],
        cohesion: float,
        separation: float | None,
    ) -> Theme:
        return Theme(
            id=identity,
            parent=parent,
            name=name,
            name_source="keywords",
            description=None,
            keywords=keywords,
            responses=len(rows),
            share=_share(len(rows), self._analysed),
            unique_texts=len({self._wording_of[row] for row in rows}),
            by_group=self._by_group(rows),
            stance=None,
            merged_from=[],
            cohesion=cohesion,
            separation=separation,
            stability=None,
            quotes=_quotes(quotes, self._given),
        )

    def _by_group(self, rows: list[int]) -> dict[str, dict[str, GroupCount]]:
        by_group = {}
        for column, groups in self._answers.groups.items():
            counts = Counter(groups[row] for row in rows)
            sizes = self._group_sizes[column]
            by_group[column] = {
                group: GroupCount(responses=counts[group], share=_share(counts[group], size))
                for group, size in sorted(sizes.items())
            }
        return by_group


def _metrics(counted: Tables, found: Discovered, labels: Labels, prepared: Prepared) -> Metrics:
    """Figures that judge the themes without a gold standard; None where there is too little."""
    other_share = _share(counted.others, counted.analysed)
    shares = [responses / counted.analysed for responses in counted.responses]
    listed = [keyword for keywords in labels.keywords for keyword in keywords]
    return Metrics(
        coverage=_share(counted.analysed - counted.others, counted.analysed),
        other_share=other_share,
        failed_responses=0.0,
        stability=found.stability,
        redundancy=found.redundancy,
        separation=_weighted_mean(found.separation, counted.responses),
        diversity=round(len(set(listed)) / len(listed), 4) if listed else None,
        coherence_npmi=_coherence(prepared.texts, labels.keywords),
        size_entropy=_entropy(shares),
        name_specificity=None,
        quote_support=1.0,
        label_validity=None,
        label_validity_first=None,
        agreement=None,
    )


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    if not values:
        return None
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return round(total / sum(weights), 4)


def _entropy(shares: Sequence[float]) -> float | None:
    """Evenness of the themes' sizes: 1 for equal ones, near 0 where one holds nearly all."""
    if len(shares) < 2:  # noqa: PLR2004 - one theme has no evenness
        return None
    total = sum(shares)
    parts = [share / total for share in shares]
    return round(-sum(part * math.log(part) for part in parts) / math.log(len(parts)), 4)


def _coherence(texts: list[str], keywords: list[list[str]]) -> float | None:
    """Mean normalised pointwise mutual information of keywords' words (Bouma 2009).

    Between -1 and 1; words of one theme that never share a text count as -1.
    """
    wanted = {word for listed in keywords for keyword in listed for word in keyword.split()}
    where: dict[str, set[int]] = defaultdict(set)
    for number, text in enumerate(texts):
        for word in wanted.intersection(tokens(text)):
            where[word].add(number)
    values = []
    for listed in keywords:
        words = sorted({word for keyword in listed for word in keyword.split()} & where.keys())
        for first, second in itertools.combinations(words, 2):
            both = len(where[first] & where[second])
            values.append(_npmi(both, len(where[first]), len(where[second]), len(texts)))
    return round(sum(values) / len(values), 4) if values else None


def _npmi(both: int, first: int, second: int, texts: int) -> float:
    if both == 0:
        return -1.0
    if both == texts:
        return 1.0
    return math.log(both * texts / (first * second)) / -math.log(both / texts)


def _warnings(
    request: Request,
    languages: Mapping[str, int],
    embedded: Embedded,
    found: Discovered,
    counted: Tables,
) -> list[Warn]:
    warnings = []

    def warn(code: str, text: str) -> None:
        warnings.append(Warn(code=code, text=text))

    if embedded.missing:
        missing = ", ".join(embedded.missing)
        warn(
            "fallback_embedding",
            f"Themes rest on shared words only, since {missing} is missing; "
            "install haulage[thematic] for the embedding model.",
        )
    if embedded.too_long:
        warn("too_long", f"Of {embedded.too_long} texts only the first 256 tokens were read.")
    foreign = foreign_share(languages, embedded.backend)
    if foreign > FOREIGN_SHARE:
        warn(
            "not_english",
            f"{100 * foreign:.0f} % of the answers whose language can be told are not "
            "in English; model and stop words are for English.",
        )
    if len(found.cohesion) <= 1 and request.parameters.max_themes > 1:
        warn("too_few_answers", "There were too few different answers to tell themes apart.")
    if found.redundancy is not None and found.redundancy > REDUNDANT:
        warn("redundant_themes", "Two themes are nearly alike; a lower max_themes would join them.")
    if _share(counted.others, counted.analysed) > OTHER_SHARE:
        warn("large_other", "Many answers are in no theme; a lower min_theme_size would show more.")
    return warnings
