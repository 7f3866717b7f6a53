"""On which of a payload's parameters each stage rests: what makes a kept outcome one's own."""

from dataclasses import asdict
from typing import Any

from app.pipelines.thematic.parameters import Request, digest, outcome_settings


def stage_settings(request: Request) -> dict[str, Any]:
    """Stage -> what its outcome depends on, beside the outcomes of the stages before it."""
    given = request.parameters
    codebook = [[code.name, code.definition] for code in given.codebook]
    model = [given.mode, outcome_settings(given.llm), given.context]
    return {
        "load": request.input_hash,
        "prepare": asdict(given.redact),
        "embed": [
            given.embedding_backend,
            given.embedding_base_url,
            given.embedding_model,
            codebook,
        ],
        "discover": [given.max_themes, given.min_theme_size, given.granularity, given.seed],
        "name": model,
        "review": [model, given.seed, given.max_themes, given.min_theme_size],
        "assign": [model, given.seed, given.stance, given.double_coding],
        "quotes": given.quotes_per_theme,
        "stance": [model, given.stance, given.double_coding],
        "insights": model,
    }


def shared_settings(request: Request) -> dict[str, tuple[str, str]]:
    """What jobs that share stages have in common: key -> hash, first stage that depends on it.

    Not `mode` and `llm`: that another model goes on from here is what stages are shared for, and
    the result tells which one has named what.
    """
    given = request.parameters
    by_stage: dict[str, dict[str, Any]] = {
        "prepare": {"redact": asdict(given.redact)},
        "embed": {
            "embedding": [
                given.embedding_backend,
                given.embedding_base_url,
                given.embedding_model,
            ],
            "codebook": [[code.name, code.definition] for code in given.codebook],
        },
        "discover": {
            "max_themes": given.max_themes,
            "min_theme_size": given.min_theme_size,
            "granularity": given.granularity,
            "seed": given.seed,
        },
        "name": {"context": given.context},
        "assign": {"stance": given.stance, "double_coding": given.double_coding},
        "quotes": {"quotes_per_theme": given.quotes_per_theme},
    }
    shared = {"input": (request.input_hash, "load")}
    for stage, settings in by_stage.items():
        shared |= {name: (digest(value), stage) for name, value in settings.items()}
    return shared
