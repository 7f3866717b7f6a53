"""How many people: told from how many hours, in the languages that answers are mostly in."""

import pytest

from app.pipelines.thematic.quantities import quantities_of_people
from app.results.verifying import unexplained_figures


@pytest.mark.parametrize(
    "text",
    [
        "Most people are content with the parking",
        "Two patients fell",
        "Half of them wait",
        "Parking, say 99 patients",
        "Die meisten loben das Parken",
        "Viele Befragte klagen über das Essen",
        "Zwei der Patientinnen warten",
        "Die Hälfte wartet lange",
        "Fast alle sind zufrieden",
        "Keine Mitarbeitenden sind freundlich",
        "97 Prozent warten",
        "La plupart attendent",
        "Plusieurs patients attendent",
        "Beaucoup de personnes se plaignent",
        "La moitié attend",
        "97 pour cent attendent",
        "La mayoría espera",
        "Muchos pacientes esperan",
        "Dos de los pacientes esperan",
        "97 por ciento espera",
        "La maggior parte aspetta",
        "Molti pazienti aspettano",
        "Tre delle persone aspettano",
        "De meeste wachten lang",
        "Veel mensen wachten",
        "Twee van de klanten wachten",
        "97 procent wacht",
    ],
)
def test_how_many_people_is_found(text: str) -> None:
    assert quantities_of_people(text)


@pytest.mark.parametrize(
    "text",
    [
        "People wait two hours for a bed and one nurse comes",
        "The single rooms and the first appointment",
        "Zwei Stunden Wartezeit und ein Bett im Flur; Termine im Wohnviertel",
        "Deux heures d'attente et un lit dans le couloir; un cours de danse",
        "Dos horas de espera y una cama en el pasillo",
        "Due ore di attesa e un letto nel corridoio",
        "Twee uur wachten en een bed op de gang",
        "Comments on the ten-minute walk; half an hour late",
    ],
)
def test_how_much_of_anything_else_is_fine(text: str) -> None:
    assert quantities_of_people(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "in zwölf Antworten",
        "die Hälfte",
        "achtzig Personen",
        "dans quatre-vingts réponses",
        "la moitié",
        "en ochenta respuestas",
        "la mitad",
        "in ottanta risposte",
        "in tachtig antwoorden",
        "in LXXX answers",
        "in XII answers",
        "in CXX answers",
        "in IX answers",
    ],
)
def test_numbers_in_words_and_roman_signs_are_explained_by_nothing(text: str) -> None:
    assert unexplained_figures(text, {"responses": 80, "other": 12})


@pytest.mark.parametrize(
    "text",
    [
        "I mention the CV, the LCD and the mix of staff of ward C",
        "“XII” and “zwölf” are names",
        "The largest theme is “A”: 80 answers.",
        "Once due, always due",
    ],
)
def test_words_that_are_no_numbers_pass(text: str) -> None:
    assert unexplained_figures(text, {"responses": 80}) == []
