"""Answers inline and of stored datasets: ids, texts, groups, questions, and what is refused."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from thematic.recording import RecordingContext

from app.domain.errors import DatasetError
from app.domain.sharing import Dataset
from app.pipelines.thematic.load import MAX_GROUP_NAME, MAX_GROUPS, Answers, asked, load
from app.pipelines.thematic.parameters import ParameterError, parse_request

STORED = "0192d3a4-0000-7000-8000-000000000001"
ROWS = [
    {"ResponseId": "R_1", "Q1": "Nothing", "Q2": "More parking", "Ward": "A"},
    {"ResponseId": "R_2", "Q1": "The staff", "Q2": "", "Ward": ""},
]
FACTS = {
    "encoding": "utf-16-le",
    "header_rows": 3,
    "dropped_columns": ["IPAddress"],
    "questions": {"Q1": "What did you like?", "Q2": "What could be better?"},
    "text_column": "Q1",
    "id_column": "ResponseId",
}


class Store(RecordingContext):
    """One stored dataset."""

    def __init__(
        self, rows: Sequence[Mapping[str, str]] = ROWS, facts: Mapping[str, Any] = FACTS
    ) -> None:
        super().__init__()
        self.rows = rows
        self.facts = facts
        self.asked_for: list[str] = []

    async def dataset(self, dataset_id: str) -> Dataset:
        if dataset_id != STORED:
            raise DatasetError(f"no dataset {dataset_id}")
        columns = tuple(self.rows[0])
        return Dataset(STORED, "survey.csv", columns, len(self.rows), self.facts, "0" * 64)

    async def dataset_rows(
        self, dataset_id: str, columns: Sequence[str]
    ) -> AsyncIterator[Mapping[str, str]]:
        self.asked_for = list(columns)
        for row in self.rows:
            yield {column: row[column] for column in columns}


def inline(payload: dict[str, Any]) -> Answers:
    return asyncio.run(load(parse_request(payload), RecordingContext()))


def stored(context: Store | None = None, max_answers: int = 100, **payload: Any) -> Answers:
    request = parse_request({"dataset": {"id": STORED}, **payload})
    return asyncio.run(load(request, context or Store(), max_answers))


def test_plain_texts_are_numbered() -> None:
    answers = inline({"answers": ["a", "b"]})
    assert (answers.ids, answers.texts) == (["1", "2"], ["a", "b"])
    assert (answers.columns, answers.questions, answers.source) == (["text"], [None], {})


def test_objects_give_ids_texts_and_groups() -> None:
    answers = inline(
        {
            "answers": [
                {"n": 7, "said": "a", "where": "north"},
                {"n": 8, "said": None},
                {"n": 9, "where": 3},
            ],
            "id_column": "n",
            "text_column": "said",
            "group_by": ["where"],
        }
    )
    assert answers.ids == ["7", "8", "9"]
    assert answers.texts == ["a", "", ""]
    assert answers.groups == {"where": ["north", "(none)", "3"]}


def test_several_columns_give_several_answers_per_row() -> None:
    answers = inline(
        {
            "answers": [{"id": 1, "a": "x", "b": "y", "g": "n"}, {"id": 2, "a": "z", "g": "s"}],
            "id_column": "id",
            "text_column": ["a", "b"],
            "question": {"b": "What could be better?"},
            "group_by": ["g"],
        }
    )
    assert answers.ids == ["1/a", "1/b", "2/a", "2/b"]
    assert answers.texts == ["x", "y", "z", ""]
    assert answers.groups == {"g": ["n", "n", "s", "s"]}
    assert answers.questions == [None, "What could be better?"]
    assert answers.column_of == [0, 1, 0, 1]
    assert asked(answers) == "What could be better?"


def test_ids_of_several_columns_are_unique_too() -> None:
    rows = [{"id": "1", "b": "x", "a/b": "x"}, {"id": "1/a", "b": "x", "a/b": "x"}]
    payload = {"answers": rows, "id_column": "id", "text_column": ["a/b", "b"]}
    with pytest.raises(ParameterError, match="make ids unique"):
        inline(payload)


def test_a_question_for_another_column_is_refused() -> None:
    payload = {"answers": [], "text_column": "a", "question": {"b": "Why?"}}
    with pytest.raises(ParameterError, match="no column of answers"):
        parse_request(payload)


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        ({"answers": ["a", {"text": "b"}]}, "answers[0]"),
        ({"answers": [{"text": "a"}, 5]}, "answers[1]"),
        ({"answers": [{"text": 5}]}, "answers[0].text"),
        ({"answers": [{"said": "a"}]}, "text_column"),
        ({"answers": [{"text": "a"}], "id_column": "id"}, "id_column"),
        ({"answers": [{"text": "a", "id": ""}], "id_column": "id"}, "answers[0].id"),
        ({"answers": [{"text": "a", "id": 1}, {"text": "b", "id": "1"}], "id_column": "id"}, "id"),
        ({"answers": [{"text": "a"}], "group_by": ["region"]}, "group_by"),
        ({"answers": [{"text": "a", "g": []}], "group_by": ["g"]}, "answers[0].g"),
        ({"answers": ["a"], "group_by": ["g"]}, "group_by"),
        ({"answers": ["a"], "text_column": ["a", "b"]}, "text_column"),
        ({"answers": [{"a": "x"}], "text_column": ["a", "b"]}, "text_column"),
    ],
)
def test_a_wrong_answer_is_refused_by_its_place(payload: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        inline(payload)
    assert caught.value.name == name


def test_a_column_of_free_text_is_no_group() -> None:
    rows = [{"text": "a", "g": str(number)} for number in range(MAX_GROUPS + 1)]
    with pytest.raises(ParameterError, match="different values"):
        inline({"answers": rows, "group_by": ["g"]})


def test_the_name_of_a_group_is_no_long_text() -> None:
    rows = [{"text": "a", "g": "g" * (MAX_GROUP_NAME + 1)}]
    with pytest.raises(ParameterError, match="at most 200 characters") as caught:
        inline({"answers": rows, "group_by": ["g"]})
    assert caught.value.name == "answers[0].g"
    rows[0]["g"] = "g" * MAX_GROUP_NAME
    assert inline({"answers": rows, "group_by": ["g"]}).groups == {"g": ["g" * MAX_GROUP_NAME]}


@pytest.mark.parametrize("answers", [[{"text": "a"}, "my own words"], [{"text": ["my own words"]}]])
def test_an_error_shows_no_answer(answers: list[Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        inline({"answers": answers})
    assert "my own words" not in str(caught.value)


def test_a_dataset_tells_its_columns_questions_and_file() -> None:
    store = Store()
    answers = stored(store)
    assert answers.ids == ["R_1", "R_2"]
    assert answers.texts == ["Nothing", "The staff"]
    assert answers.questions == ["What did you like?"]
    assert answers.source == {
        "id": STORED,
        "encoding": "utf-16-le",
        "header_rows": 3,
        "dropped_columns": ["IPAddress"],
    }
    assert store.asked_for == ["Q1", "ResponseId"]


def test_a_payload_may_choose_other_columns_and_questions_of_a_dataset() -> None:
    answers = stored(text_column=["Q1", "Q2"], group_by=["Ward"], question={"Q1": "What was good?"})
    assert answers.ids == ["R_1/Q1", "R_1/Q2", "R_2/Q1", "R_2/Q2"]
    assert answers.questions == ["What was good?", "What could be better?"]
    assert answers.groups == {"Ward": ["A", "A", "(none)", "(none)"]}


def test_a_dataset_without_facts_is_read_by_the_default_column() -> None:
    answers = stored(Store([{"text": "a"}, {"text": "b"}], {}))
    assert (answers.ids, answers.texts) == (["1", "2"], ["a", "b"])
    assert answers.source["encoding"] is None


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        ({"text_column": "Q9"}, "text_column"),
        ({"group_by": ["Q9"]}, "group_by"),
        ({"id_column": "Q9"}, "id_column"),
        ({"id_column": "Ward"}, "answers[1].Ward"),
    ],
)
def test_columns_that_a_dataset_lacks_are_refused(payload: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        stored(**payload)
    assert caught.value.name == name


def test_too_many_rows_are_refused_before_they_are_read() -> None:
    store = Store()
    with pytest.raises(ParameterError, match="4 answers"):
        stored(store, max_answers=3, text_column=["Q1", "Q2"])
    assert store.asked_for == []


def test_an_unknown_dataset_is_refused() -> None:
    request = parse_request({"dataset": {"id": STORED.replace("1", "2")}})
    with pytest.raises(DatasetError, match="no dataset"):
        asyncio.run(load(request, Store()))


@pytest.mark.parametrize(
    "payload",
    [
        {"dataset": {"id": "/etc/passwd"}},
        {"dataset": {"id": "https://example.org/survey.csv"}},
        {"dataset": "/srv/survey.csv"},
        {"dataset": {"path": "/srv/survey.csv"}},
        {"dataset": {"id": STORED}, "answers": ["a"]},
        {"answers": "/srv/survey.csv"},
        {"answers": "https://example.org/survey.csv"},
        {"file": "/srv/survey.csv"},
        {"url": "https://example.org/survey.csv"},
    ],
)
def test_a_path_or_an_address_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        parse_request(payload)


@pytest.mark.parametrize("custom", ["Foster", [""], ["a" * 101], [7], ["a"] * 501])
def test_words_to_mask_are_bounded(custom: object) -> None:
    with pytest.raises(ParameterError, match=r"redact\.custom"):
        parse_request({"answers": [], "redact": {"custom": custom}})
