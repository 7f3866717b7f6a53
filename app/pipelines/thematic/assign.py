"""Stage 7, assign: to which themes each answer belongs, and by whose word.

Without the model an answer belongs where its cluster is, and by nearness to a second theme or to
the codes of a given codebook. In full mode the model chooses from a closed list of theme names,
several at once, every answer under a key of its own (`by_model.py`).
"""

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.pipelines.thematic import codebook
from app.pipelines.thematic.asker import Asker
from app.pipelines.thematic.assigned import Assigned, Assignments
from app.pipelines.thematic.by_model import ByModel
from app.pipelines.thematic.discover import Discovered
from app.pipelines.thematic.embed import Embedded
from app.pipelines.thematic.label import Labels
from app.pipelines.thematic.milestones import Report
from app.pipelines.thematic.name import centres
from app.pipelines.thematic.parameters import Parameters
from app.pipelines.thematic.prepare import Prepared
from app.pipelines.thematic.prompts import Survey

SECOND_WITHIN: Final = 0.05
SECOND_LEAST: Final = 0.5


async def assign(
    asker: Asker,
    *,
    prepared: Prepared,
    people: list[int],
    embedded: Embedded,
    codes: NDArray[np.float16],
    found: Discovered,
    labels: Labels,
    survey: Survey,
    parameters: Parameters,
    report: Report,
) -> Assignments:
    """Assign every text."""
    cosine = _cosine(embedded, codes, found)
    nearby = _by_codes(cosine, found) if len(codes) else _by_clusters(cosine, found, parameters)
    outcome = Assignments(nearby)
    if parameters.mode == "full" and parameters.llm is not None and labels.names:
        by_model = ByModel(asker, prepared, labels, survey, nearby, cosine, report)
        outcome = await by_model.assign(
            parameters.seed, parameters.double_coding, with_stance=parameters.stance
        )
    if not len(codes):
        return outcome
    others = [text for text, each in enumerate(outcome.of) if each.status == "other"]
    suggested = await codebook.suggest(others, prepared.texts, embedded, people, parameters, report)
    return replace(outcome, suggested=suggested)


def _cosine(
    embedded: Embedded, codes: NDArray[np.float16], found: Discovered
) -> NDArray[np.float32]:
    """Text and theme -> cosine to the theme's centre or code."""
    members = [
        [text for text, of in enumerate(found.theme_of) if of == theme]
        for theme in range(len(found.cohesion))
    ]
    middle = codes.astype(np.float32) if len(codes) else centres(embedded.vectors, members)
    cosine: NDArray[np.float32] = embedded.vectors.astype(np.float32) @ middle.astype(np.float32).T
    return cosine


def _by_clusters(
    cosine: NDArray[np.float32], found: Discovered, parameters: Parameters
) -> list[Assigned]:
    """The cluster's theme; in name mode a second one that is as near."""
    wants_second = parameters.mode != "keywords" and parameters.llm is not None
    assigned = []
    for text, theme in enumerate(found.theme_of):
        if theme < 0:
            assigned.append(Assigned("other", [], None, "cluster"))
            continue
        least = max(SECOND_LEAST, float(cosine[text, theme]) - SECOND_WITHIN)
        second = _nearest_but(cosine[text], theme, least) if wants_second else []
        method = "similarity" if second else "cluster"
        assigned.append(Assigned("assigned", [theme, *second], found.score[text], method))
    return assigned


def _by_codes(cosine: NDArray[np.float32], found: Discovered) -> list[Assigned]:
    assigned = []
    for text, theme in enumerate(found.theme_of):
        if theme < 0:
            assigned.append(Assigned("other", [], None, "codebook"))
            continue
        least = max(codebook.LEAST_COSINE, found.score[text] - codebook.SECOND_WITHIN)
        second = _nearest_but(cosine[text], theme, least)
        assigned.append(Assigned("assigned", [theme, *second], found.score[text], "codebook"))
    return assigned


def _nearest_but(cosine: NDArray[np.float32], theme: int, least: float) -> list[int]:
    others = cosine.copy()
    others[theme] = -np.inf
    best = int(others.argmax())
    return [best] if others[best] >= least else []
