"""What became of the input, for the result: rows, wordings, languages, non-answers, questions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from app.pipelines.thematic.languages import ENGLISH, UNDETERMINED
from app.pipelines.thematic.load import Answers
from app.pipelines.thematic.prepare import Prepared, normalise
from app.results.themes import InputFacts, NonAnswers, NonAnswerText, QuestionFacts

COVERED: Final = {"minilm-int8": frozenset({ENGLISH}), "lsa": frozenset({ENGLISH})}
"""Languages of the built-in models, and of the stop words that shared words are weighed without."""


def silent_rows(prepared: Prepared) -> list[bool]:
    """By answer, whether it was set apart as a non-answer here; a model may find more of them."""
    return [text < 0 for text in prepared.text_of]


def input_facts(
    answers: Answers, prepared: Prepared, silent: Sequence[bool], too_long: int
) -> InputFacts:
    """Count the input.

    Args:
        answers: as loaded.
        prepared: as prepared.
        silent: by answer, whether it is a non-answer.
        too_long: texts of which the model read only the beginning.
    """
    rows = Counter(answers.column_of)
    silent_in = Counter(
        column for column, is_silent in zip(answers.column_of, silent, strict=True) if is_silent
    )
    wordings = _wordings(prepared, silent)
    source = answers.source
    return InputFacts(
        rows=len(silent),
        empty=prepared.empty,
        non_answers=sum(silent),
        analysed=wordings.total(),
        unique_texts=len(wordings),
        duplicates=wordings.total() - len(wordings),
        split=prepared.split,
        too_long=too_long,
        masked_emails=prepared.masked_emails,
        masked_phones=prepared.masked_phones,
        masked_custom=prepared.masked_custom,
        languages=_languages(prepared, wordings),
        questions=[
            QuestionFacts(
                column=column,
                question=question,
                rows=rows[at],
                non_answers=silent_in[at],
                nothing_is_an_answer=nothing_answers,
            )
            for at, (column, question, nothing_answers) in enumerate(
                zip(answers.columns, answers.questions, prepared.nothing_answers, strict=True)
            )
        ],
        dataset=source.get("id"),
        encoding=source.get("encoding"),
        header_rows=source.get("header_rows"),
        dropped_columns=source.get("dropped_columns", []),
    )


def non_answers(prepared: Prepared, silent: Sequence[bool]) -> NonAnswers:
    """The rows that say nothing, by wording."""
    texts = Counter(prepared.non_answers)
    for text, is_silent in zip(prepared.text_of, silent, strict=True):
        if is_silent and text >= 0:
            texts[normalise(prepared.texts[text])] += 1
    return NonAnswers(
        responses=sum(silent),
        share=round(sum(silent) / len(silent), 4),
        rule=prepared.rule,
        texts=[
            NonAnswerText(text=text, responses=times)
            for text, times in sorted(texts.items(), key=lambda item: (-item[1], item[0]))
        ],
    )


def foreign_share(languages: Mapping[str, int], backend: str) -> float:
    """Of the answers whose language can be told, those that the model was not made for."""
    covered = COVERED.get(backend)
    told = {code: times for code, times in languages.items() if code != UNDETERMINED}
    if covered is None or not told:
        return 0.0
    foreign = sum(times for code, times in told.items() if code not in covered)
    return foreign / sum(told.values())


def _wordings(prepared: Prepared, silent: Sequence[bool]) -> Counter[int]:
    """Wording -> analysed answers."""
    return Counter(
        wording
        for wording, is_silent in zip(prepared.wording_of, silent, strict=True)
        if not is_silent
    )


def _languages(prepared: Prepared, wordings: Counter[int]) -> dict[str, int]:
    told: Counter[str] = Counter()
    for wording, times in wordings.items():
        told[prepared.language_of[wording]] += times
    return dict(sorted(told.items(), key=lambda item: (-item[1], item[0])))
