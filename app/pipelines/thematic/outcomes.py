"""What all stages of an analysis have made, put before those that judge and package it."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.pipelines.llm.budget import Cost as Foreseen
from app.pipelines.thematic.assigned import Assignments
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.insights import Insights
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.milestones import Cost
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.quotes import Quotes
from app.pipelines.thematic.review import Reviewed
from app.pipelines.thematic.stance import Stances


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What all stages have made.

    Attributes:
        costs: stage -> what the model did for it.
        expected: what was foreseen of that, None without a model.
    """

    answers: Answers
    prepared: Prepared
    people: list[int]
    embedded: Embedded
    reviewed: Reviewed
    assignments: Assignments
    chosen: Quotes
    stances: Stances
    sentences: Insights
    costs: Mapping[str, Cost]
    expected: Foreseen | None

    @property
    def labels(self) -> Labels:
        """The names as reviewed."""
        return self.reviewed.labels

    @property
    def found(self) -> Discovered:
        """The themes as reviewed."""
        return self.reviewed.found

    @property
    def lost(self) -> str | None:
        """Why the model was given up, None where it was not."""
        stages = (self.labels, self.reviewed, self.assignments, self.stances, self.sentences)
        return next((stage.lost for stage in stages if stage.lost), None)
