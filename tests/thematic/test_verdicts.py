import pytest

from app.pipelines.thematic.verdicts import CRITICISM, NONE, PRAISE, verdict


@pytest.mark.parametrize(
    "text",
    [
        "Very good.",
        "Excellent service",
        "All good, thank you!",
        "Nothing",
        "Nothing at all.",
        "Nothing. Everything was perfect",
        "No complaints",
        "I can\u2019t fault it",
        "Could not have been better.",
        "There is nothing that I would change",
        "Not bad at all",
    ],
)
def test_general_praise_is_told_by_its_words(text: str) -> None:
    assert verdict(text) == PRAISE


@pytest.mark.parametrize(
    "text",
    ["Terrible service.", "Not good", "It wasn't great at all", "Could be better", "Very poor"],
)
def test_general_criticism_is_another_verdict(text: str) -> None:
    assert verdict(text) == CRITICISM


@pytest.mark.parametrize(
    "text",
    [
        "The nurses were excellent",
        "Good parking",
        "Nothing, the crew were lovely",
        "I would not have survived",
        "Good but could be better",
        "Good and bad",
        "As it was",
        "Sehr gut",
        "[email]",
    ],
)
def test_an_answer_that_names_something_or_judges_nothing_is_no_verdict(text: str) -> None:
    assert verdict(text) == NONE
