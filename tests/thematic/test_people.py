import random

from thematic.surveys import analyse, primary_themes, problems

from app.pipelines.thematic.label import Lexicon
from app.pipelines.thematic.people import People, as_people

# Two people say text 0; one says 1, 2 and 3, two say 2 and 3, one says 3 alone.
PEOPLE = People([2, 1, 3, 4], [[1, 2, 3], [2, 3], [3, 2]])


def test_a_group_has_the_people_of_its_texts_each_once() -> None:
    assert PEOPLE == [2, 1, 3, 4]
    assert PEOPLE.total == 6
    assert PEOPLE.by_group([0, 0, 0, 0]) == {0: 6}
    assert PEOPLE.by_group([0, 0, 1, 1]) == {0: 3, 1: 4}
    assert PEOPLE.by_group([-1, 0, 1, 0]) == {-1: 2, 0: 4, 1: 3}


def test_some_of_the_texts_have_the_people_who_say_them() -> None:
    some = PEOPLE.only([3, 1, 0])
    assert some == [4, 1, 2]
    assert some.total == 6
    assert some.by_group([0, 0, 1]) == {0: 4, 1: 2}


def test_mere_numbers_are_people_of_one_text_each() -> None:
    assert as_people([3, 4]).total == 7
    assert as_people(PEOPLE) is PEOPLE


def test_a_term_counts_once_per_person_and_group() -> None:
    texts = ["parking fees", "parking bay", "nurse parking", "nurse"]
    lexicon = Lexicon(texts, People([1, 1, 1, 1], [[0, 1, 2, 3]]))
    first, second = lexicon.rank([0, 0, 1, 1], [0, 0, 0, 0])
    assert (first.size, second.size) == (1, 1)
    assert set(first.people.values()) == {1}
    assert second.people[("nurs",)] == 1


def long_answer(draw: random.Random) -> str:
    words = [
        "parking",
        "ticket",
        "barrier",
        "lane",
        "bay",
        "car",
        "meter",
        "fine",
        "permit",
        "disabled",
        "kerb",
        "tarmac",
    ]
    sentence = "The {} {} by the {} {} was awful and the {} never worked at all today."
    return " ".join(sentence.format(*draw.choices(words, k=5)) for _ in range(60))


def test_one_person_is_no_theme_of_five() -> None:
    draw = random.Random(0)  # noqa: S311 - a repeatable text
    answers = [f"The nurse was kind and listened to me on visit {n}" for n in range(40)]
    answers += [f"Hospital food was cold and tasted bland on day {n}" for n in range(40)]
    answers.append(long_answer(draw))
    result = analyse({"answers": answers})
    assert result["input"]["split"] == 1
    assert primary_themes(result)[-1] == "other"
    assert all(t["responses"] >= 5 for t in result["themes"] if t["parent"] is None)
    assert problems(result, {str(at): text for at, text in enumerate(answers, 1)}) == []
