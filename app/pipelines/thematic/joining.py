"""One answer's themes from those of the texts that it says: a long answer has several."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from app.pipelines.thematic.assigned import Assigned
from app.pipelines.thematic.parts import Span

MIXED: Final = "mixed"
NEUTRAL: Final = "neutral"


def joined(
    spans: Sequence[Span], assigned: Sequence[Assigned], texts: Sequence[str]
) -> tuple[Assigned, int]:
    """Where an answer belongs, and the text that its primary theme is from.

    Its primary theme is the one that most of its characters are in. Two stances to one theme are
    a mixed one, unless one of them is neutral. It failed only where none of its texts has a theme
    and one of them failed.

    Args:
        spans: of the answer, at least one.
        assigned: by text.
        texts: cleaned, so that white space and escapes in the answer weigh nothing.
    """
    of = [assigned[span.text] for span in spans]
    if len(spans) == 1:
        return of[0], spans[0].text
    weight: Counter[int] = Counter()
    for span, each in zip(spans, of, strict=True):
        weight.update(dict.fromkeys(each.themes, len(texts[span.text])))
    themes = [theme for theme, _ in weight.most_common()]
    if not themes:
        statuses = ("failed", "other", "non_answer")
        worst = min(range(len(of)), key=lambda at: statuses.index(of[at].status))
        return of[worst], spans[worst].text
    home = next(at for at, each in enumerate(of) if themes[0] in each.themes)
    primary = of[home]
    return (
        Assigned(
            status="assigned",
            themes=themes,
            score=primary.score,
            method=primary.method,
            stance=[_stance(of, theme) for theme in themes] if any(e.stance for e in of) else [],
        ),
        spans[home].text,
    )


def _stance(of: Sequence[Assigned], theme: int) -> str:
    told = {
        stance
        for each in of
        for number, stance in zip(each.themes, each.stance, strict=False)
        if number == theme and stance
    }
    decided = told - {NEUTRAL} or told
    return decided.pop() if len(decided) == 1 else MIXED if decided else ""
