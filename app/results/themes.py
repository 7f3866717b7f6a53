"""The format `themes/1`: what a thematic analysis returns, field by field.

Counts are always counts of `assignments`; `app.results.verifying` proves it for any result. The
descriptions here are the documentation: docs/thematic-analysis.md lists them. pydantic is imported
by whoever reads or writes results, and by no worker whose pipeline does neither.
"""

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Final = "themes/1"
NO_GROUP: Final = "(none)"
"""The group of answers whose cell is empty."""
ROUNDING: Final = 0.00011
"""Shares are rounded to four places."""

NameSource = Literal["keywords", "llm", "codebook"]
Stance = Literal["positive", "negative", "mixed", "neutral"]


class Part(BaseModel):
    """Of a result: immutable, nothing in it that is not described, no value coerced."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
    )


class Quote(Part):
    """A verbatim slice of an answer."""

    response_id: str = Field(description="The answer that it is from.")
    text: str = Field(description="`answer[start:end]`, signs as they were given.")
    start: int = Field(ge=0, description="In code points of the whole answer.")
    end: int = Field(ge=0, description="First code point behind the quote.")
    verified: bool = Field(description="Compared with the answer, and the same.")


class GroupCount(Part):
    """A theme within one group."""

    responses: int = Field(ge=0, description="Answers of the group with this theme.")
    share: float = Field(ge=0, le=1, description="Of the group's analysed answers.")


class StanceCounts(Part):
    """How the answers of a theme stand to it."""

    positive: int = Field(ge=0, description="Answers in favour or content.")
    negative: int = Field(ge=0, description="Answers against or discontent.")
    mixed: int = Field(ge=0, description="Answers that are both.")
    neutral: int = Field(ge=0, description="Answers that are neither.")


class Theme(Part):
    """A theme, or a sub-theme within one."""

    id: str = Field(description='"T01" for a theme, "T01.2" for a sub-theme.')
    parent: str | None = Field(description="The theme that a sub-theme is in; null for a theme.")
    name: str = Field(description="No two themes of one level have the same.")
    name_source: NameSource = Field(description="Who gave the name.")
    description: str | None = Field(description="One or two sentences; null without LLM.")
    keywords: list[str] = Field(description="Words that tell it from the others, best first.")
    responses: int = Field(
        ge=0,
        description="Answers that list the theme; for a sub-theme, answers whose primary theme is "
        "the parent and that lie in this part of it.",
    )
    share: float = Field(ge=0, le=1, description="Of all analysed answers.")
    unique_texts: int = Field(ge=0, description="Different wordings among `responses`.")
    by_group: dict[str, dict[str, GroupCount]] = Field(
        description="Group column, group, then the count; the groups add up to `responses`."
    )
    stance: StanceCounts | None = Field(
        description="How the answers stand to the theme; null where it was not asked for."
    )
    merged_from: list[str] = Field(
        description="Names of themes that the review joined into this one."
    )
    cohesion: float | None = Field(
        description="Mean cosine of the texts of the cluster that it comes from to their centre, "
        "or to the code, whoever assigned its answers since; null without answers."
    )
    separation: float | None = Field(
        description="How much nearer the texts of that cluster are to it than to the next one, -1 "
        "to 1; null with a codebook."
    )
    quotes: list[Quote] = Field(description="The most typical first, unlike each other.")


class Suggestion(Part):
    """A theme that a given codebook lacks."""

    name: str = Field(description="By keywords or by the LLM, as in `labelling`.")
    keywords: list[str] = Field(description="Best first.")
    responses: int = Field(ge=0, description="Answers of `other` that would be in it.")
    quotes: list[Quote] = Field(description="The most typical first.")


class Other(Part):
    """Analysed answers without a theme."""

    responses: int = Field(ge=0, description="How many.")
    share: float = Field(ge=0, le=1, description="Of all analysed answers.")
    sample: list[Quote] = Field(description="Some of them.")
    suggested: list[Suggestion] = Field(
        description="With a codebook: themes that these answers would make."
    )


class Failed(Part):
    """Analysed answers of which the LLM could not say where they belong."""

    responses: int = Field(ge=0, description="How many.")
    share: float = Field(ge=0, le=1, description="Of all analysed answers.")
    reasons: dict[str, int] = Field(description="Reason, and how many answers failed for it.")


class NonAnswerText(Part):
    """One wording of a non-answer."""

    text: str = Field(description='Lower-case words alone; "" for empty cells and signs.')
    responses: int = Field(ge=0, description="Rows that have it.")


class NonAnswers(Part):
    """Rows that say nothing."""

    responses: int = Field(ge=0, description="How many.")
    share: float = Field(ge=0, le=1, description="Of all rows.")
    rule: str = Field(description="How they were told from answers.")
    texts: list[NonAnswerText] = Field(description="Their wordings, most frequent first.")


class Evidence(Part):
    """An answer that an insight rests on."""

    response_id: str = Field(description="Of that answer.")


class Insight(Part):
    """A sentence about the result."""

    text: str = Field(description="Its figures are values of `numbers`.")
    source: Literal["llm", "template"] = Field(description="Who worded it.")
    theme_ids: list[str] = Field(description="Themes that it is about.")
    evidence: list[Evidence] = Field(description="Answers to read with it.")
    numbers: dict[str, int | float] = Field(
        description="Computed values by what they count, which tells what they are computed from; "
        "a fraction is shown as a percentage. Behind “F1.” and the like where a sentence of the "
        "LLM rests on several facts."
    )
    numbers_checked: bool = Field(description="Every figure in `text` is one of `numbers`.")


class Assignment(Part):
    """Where one row went."""

    response_id: str = Field(
        description="Of the row; `ID/COLUMN` where several text columns were given."
    )
    status: Literal["assigned", "other", "non_answer", "failed"] = Field(
        description="Has a theme, has none, says nothing, or could not be judged."
    )
    theme_ids: list[str] = Field(description="The primary one first; empty unless assigned.")
    subtheme_id: str | None = Field(description="Within the primary theme.")
    score: float | None = Field(
        description="Cosine to the centre of the primary theme's cluster, or to its code; null "
        "where there is none."
    )
    method: Literal["cluster", "similarity", "llm", "codebook"] | None = Field(
        description="What assigned it: its cluster, its nearness to the theme, the LLM, or its "
        "nearness to a theme of the codebook; null for a non-answer by rule."
    )
    stance: dict[str, Stance] | None = Field(
        description="By theme id; null where it was not asked for."
    )
    reason: str | None = Field(description="Why it failed, else null.")


class Labelling(Part):
    """Who named the themes."""

    method: Literal["keywords", "llm", "mixed", "codebook"] = Field(
        description="`mixed` where the LLM failed for some; each theme's `name_source` tells."
    )
    model: str | None = Field(description="The LLM that took part, null without one.")
    degraded: bool = Field(description="Less was possible than was wished for.")
    reasons: list[str] = Field(description="Why it is as it is.")


class StartedFrom(Part):
    """The job whose stages this one took over."""

    job: str = Field(description="Its id.")
    stage: str = Field(description="The last stage that was taken over.")


class CreatedBy(Part):
    """What made the result."""

    pipeline: str = Field(description='"thematic".')
    version: str = Field(description="Of the recipe; another one may give other themes.")
    mode: Literal["keywords", "name", "full"] = Field(description="The mode that was run.")
    seed: int = Field(description="As given.")
    params_hash: str = Field(description="sha256 over the parameters, answers not included.")
    started_from: StartedFrom | None = Field(description="Null for a job of its own.")


class Embedding(Part):
    """What turned texts into vectors."""

    backend: str = Field(description='"minilm-int8", "lsa" or "endpoint".')
    model: str = Field(description="The model's name.")


class QuestionFacts(Part):
    """One text column and what was asked there."""

    column: str = Field(description="Where the answers stood.")
    question: str | None = Field(description="What was asked, null where nothing tells.")
    rows: int = Field(ge=0, description="Answers and non-answers.")
    non_answers: int = Field(ge=0, description="Rows that say nothing.")
    nothing_is_an_answer: bool = Field(
        description='The question asks what could be better, so "nothing" was analysed.'
    )


class InputFacts(Part):
    """What became of the rows."""

    rows: int = Field(ge=0, description="`analysed` and `non_answers` together.")
    empty: int = Field(ge=0, description="Rows without any text; they are non-answers.")
    non_answers: int = Field(ge=0, description="Rows that say nothing.")
    analysed: int = Field(ge=0, description="Assigned, other or failed.")
    unique_texts: int = Field(ge=0, description="Different wordings among the analysed.")
    duplicates: int = Field(
        ge=0, description="Analysed answers that repeat one: counted, not clustered again."
    )
    split: int = Field(ge=0, description="Long wordings that were clustered in parts.")
    too_long: int = Field(ge=0, description="Texts of which only the beginning was read.")
    masked_emails: int = Field(ge=0, description="Rows in which an address was masked.")
    masked_phones: int = Field(ge=0, description="Rows in which a number was masked.")
    masked_custom: int = Field(ge=0, description="Rows in which a given phrase was masked.")
    languages: dict[str, int] = Field(
        description="ISO 639-1 code and analysed answers, the most frequent first; `und` where a "
        "text is too short to tell."
    )
    questions: list[QuestionFacts] = Field(description="One per text column.")
    dataset: str | None = Field(description="Id of the stored dataset, null for inline answers.")
    encoding: str | None = Field(description="Of the file that the dataset came from.")
    header_rows: int | None = Field(description="Of that file.")
    dropped_columns: list[str] = Field(
        description="Columns of that file that identify people and were left out."
    )


class Metrics(Part):
    """Figures that judge the result without a gold standard; null where there is too little."""

    coverage: float = Field(description="Share of analysed answers with a theme.")
    other_share: float = Field(description="Share of analysed answers without one.")
    failed_responses: float = Field(description="Share of analysed answers that failed.")
    stability: float | None = Field(
        description="Mean adjusted Rand index of the clusters against those of 80 % samples; null "
        "with a codebook."
    )
    redundancy: float | None = Field(
        description="Highest cosine between the centres of two themes' clusters or codes."
    )
    separation: float | None = Field(
        description="Mean of the themes' separation, weighted by their answers; null with a "
        "codebook."
    )
    diversity: float | None = Field(
        description="Different keywords as a share of all that the themes have."
    )
    coherence_npmi: float | None = Field(
        description="Mean normalised pointwise mutual information of words of different keywords "
        "of a theme, -1 to 1."
    )
    size_entropy: float | None = Field(
        description="Evenness of the themes' sizes: 1 for equal ones; codes without answers count."
    )
    name_specificity: float | None = Field(
        description="Share of names that say more than stock words such as “general comments”."
    )
    quote_support: float = Field(description="Share of quotes that are verbatim; always 1.")
    label_validity: float | None = Field(
        description="Share of the LLM's answers that were valid in the end; null without LLM."
    )
    label_validity_first: float | None = Field(
        description="Share of the LLM's answers that were valid at once; null without LLM."
    )
    agreement: float | None = Field(
        description="Share of clustered answers that the LLM puts first where their cluster is, "
        "and neither elsewhere nor in no theme; null where it assigned none."
    )
    double_coded: int = Field(
        ge=0, description="Different wordings that the LLM was asked about twice, in two batches."
    )
    double_coding_agreement: float | None = Field(
        description="Share of those of which both batches said the same, themes in the same order; "
        "of `doubtful` ones a lower bound for all. Null without any."
    )


class StageUsage(Part):
    """What one stage cost."""

    llm_calls: int = Field(ge=0, description="Requests made, failed ones too.")
    cached_calls: int = Field(ge=0, description="Calls whose answers were kept already.")
    prompt_tokens: int = Field(ge=0, description="Tokens sent.")
    completion_tokens: int = Field(ge=0, description="Tokens received.")
    retries: int = Field(ge=0, description="Calls repeated after a fault of server or network.")
    cost: float = Field(ge=0, description="In the currency of the given prices; 0 without.")


class Estimate(Part):
    """What the run was expected to cost before it began."""

    calls: int = Field(ge=0, description="Calls.")
    prompt_tokens: int = Field(ge=0, description="Tokens to send.")
    completion_tokens: int = Field(ge=0, description="Tokens to receive.")
    cost: float = Field(ge=0, description="In the currency of the given prices.")


class Usage(StageUsage):
    """What the run cost; the only part that differs between two runs on the same input."""

    by_stage: dict[str, StageUsage] = Field(description="Stages that used the LLM; they add up.")
    seconds_by_stage: dict[str, float] = Field(description="Wall time.")
    estimate: Estimate | None = Field(description="Null without LLM.")


class Warn(Part):
    """Something the reader of the result should know."""

    code: str = Field(description="For programs.")
    text: str = Field(description="For people.")


class ThemesResult(Part):
    """A whole result."""

    schema_name: Literal["themes/1"] = Field(alias="schema", description="Name and version.")
    question: str | None = Field(description="What was asked; null with several questions.")
    created_by: CreatedBy = Field(description="Recipe, mode and seed.")
    labelling: Labelling = Field(description="Who named the themes.")
    embedding: Embedding = Field(description="What turned texts into vectors.")
    input: InputFacts = Field(description="What became of the rows.")
    themes: list[Theme] = Field(description="The largest first, each before its sub-themes.")
    other: Other = Field(description="Answers without a theme.")
    failed: Failed = Field(description="Answers that could not be judged.")
    non_answers: NonAnswers = Field(description="Rows that say nothing.")
    insights: list[Insight] = Field(description="Sentences, the most general first.")
    metrics: Metrics = Field(description="How far to trust it.")
    usage: Usage = Field(description="What it cost.")
    warnings: list[Warn] = Field(description="What to know before reading on.")
    assignments: list[Assignment] = Field(description="One per row, in the order of the input.")


@dataclass(frozen=True, slots=True)
class ThemeRow:
    """A line of the table that people read first."""

    name: str
    responses: int
    share: float
    quote: str


def theme_rows(result: ThemesResult) -> list[ThemeRow]:
    """The themes (not the sub-themes) in the result's order, then other and failed, if any."""
    rows = [
        ThemeRow(
            theme.name,
            theme.responses,
            theme.share,
            theme.quotes[0].text if theme.quotes else "",
        )
        for theme in result.themes
        if theme.parent is None
    ]
    other = result.other
    if other.responses:
        quote = other.sample[0].text if other.sample else ""
        rows.append(ThemeRow("Other", other.responses, other.share, quote))
    failed = result.failed
    if failed.responses:
        rows.append(ThemeRow("Not judged", failed.responses, failed.share, ""))
    return rows
