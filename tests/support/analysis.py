"""A small analysis made by hand, with names and answers that mean harm to whoever shows them."""

from typing import Any, Final

HOSTILE: Final = '=HYPERLINK("http://evil.example","<script>alert(1)</script>")'
NAME: Final = 'Waits & <b>"delays"</b>'


def analysis(assigned: int = 4) -> dict[str, Any]:
    """A result of schema themes/1 with two themes, a sub-theme, and rows of every status."""
    answers = [
        _assignment(str(n), "assigned", theme_ids=["T01"], subtheme_id="T01.1", score=0.5)
        for n in range(1, assigned + 1)
    ]
    answers[0]["theme_ids"] = ["T01", "T02"]
    answers[0]["stance"] = {"T01": "negative", "T02": "mixed"}
    answers += [
        _assignment("=1+1", "assigned", theme_ids=["T02"], subtheme_id=None, score=-0.25),
        _assignment("x", "other"),
        _assignment("y", "failed", method="llm", reason="the answer was cut off"),
        _assignment("z", "non_answer", method=None),
    ]
    analysed = len(answers) - 1
    quotes = [_quote(str(n), f"the wait was {n} hours") for n in range(1, 3)]
    return {
        "schema": "themes/1",
        "question": "What could we do better?\n<i>Anything</i>",
        "created_by": {
            "pipeline": "thematic",
            "version": "1",
            "mode": "name",
            "seed": 0,
            "params_hash": "ab" * 32,
            "started_from": None,
        },
        "labelling": {
            "method": "llm",
            "model": "small<model>",
            "degraded": False,
            "reasons": [],
        },
        "embedding": {"backend": "lsa", "model": "lsa"},
        "input": {
            "rows": analysed + 1,
            "empty": 0,
            "non_answers": 1,
            "analysed": analysed,
            "unique_texts": analysed,
            "duplicates": 0,
            "split": 0,
            "too_long": 0,
            "masked_emails": 0,
            "masked_phones": 0,
            "masked_custom": 0,
            "languages": {"de": analysed - 1, "und": 1},
            "questions": [
                {
                    "column": "text",
                    "question": "What could we do better?",
                    "rows": analysed + 1,
                    "non_answers": 1,
                    "nothing_is_an_answer": False,
                }
            ],
            "dataset": None,
            "encoding": None,
            "header_rows": None,
            "dropped_columns": [],
        },
        "themes": [
            {
                **_theme("T01", None, NAME, assigned, analysed),
                "description": "People <em>wait</em>.",
                "by_group": {"ward": {"A&E": {"responses": assigned, "share": 1.0}}},
                "stance": {"positive": 0, "negative": 1, "mixed": 0, "neutral": 0},
                "quotes": [*quotes, _quote("3", HOSTILE)],
            },
            {**_theme("T01.1", "T01", "Long waits", assigned, analysed), "quotes": quotes[:1]},
            _theme("T02", None, "-5% food", 2, analysed),
        ],
        "other": {
            "responses": 1,
            "share": 1 / analysed,
            "sample": [_quote("x", "\t@SUM(A1)")],
            "suggested": [],
        },
        "failed": {"responses": 1, "share": 1 / analysed, "reasons": {"the answer was cut off": 1}},
        "non_answers": {
            "responses": 1,
            "share": 1 / (analysed + 1),
            "rule": "by <rule>",
            "texts": [{"text": "n a", "responses": 1}],
        },
        "insights": [
            {
                "text": "“Waits” is named by most & is <large>.",
                "source": "template",
                "theme_ids": ["T01"],
                "evidence": [{"response_id": "1"}],
                "numbers": {"responses": assigned, "analysed": analysed, "share": 0.5},
                "numbers_checked": True,
            }
        ],
        "metrics": {
            "coverage": 0.7,
            "other_share": 0.1,
            "failed_responses": 0.1,
            "stability": None,
            "redundancy": None,
            "separation": None,
            "diversity": None,
            "coherence_npmi": None,
            "size_entropy": None,
            "name_specificity": None,
            "quote_support": 1.0,
            "label_validity": None,
            "label_validity_first": None,
            "agreement": None,
            "double_coded": 0,
            "double_coding_agreement": None,
        },
        "usage": {
            **_ZEROS,
            "by_stage": {},
            "seconds_by_stage": {"load": 0.1},
            "estimate": None,
        },
        "warnings": [{"code": "few", "text": "Few answers: <look> twice"}],
        "assignments": answers,
    }


_ZEROS: Final = {
    "llm_calls": 0,
    "cached_calls": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "retries": 0,
    "cost": 0.0,
}


def _theme(key: str, parent: str | None, name: str, responses: int, analysed: int) -> Any:
    return {
        "id": key,
        "parent": parent,
        "name": name,
        "name_source": "llm",
        "description": None,
        "keywords": ["wait", "<long>"],
        "responses": responses,
        "share": round(responses / analysed, 4),
        "unique_texts": responses,
        "by_group": {"ward": {"A&E": {"responses": responses, "share": 0.5}}},
        "stance": None,
        "merged_from": [],
        "cohesion": 0.5,
        "separation": 0.25,
        "quotes": [],
    }


def _quote(response_id: str, text: str) -> dict[str, Any]:
    return {
        "response_id": response_id,
        "text": text,
        "start": 0,
        "end": len(text),
        "verified": True,
    }


def _assignment(response_id: str, status: str, **fields: Any) -> dict[str, Any]:
    return {
        "response_id": response_id,
        "status": status,
        "theme_ids": [],
        "subtheme_id": None,
        "score": None,
        "method": "cluster",
        "stance": None,
        "reason": None,
        **fields,
    }
