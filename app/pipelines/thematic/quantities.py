"""Words that say how much or how many: what a model may not say of its own accord."""

import re
from typing import Final

_NUMBERS: Final = (
    r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty"
    r"|sixty|seventy|eighty|ninety|hundreds?|thousands?"
)
_PARTS: Final = (
    r"half|halves|thirds?|fourths?|quarters?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?"
    r"|twel(?:fth|ve)s?|\w+teenths?|\w+tieths?|hundredths?|thousandths?"
)
_ALL: Final = r"all|every|each|none|both|no|many|few|several|some|single|one"
_OUTRIGHT: Final = (
    r"most|mostly|majorit\w+|minorit\w+|millions?|billions?|trillions?|dozens?|nobody|no one"
    r"|everyone|everybody|universally|unanimous\w*|overwhelmingly|predominantly"
)
_OF_ANY_KIND: Final = re.compile(
    # What a template has as one expression is allowed as that expression only.
    r"most often \w+|(?:\d+ )?(?:largest|biggest|smallest)"
    rf"|\b(?:{_NUMBERS}|{_PARTS}|{_ALL}|{_OUTRIGHT}"
    r"|nearly|almost|virtually|practically|everything|scores|vast|zero|nothing|nil|first|second"
    r"|secondly|twice|thrice|double\w*|triple\w*|treble\w*"
    r"|quadruple\w*|\w+fold|times|once|fewer|fewest|least|highest|lowest|main|mainly|largely|entire"
    r"|entirely|whole|always|never|numerous|countless|handful|couple|pair|bulk|rest|remainder"
    r"|percentages?|points?|not|\w+n['\u2019]t|cannot|without|neither|nor|except|excluding"
    r"|rise|rises|rising|rose|risen|fall|falls|falling|fell|fallen|grow|grows|growing|grew|grown|increas\w+|decreas\w+"
    r"|declin\w+|drop\w*)\b"
    r"|\b(?:over|under|above|below|beyond|than|up to|about|around|roughly|approximately|only|just)"
    r"(?=\s+\d)",
    re.IGNORECASE,
)
_PEOPLE: Final = (
    r"(?:people|persons?|patients?|respondents?|participants?|answers|responses|comments|employees?|customers?|students?|visitors?|guests?|residents?"
    r"|users?|staff members|members|them|who|say|complain|praise)\b"
)
_OF_PEOPLE: Final = re.compile(
    rf"\b(?:{_OUTRIGHT})\b|\b(?:{_NUMBERS}|{_PARTS}|{_ALL}|\d[\d.,]*)\s+(?:of\b|(?:\w+\s+)?{_PEOPLE})"
    r"|\d\s*(?:%|per\s?cent)",
    re.IGNORECASE,
)


def words_of_quantity(text: str) -> set[str]:
    """All of them, case folded; some as the expression that they are a part of."""
    return {match.group().casefold() for match in _OF_ANY_KIND.finditer(text)}


def quantities_of_people(text: str) -> list[str]:
    """Words and figures that say how many people or answers; fine are "two hours" and the like."""
    return [match.group() for match in _OF_PEOPLE.finditer(text)]
