"""Datasets: stored whole or not at all, read by pages in the order of their rows."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract.steps import claimed, complete, new_job
from contract.stores import Store

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.errors import (
    DatasetError,
    DatasetInUseError,
    DatasetNotFoundError,
    HaulageError,
    InvalidJsonError,
    TooLargeError,
)
from app.domain.sharing import (
    DATASET_PAGE_ROWS,
    DATASETS_OF_FILE,
    MAX_CELL_CHARACTERS,
    MAX_DATASET_BYTES,
    MAX_DATASET_COLUMNS,
    MAX_DATASET_HEADER_BYTES,
    MAX_DATASET_ROW_BYTES,
    MAX_DATASET_ROWS,
    MAX_PAGE_BYTES,
    Dataset,
    dataset_of,
)

COLUMNS = ("id", "text")
ROWS = [["1", "the staff"], ["2", ""], ["3", 'a "quote",\na line and {braces} \\ 日本']]
SHA256 = "ab" * 32
DETECTED = {"encoding": "utf-8", "questions": {"text": "What is good?"}}


async def stored(db: DBInterface, rows: list[list[str]] = ROWS) -> Dataset:
    return await db.insert_dataset(
        "answers.csv", COLUMNS, iter(rows), sha256=SHA256, detected=DETECTED
    )


async def test_a_dataset_comes_back_as_it_was_stored(store: Store, db: DBInterface) -> None:
    dataset = await stored(db)
    other = store.connect()
    at = dataset.created_at

    assert dataset == Dataset(dataset.id, "answers.csv", COLUMNS, 3, DETECTED, SHA256, at)
    assert await other.get_dataset(dataset.id) == dataset
    assert await other.list_dataset_rows(dataset.id, [0, 1]) == [
        (number, row) for number, row in enumerate(ROWS, start=1)
    ]


async def test_columns_are_chosen_by_their_position(db: DBInterface) -> None:
    dataset = await stored(db)

    assert await db.list_dataset_rows(dataset.id, [1]) == [
        (number, [row[1]]) for number, row in enumerate(ROWS, start=1)
    ]
    assert await db.list_dataset_rows(dataset.id, [1, 0, 1], after_row=2) == [
        (3, [ROWS[2][1], "3", ROWS[2][1]])
    ]


async def test_rows_come_in_pages(db: DBInterface) -> None:
    count = 2 * DATASET_PAGE_ROWS + 1
    dataset = await stored(db, [[str(n), "x"] for n in range(1, count + 1)])
    assert dataset.row_count == count

    sizes, seen, after = [], [], 0
    while page := await db.list_dataset_rows(dataset.id, [0], after_row=after):
        sizes.append(len(page))
        seen += [cells[0] for _, cells in page]
        after = page[-1][0]

    assert sizes == [DATASET_PAGE_ROWS, DATASET_PAGE_ROWS, 1]
    assert seen == [str(n) for n in range(1, count + 1)]


async def test_an_empty_table_is_a_dataset(db: DBInterface) -> None:
    dataset = await stored(db, [])

    assert (await db.get_dataset(dataset.id)).row_count == 0
    assert await db.list_dataset_rows(dataset.id, [0]) == []


async def test_the_same_file_again_is_a_dataset_of_its_own(db: DBInterface) -> None:
    first, second = await stored(db), await stored(db)
    await db.insert_dataset("b.csv", COLUMNS, [], sha256="cd" * 32, detected={})

    assert first.id != second.id
    assert await db.list_datasets_of_file(SHA256) == [second, first]
    assert await db.list_datasets_of_file("ef" * 32) == []


async def test_only_the_newest_datasets_of_a_file_are_listed(db: DBInterface) -> None:
    made = [(await stored(db, [])).id for _ in range(DATASETS_OF_FILE + 1)]

    listed = await db.list_datasets_of_file(SHA256)
    assert [dataset.id for dataset in listed] == made[:0:-1]


@pytest.mark.parametrize("dataset_id", [new_id(), "no id", ""])
async def test_an_unknown_dataset_is_told(db: DBInterface, dataset_id: str) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        await db.get_dataset(dataset_id)
    assert caught.value.dataset_id == dataset_id
    assert await db.list_dataset_rows(dataset_id, [0]) == []


BROKEN: dict[str, tuple[list[str], type[HaulageError], str]] = {
    "too narrow": (["1"], DatasetError, r"row 1001: 1 cells under 2 columns"),
    "too wide": (["1", "a", "b"], DatasetError, r"row 1001: 3 cells"),
    "NUL": (["1", "a\x00b"], DatasetError, r"row 1001, column 'text': NUL"),
    "surrogate": (["\ud800", "a"], DatasetError, r"row 1001, column 'id': .*surrogate"),
    "long cell": (["1", "x" * (MAX_CELL_CHARACTERS + 1)], DatasetError, r"row 1001.*100001"),
}


@pytest.mark.parametrize(("row", "error", "message"), BROKEN.values(), ids=BROKEN)
async def test_nothing_is_stored_when_a_row_is_refused(
    store: Store, db: DBInterface, row: list[str], error: type[HaulageError], message: str
) -> None:
    rows = [["1", "fine"]] * 1_000 + [row]

    with pytest.raises(error, match=message):
        await stored(db, rows)

    assert await store.count_datasets() == (0, 0)


async def test_nothing_is_stored_when_the_rows_break_off(store: Store, db: DBInterface) -> None:
    def rows() -> Iterator[list[str]]:
        for number in range(2_500):
            yield [str(number), "x"]
        raise RuntimeError("the upload broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        await db.insert_dataset("a", COLUMNS, rows(), sha256=SHA256, detected={})

    assert await store.count_datasets() == (0, 0)
    assert (await stored(db)).row_count == 3


async def test_nothing_is_stored_when_the_writer_gives_up_half_way(
    store: Store, db: DBInterface
) -> None:
    half_way = asyncio.Event()

    def rows() -> Iterator[list[str]]:
        for number in range(100_000):
            if number == 5_000:
                half_way.set()
            yield [str(number), "x"]

    writing = asyncio.ensure_future(
        db.insert_dataset("a", COLUMNS, rows(), sha256=SHA256, detected={})
    )
    await half_way.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert await store.count_datasets() == (0, 0)


async def test_sizes_are_bounded(store: Store, db: DBInterface) -> None:
    cell = "x" * MAX_CELL_CHARACTERS
    many = ([cell, cell] for _ in range(MAX_DATASET_BYTES // (2 * len(cell)) + 1))
    with pytest.raises(TooLargeError):
        await db.insert_dataset("a", COLUMNS, many, sha256=SHA256, detected={})

    with pytest.raises(DatasetError, match="more than 200000 rows"):
        await db.insert_dataset(
            "a", [], ([] for _ in range(MAX_DATASET_ROWS + 1)), sha256=SHA256, detected={}
        )
    with pytest.raises(DatasetError, match="1001 columns"):
        await db.insert_dataset(
            "a", ["c"] * (MAX_DATASET_COLUMNS + 1), [], sha256=SHA256, detected={}
        )
    with pytest.raises(InvalidJsonError):
        await db.insert_dataset("a\x00", COLUMNS, [], sha256=SHA256, detected={})
    with pytest.raises(InvalidJsonError):
        await db.insert_dataset("a", COLUMNS, [], sha256=SHA256, detected={"x": float("nan")})

    assert await store.count_datasets() == (0, 0)


async def test_a_row_and_a_header_have_bounds_of_their_own(store: Store, db: DBInterface) -> None:
    cell = "x" * MAX_CELL_CHARACTERS
    count = MAX_DATASET_ROW_BYTES // len(cell)
    columns = [f"c{n}" for n in range(count)]
    dataset = await db.insert_dataset("a", columns, [[cell] * count], sha256=SHA256, detected={})
    assert await db.list_dataset_rows(dataset.id, [0, count - 1]) == [(1, [cell, cell])]
    await db.delete_dataset(dataset.id)

    with pytest.raises(TooLargeError, match="row 2 of a dataset"):
        await db.insert_dataset(
            "a",
            [*columns, "one more"],
            [["x"] * (count + 1), [cell] * (count + 1)],
            sha256=SHA256,
            detected={},
        )
    long_names = [cell] * (MAX_DATASET_HEADER_BYTES // len(cell) + 1)
    with pytest.raises(TooLargeError, match="the columns of a dataset"):
        await db.insert_dataset("a", long_names, [], sha256=SHA256, detected={})
    fitting = long_names[1:]
    dataset = await db.insert_dataset("a", fitting, [], sha256=SHA256, detected={})
    assert list((await db.get_dataset(dataset.id)).columns) == fitting
    await db.delete_dataset(dataset.id)
    assert await store.count_datasets() == (0, 0)


async def test_datasets_are_listed_the_newest_first(db: DBInterface) -> None:
    made = [await stored(db) for _ in range(4)]

    first = await db.list_datasets(3)
    assert [item.id for item in first] == [dataset.id for dataset in made[:0:-1]]
    assert [(item.name, item.row_count, item.column_count) for item in first] == [
        ("answers.csv", 3, 2)
    ] * 3
    assert [item.created_at for item in first] == [dataset.created_at for dataset in made[:0:-1]]
    await db.delete_dataset(first[-1].id)
    assert [item.id for item in await db.list_datasets(3, before_id=first[-1].id)] == [made[0].id]
    assert await db.list_datasets(3, before_id=made[0].id) == []


async def test_rows_come_as_json_in_pages(db: DBInterface) -> None:
    dataset = await stored(db)

    page = await db.list_dataset_json(dataset.id, 2)
    assert [(row.row_no, json.loads(row.text)) for row in page] == [(1, ROWS[0]), (2, ROWS[1])]
    page = await db.list_dataset_json(dataset.id, 2, after_row=2)
    assert [(row.row_no, json.loads(row.text)) for row in page] == [(3, ROWS[2])]
    for dataset_id, after in ((dataset.id, 3), (new_id(), 0), ("no id", 0)):
        assert await db.list_dataset_json(dataset_id, 2, after_row=after) == []


async def test_a_page_of_json_is_bounded_but_never_empty(db: DBInterface) -> None:
    # Each sign is six bytes of JSON.
    long = "\x01" * (MAX_PAGE_BYTES // 18)
    rows = [["", long]] * 4 + [[long, long]]
    dataset = await stored(db, [*rows, ["", "short"]])

    assert [row.row_no for row in await db.list_dataset_json(dataset.id, 10)] == [1, 2]
    assert [row.row_no for row in await db.list_dataset_json(dataset.id, 10, after_row=3)] == [4]
    huge = await db.insert_dataset(
        "a", ["c"] * 3, [[long] * 3, ["", "", ""]], sha256=SHA256, detected={}
    )
    assert [row.row_no for row in await db.list_dataset_json(huge.id, 10)] == [1]
    assert [row.row_no for row in await db.list_dataset_json(huge.id, 10, after_row=1)] == [2]


async def test_a_dataset_is_removed_with_its_rows(store: Store, db: DBInterface) -> None:
    gone, kept = await stored(db), await stored(db)

    await db.delete_dataset(gone.id)

    assert await store.count_datasets() == (1, 3)
    assert await db.get_dataset(kept.id) == kept
    for dataset_id in (gone.id, new_id(), "no id"):
        with pytest.raises(DatasetNotFoundError):
            await db.delete_dataset(dataset_id)


async def test_a_dataset_stays_while_a_job_that_has_not_ended_names_it(
    store: Store, db: DBInterface
) -> None:
    dataset = await stored(db)
    job = await claimed(db)
    await store.name_dataset(job.id, dataset.id)
    waiting = await new_job(db)
    await store.name_dataset(waiting, dataset.id)

    for end in (complete(db, job), db.cancel_job(waiting)):
        with pytest.raises(DatasetInUseError) as caught:
            await db.delete_dataset(dataset.id)
        assert caught.value.dataset_id == dataset.id
        await end

    await db.delete_dataset(dataset.id)
    assert await store.count_datasets() == (0, 0)
    assert (await db.get_result(job.id)) == b'"done"'


def test_a_payload_names_a_dataset_by_its_id() -> None:
    dataset_id = new_id()

    assert dataset_of({"dataset": {"id": dataset_id, "other": 1}}) == dataset_id
    assert dataset_of({"dataset": {"id": dataset_id.upper()}}) == dataset_id
    others: list[Any] = [None, dataset_id, [], {}, {"id": None}, {"id": 7}, {"id": "imagenet"}]
    for named in others:
        assert dataset_of({"dataset": named}) is None
    assert dataset_of({}) is None
