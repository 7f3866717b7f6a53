"""Parts of a result as the API tells them; the store sends them without these models."""

from pydantic import BaseModel, Field

from app.results.themes import (
    Assignment,
    Failed,
    InputFacts,
    Insight,
    Labelling,
    Metrics,
    Quote,
    Theme,
    Warn,
)


class OtherCount(BaseModel):
    """Analysed answers without a theme."""

    responses: int
    share: float = Field(description="Of all analysed answers.")


class NonAnswerCount(BaseModel):
    """Rows that say nothing."""

    responses: int
    share: float = Field(description="Of all rows.")
    rule: str = Field(description="How they were told from answers.")


class ThemesResponse(BaseModel):
    """The themes with their counts, without where each answer went."""

    question: str | None
    labelling: Labelling
    input: InputFacts
    themes: list[Theme] = Field(description="The largest first, each before its sub-themes.")
    other: OtherCount
    failed: Failed
    non_answers: NonAnswerCount
    insights: list[Insight]
    metrics: Metrics
    warnings: list[Warn]


class QuotesPage(BaseModel):
    """Some quotes of a theme."""

    theme: dict[str, object] = Field(description="As in the result, but for its quotes.")
    items: list[Quote]
    next: str | None = Field(description="Where the list goes on, as in the header `Link`.")


class ResponsesPage(BaseModel):
    """Where some rows went, in the order of the input."""

    items: list[Assignment]
    next: str | None = Field(description="Where the list goes on, as in the header `Link`.")
