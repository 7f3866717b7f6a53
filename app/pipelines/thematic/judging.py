"""How far a result is to be trusted: its metrics, warnings, who named it, what it cost."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from app.pipelines.llm.budget import Cost as Foreseen
from app.pipelines.thematic.counting import Tables
from app.pipelines.thematic.facts import foreign_share
from app.pipelines.thematic.milestones import Cost
from app.pipelines.thematic.name import is_stock
from app.pipelines.thematic.outcomes import Outcomes
from app.pipelines.thematic.parameters import Request
from app.pipelines.thematic.words import tokens
from app.results.themes import Estimate, Labelling, Metrics, StageUsage, Usage, Warn

FOREIGN_SHARE: Final = 0.2
REDUNDANT: Final = 0.85
OTHER_SHARE: Final = 0.2
LOW_AGREEMENT: Final = 0.3


def share(part: int, whole: int) -> float:
    """A fraction as results have it; 0 of nothing."""
    return round(part / whole, 4) if whole else 0.0


def mode_run(request: Request, made: Outcomes) -> Literal["keywords", "name", "full"]:
    """What was done, whatever was asked for."""
    has_asked = any(cost.asked for cost in made.costs.values())
    if request.parameters.llm is None or not has_asked:
        return "keywords"
    return "full" if request.parameters.mode == "full" else "name"


def labelled(request: Request, made: Outcomes, shown: Sequence[int]) -> Labelling:
    """Who named the themes that are `shown`, and why it was not somebody better."""
    parameters, labels = request.parameters, made.labels
    # Where no answer could be judged, all names are told of that there were.
    shown = shown or range(len(labels.names))
    of_themes = [labels.sources[theme] for theme in shown]
    of_subthemes = [
        source
        for source, parent in zip(labels.subsources, made.found.parent_of, strict=True)
        if parent in shown
    ]
    given = [*of_themes, *of_subthemes]
    # Without a theme there is none that a model could have named.
    sources = set(given) or {"keywords"}
    method = sources.pop() if len(sources) == 1 else "mixed"
    reasons = []
    if method == "codebook":
        reasons.append("the names are those of the given codebook")
    elif parameters.mode == "keywords":
        reasons.append("names by keywords were asked for")
    elif parameters.llm is None:
        reasons.append("no LLM configured")
    if made.lost is not None:
        reasons.append(made.lost)
    if parameters.llm is not None and labels.lost is None:
        for kind, of in (("theme", of_themes), ("sub-theme", of_subthemes)):
            if by_keywords := of.count("keywords"):
                them = kind if by_keywords == 1 else f"{kind}s"
                reasons.append(f"the LLM had no usable name for {by_keywords} {them}")
    wished = parameters.mode != "keywords" and not parameters.codebook
    has_asked = any(cost.asked for cost in made.costs.values())
    asked = parameters.llm.model if parameters.llm is not None and has_asked else None
    return Labelling.model_validate(
        {
            "method": method,
            "model": (labels.model if "llm" in given else None) or asked,
            "degraded": made.lost is not None or (wished and "keywords" in given),
            "reasons": reasons,
        }
    )


def usage(costs: Mapping[str, Cost], expected: Foreseen | None) -> Usage:
    """What the model cost; the pipeline adds the seconds."""
    by_stage = {
        stage: StageUsage(
            llm_calls=cost.llm_calls,
            cached_calls=cost.cached_calls,
            prompt_tokens=cost.prompt_tokens,
            completion_tokens=cost.completion_tokens,
            retries=cost.retries,
            cost=cost.cost,
        )
        for stage, cost in costs.items()
        if cost.llm_calls or cost.cached_calls
    }
    return Usage(
        llm_calls=sum(stage.llm_calls for stage in by_stage.values()),
        cached_calls=sum(stage.cached_calls for stage in by_stage.values()),
        prompt_tokens=sum(stage.prompt_tokens for stage in by_stage.values()),
        completion_tokens=sum(stage.completion_tokens for stage in by_stage.values()),
        retries=sum(stage.retries for stage in by_stage.values()),
        cost=sum(stage.cost for stage in by_stage.values()),
        by_stage=by_stage,
        seconds_by_stage={},
        estimate=None
        if expected is None
        else Estimate(
            calls=expected.calls,
            prompt_tokens=expected.prompt_tokens,
            completion_tokens=expected.completion_tokens,
            cost=expected.cost,
        ),
    )


def metrics(made: Outcomes, counted: Tables, shown: Sequence[int]) -> Metrics:
    """Figures that judge the themes without a gold standard; None where there is too little.

    Args:
        shown: the themes that the result shows.
    """
    found, labels = made.found, made.labels
    sizes = [counted.responses[theme] for theme in shown]
    keywords = [labels.keywords[theme] for theme in shown]
    listed = [keyword for each in keywords for keyword in each]
    asked = sum(cost.asked for cost in made.costs.values())
    vague = {theme for theme in shown if is_stock(labels.names[theme])}
    vague.update(theme for theme in made.reviewed.vague if theme in shown)
    return Metrics(
        coverage=share(counted.analysed - counted.others - counted.failed, counted.analysed),
        other_share=share(counted.others, counted.analysed),
        failed_responses=share(counted.failed, counted.analysed),
        stability=found.stability,
        redundancy=found.redundancy,
        separation=_weighted_mean(found.separation, counted.responses),
        diversity=round(len(set(listed)) / len(listed), 4) if listed else None,
        coherence_npmi=_coherence(made.prepared.texts, keywords),
        size_entropy=_entropy(sizes),
        name_specificity=share(len(shown) - len(vague), len(shown)) if shown else None,
        quote_support=1.0,
        label_validity=_valid(asked, sum(cost.failed for cost in made.costs.values())),
        label_validity_first=_valid(asked, sum(cost.rejected for cost in made.costs.values())),
        agreement=agreement(made, counted),
        double_coded=made.assignments.doubled,
        double_coding_agreement=share(made.assignments.doubled_same, made.assignments.doubled)
        if made.assignments.doubled
        else None,
    )


def _valid(asked: int, wrong: int) -> float | None:
    return round(1.0 - wrong / asked, 4) if asked else None


def agreement(made: Outcomes, counted: Tables) -> float | None:
    """The share of clustered answers that the model puts first where their cluster is.

    An answer that it finds no theme for, or no answer, is one that it does not put there.
    """
    told = [
        each.themes[:1] == [made.found.theme_of[home]]
        for each, home in zip(counted.of_row, counted.home, strict=True)
        if each is not None
        and each.method == "llm"
        and each.status != "failed"
        and made.found.theme_of[home] >= 0
    ]
    return round(sum(told) / len(told), 4) if told else None


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float | None:
    if not values or not any(weights):
        return None
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return round(total / sum(weights), 4)


def _entropy(sizes: Sequence[int]) -> float | None:
    """Evenness of the themes' sizes: 1 for equal ones, near 0 where one holds nearly all."""
    if sum(map(bool, sizes)) < 2:  # noqa: PLR2004 - one theme has no evenness
        return None
    parts = [size / sum(sizes) for size in sizes if size]
    return round(-sum(part * math.log(part) for part in parts) / math.log(len(sizes)), 4)


def _coherence(texts: list[str], keywords: list[list[str]]) -> float | None:
    """Mean normalised pointwise mutual information of words of different keywords (Bouma 2009).

    Between -1 and 1; words of one theme that never share a text count as -1. The words of one
    keyword are a pair for standing together, and would lift it.
    """
    wanted = {word for listed in keywords for keyword in listed for word in keyword.split()}
    where: dict[str, set[int]] = defaultdict(set)
    for number, text in enumerate(texts):
        for word in wanted.intersection(tokens(text)):
            where[word].add(number)
    values = []
    for listed in keywords:
        said = [set(keyword.split()) & where.keys() for keyword in listed]
        words = sorted(set[str]().union(*said))
        for first, second in itertools.combinations(words, 2):
            if not any({first, second} <= keyword for keyword in said):
                both = len(where[first] & where[second])
                values.append(_npmi(both, len(where[first]), len(where[second]), len(texts)))
    return round(sum(values) / len(values), 4) if values else None


def _npmi(both: int, first: int, second: int, texts: int) -> float:
    if both == 0:
        return -1.0
    if both == texts:
        return 1.0
    return math.log(both * texts / (first * second)) / -math.log(both / texts)


def warnings(
    request: Request, made: Outcomes, counted: Tables, languages: Mapping[str, int]
) -> list[Warn]:
    """What the reader should know before reading on."""
    told = {
        **_about_the_input(made, languages),
        **_about_the_themes(request, made, counted),
        **_about_the_model(request, made, counted),
    }
    return [Warn(code=code, text=text) for code, text in told.items() if text]


def _about_the_input(made: Outcomes, languages: Mapping[str, int]) -> dict[str, str]:
    embedded = made.embedded
    told = {}
    if embedded.missing:
        told["fallback_embedding"] = (
            f"Themes rest on shared words only, since {', '.join(embedded.missing)} is missing; "
            "install haulage[thematic] for the embedding model."
        )
    if embedded.too_long:
        told["too_long"] = f"Of {embedded.too_long} texts only the first 256 tokens were read."
    foreign = foreign_share(languages, embedded.backend)
    if foreign > FOREIGN_SHARE:
        told["not_english"] = (
            f"{100 * foreign:.0f} % of the answers whose language can be told are not "
            "in English; model and stop words are for English."
        )
    return told


def _about_the_themes(request: Request, made: Outcomes, counted: Tables) -> dict[str, str]:
    found = made.found
    told = {}
    has_choice = request.parameters.max_themes > 1 and not request.parameters.codebook
    if len(found.cohesion) <= 1 and has_choice:
        told["too_few_answers"] = "There were too few different answers to tell themes apart."
    if found.redundancy is not None and found.redundancy > REDUNDANT:
        told["redundant_themes"] = (
            "Two themes are nearly alike; a lower max_themes would join them."
        )
    if share(counted.others, counted.analysed) > OTHER_SHARE:
        told["large_other"] = (
            "Many answers are in none of the codes; other.suggested shows what they speak of."
            if request.parameters.codebook
            else "Many answers are in no theme; a lower min_theme_size would show more."
        )
    vague = [theme for theme in made.reviewed.vague if counted.responses[theme]]
    if vague:
        names = ", ".join(f"“{made.labels.names[theme]}”" for theme in vague)
        told["vague_names"] = f"The review found these names vague: {names}."
    return told


def _about_the_model(request: Request, made: Outcomes, counted: Tables) -> dict[str, str]:
    parameters, reviewed = request.parameters, made.reviewed
    told = {}
    if made.lost is not None:
        told["llm_lost"] = f"The LLM was given up on the way: {made.lost}."
    if made.assignments.fallen_back:
        told["fallback_assignment"] = (
            f"{made.assignments.fallen_back} texts are assigned by nearness, since the LLM was "
            "given up before it came to them, or judged them against all likelihood."
        )
    if counted.failed:
        told["failed_answers"] = f"{counted.failed} answers could not be judged by the LLM."
    agreed = agreement(made, counted)
    if agreed is not None and agreed < LOW_AGREEMENT:
        told["low_agreement"] = (
            f"The LLM puts only {100 * agreed:.0f} % of the answers where their cluster is; read "
            "some of them before relying on the counts."
        )
    if reviewed.rejected:
        told["no_review"] = "The LLM gave no usable review of the themes."
    if reviewed.ignored:
        told["review_ignored"] = (
            f"{reviewed.ignored} suggestions of the review named no theme of the list or "
            "contradicted the answers, and were ignored."
        )
    if made.sentences.dropped:
        told["insights_dropped"] = (
            f"{made.sentences.dropped} sentences of the LLM stated something that was not "
            "computed, and were dropped."
        )
    if made.sentences.unanswered:
        told["no_insights"] = (
            "The LLM worded none of the insights, which are those of the templates: "
            f"{made.sentences.unanswered}."
        )
    if parameters.stance and parameters.llm is None:
        told["no_stance"] = "Stances need an LLM, and none took part."
    elif made.stances.unknown:
        told["unknown_stances"] = (
            f"{made.stances.unknown} times the LLM did not say how an answer stands to a theme."
        )
    return told
