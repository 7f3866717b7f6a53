from app.pipelines.thematic.label import Lexicon
from app.pipelines.thematic.words import is_stop

PARKING = ["Parking fees are high", "The parking fees", "Parking is far", "High fees for parking"]
STAFF = ["Friendly staff", "Staff were friendly", "friendly staff, kind", "kind staff"]
SERVICE = ["Good service", "service was good", "a good service", "the service"]


def names(*groups: list[str], ignored: frozenset[str] = frozenset()) -> list[str]:
    texts = [text for group in groups for text in group]
    group_of = [at for at, group in enumerate(groups) for _ in group]
    lexicon = Lexicon(texts, [1] * len(texts), ignored)
    return lexicon.names(lexicon.rank(group_of, [0] * len(texts)))


def test_names_are_what_people_write() -> None:
    assert names(PARKING, STAFF, SERVICE) == [
        "Parking fees, high",
        "Friendly staff, kind",
        "Good service",
    ]


def test_no_word_stands_in_a_name_twice() -> None:
    for name in names(PARKING, STAFF, SERVICE):
        words = name.casefold().replace(",", "").split()
        assert len(words) == len(set(words))


def test_two_groups_of_the_same_words_have_different_names() -> None:
    assert len(set(names(STAFF, STAFF, STAFF))) == 3


def test_words_of_the_question_name_nothing() -> None:
    assert "arking" not in names(PARKING, STAFF, ignored=frozenset({"park", "parking"}))[0]


def test_a_group_without_words_still_has_a_name() -> None:
    assert names(["111", "222"], STAFF)[0] == "Theme (1)"


def test_people_weigh_and_not_texts() -> None:
    texts = ["parking", "food", "food and parking", "staff"]
    few = Lexicon(texts, [1, 9, 1, 1]).rank([0, 0, 0, 1], [0, 0, 0, 0])
    many = Lexicon(texts, [9, 1, 1, 1]).rank([0, 0, 0, 1], [0, 0, 0, 0])
    assert next(iter(few[0].people.most_common(1)))[0] == ("food",)
    assert next(iter(many[0].people.most_common(1)))[0] == ("park",)


def test_siblings_are_told_apart_by_what_they_do_not_share() -> None:
    texts = ["staff kind", "staff kind", "staff rude", "staff rude", "parking", "parking fees"]
    lexicon = Lexicon(texts, [1] * 6)
    kind, rude, _ = lexicon.rank([0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1])
    assert "kind" in lexicon.keywords(kind)[0]
    assert "rude" in lexicon.keywords(rude)[0]


def test_keywords_hold_no_stop_word() -> None:
    texts = [*PARKING, *STAFF, "It was what it was and they did not do it"]
    lexicon = Lexicon(texts, [1] * len(texts))
    ranked = lexicon.rank([0] * len(texts), [0] * len(texts))
    words = [word for keyword in lexicon.keywords(ranked[0]) for word in keyword.split()]
    assert words
    assert not any(map(is_stop, words))
