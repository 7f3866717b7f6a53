"""What can be stored and comes back unchanged, where the rest is refused, errors as text."""

import json
import math
import sys
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

import pytest

from app.domain.errors import InvalidJsonError, TooLargeError
from app.domain.jobs import (
    MAX_JSON_DEPTH,
    MAX_TEXT_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
)
from app.domain.json_values import (
    check_size,
    check_storable,
    describe_exception,
    dump_storable,
    storable_text,
)

LIMIT = 1_000_000


def _shown(value: object) -> str:
    # Python refuses to print integers of more than 4,300 digits.
    is_long = isinstance(value, int) and value.bit_length() > 100
    return "a long integer" if is_long else ascii(value)[:30]


def nested(levels: int, *, as_objects: bool = False) -> Any:
    """An array or object that is `levels` deep."""
    value: Any = {} if as_objects else []
    for _ in range(levels - 1):
        value = {"k": value} if as_objects else [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**53 + 1,
        2**64,
        -(2**200),
        10**999,
        0.1,
        1e308,
        5e-324,
        "",
        "plain",
        "naïve 日本 🧵 \u2028 \x01 \x1f \x7f",
        "\ud83e\uddf5".encode("utf-16", "surrogatepass").decode("utf-16"),
        [],
        {},
        {"": {"": []}},
        [[], {}, [None, True, 1, 1.5, "x"]],
        nested(MAX_JSON_DEPTH),
        nested(MAX_JSON_DEPTH, as_objects=True),
    ],
    ids=_shown,
)
def test_a_value_comes_back_unchanged_when_it_is_accepted(value: Any) -> None:
    assert json.loads(dump_storable(value, "payload", LIMIT)) == value


def test_the_text_is_compact_and_keeps_unicode() -> None:
    assert dump_storable({"ö": [1, "日"]}, "payload", LIMIT) == '{"ö":[1,"日"]}'


def test_a_tuple_counts_as_an_array_and_a_subclass_as_its_base() -> None:
    assert dump_storable((1, (2,)), "payload", LIMIT) == "[1,[2]]"
    assert dump_storable(OrderedDict(a=1), "payload", LIMIT) == '{"a":1}'


@pytest.mark.parametrize(
    ("value", "pointer", "reason"),
    [
        ("a\x00b", "", "NUL"),
        ({"a": ["x", "\x00"]}, "/a/1", "NUL"),
        ({"a": {"\x00": 1}}, "/a", "NUL"),
        ("\ud800", "", "surrogate"),
        ({"deep": [{"x": "\udfff"}]}, "/deep/0/x", "surrogate"),
        ({"\udc80": 1}, "", "surrogate"),
        (math.nan, "", "NaN"),
        ([math.inf], "/0", "infinities"),
        ({"a": -math.inf}, "/a", "infinities"),
        (10**1_001, "", "digits"),
        (-(10**4_000), "", "digits"),
        ({1: "x"}, "", "not a string"),
        ({"a": {None: "x"}}, "/a", "not a string"),
        ({"a": {("b",): "x"}}, "/a", "not a string"),
        ({"a": {1, 2}}, "/a", "set"),
        ([datetime(2024, 1, 1, tzinfo=UTC)], "/0", "datetime"),
        ([b"bytes"], "/0", "bytes"),
        ({"a/b": {"c~d": "\x00"}}, "/a~1b/c~0d", "NUL"),
        ({"~1": ["\x00"]}, "/~01/0", "NUL"),
        ({"": {"": "\x00"}}, "//", "NUL"),
    ],
    ids=_shown,
)
def test_the_place_is_named_when_a_value_cannot_be_stored(
    value: Any, pointer: str, reason: str
) -> None:
    with pytest.raises(InvalidJsonError) as caught:
        dump_storable(value, "payload", LIMIT)

    assert caught.value.pointer == pointer
    assert reason in caught.value.reason
    assert str(caught.value) == f"{pointer or '/'}: {caught.value.reason}"
    assert str(caught.value).encode()


def test_a_value_is_refused_when_it_cannot_even_be_printed() -> None:
    with pytest.raises(InvalidJsonError, match="/n: integer"):
        check_storable({"n": 10**5_000})
    with pytest.raises(InvalidJsonError, match="key of type int"):
        check_storable({10**5_000: "x"})


@pytest.mark.parametrize("as_objects", [False, True], ids=["arrays", "objects"])
@pytest.mark.parametrize("levels", [MAX_JSON_DEPTH + 1, 200, 1_200, 100_000])
def test_a_value_is_refused_at_the_limit_when_it_is_too_deep(
    levels: int, *, as_objects: bool
) -> None:
    with pytest.raises(InvalidJsonError) as caught:
        check_storable(nested(levels, as_objects=as_objects))

    assert caught.value.pointer == ("/k" if as_objects else "/0") * MAX_JSON_DEPTH
    assert "100 levels" in caught.value.reason


def test_a_value_is_refused_when_it_contains_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(InvalidJsonError, match="deeper"):
        check_storable(endless)


def test_the_recursion_limit_does_not_matter_to_the_depth_that_is_allowed() -> None:
    before = sys.getrecursionlimit()
    depth = len(_frames())
    sys.setrecursionlimit(depth + MAX_JSON_DEPTH // 2)
    try:
        check_storable(nested(MAX_JSON_DEPTH))
    finally:
        sys.setrecursionlimit(before)


def test_size_counts_bytes_of_utf8() -> None:
    assert check_size("é" * 5, "payload", 10) == "é" * 5
    assert check_size("x" * 10, "payload", 10) == "x" * 10
    with pytest.raises(TooLargeError) as caught:
        check_size("é" * 6, "payload", 10)

    error = caught.value
    assert (error.what, error.size_bytes, error.limit_bytes) == ("payload", 12, 10)
    assert str(error) == "payload of 12 bytes exceeds the limit of 10 bytes"


def test_a_value_is_refused_when_its_text_exceeds_the_limit() -> None:
    assert len(dump_storable("x" * 98, "result", 100)) == 100
    with pytest.raises(TooLargeError, match="result of 101 bytes"):
        dump_storable("x" * 99, "result", 100)


@pytest.mark.parametrize("number", [1e300, -1e300, 1e-300, 5e-324, 1.7976931348623157e308])
def test_a_value_is_refused_when_its_numbers_are_too_large_once_written_out(number: float) -> None:
    # The database writes 300 digits for each; the text that is sent has ten.
    assert dump_storable([number] * 30, "result", 10_000)
    with pytest.raises(TooLargeError, match=r"result with its numbers written out of 1\d{4} "):
        dump_storable({"deep": [[number] * 40]}, "result", 10_000)


def test_text_that_looks_like_large_numbers_counts_as_it_is() -> None:
    assert dump_storable(["1e+300"] * 100, "result", 10_000)
    assert dump_storable({"1e+300,": [0.5, 1e15, 1] * 100}, "result", 10_000)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
        ("a\ud800b", "a?b"),
        ("🧵", "🧵"),
    ],
)
def test_text_is_cleaned_when_it_could_not_be_stored(text: str, clean: str) -> None:
    assert storable_text(text) == clean


def test_text_is_cut_visibly_when_it_is_too_long() -> None:
    assert storable_text("x" * MAX_TEXT_CHARACTERS) == "x" * MAX_TEXT_CHARACTERS
    cut = storable_text("x" * (MAX_TEXT_CHARACTERS + 1))

    assert len(cut) == MAX_TEXT_CHARACTERS
    assert cut.endswith("x [cut]")


class BrokenError(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def test_an_error_is_described_with_its_traceback() -> None:
    info = describe_exception(_raised(ValueError("no\x00 such \ud800 thing")))

    assert info.error_class == "ValueError"
    assert info.message == "no\N{REPLACEMENT CHARACTER} such ? thing"
    assert info.traceback is not None
    assert "in _raised" in info.traceback
    assert "\x00" not in info.traceback


def test_an_error_is_described_when_its_str_raises() -> None:
    info = describe_exception(_raised(BrokenError()))

    assert info.error_class == "BrokenError"
    assert info.message == "(its __str__ raised RuntimeError)"
    assert info.traceback is not None
    assert "in _raised" in info.traceback


def test_an_error_is_described_when_its_cause_is_broken() -> None:
    error = ValueError("outer")
    error.__cause__ = BrokenError()

    assert describe_exception(_raised(error)).message == "outer"


def test_a_nested_class_and_a_chain_of_errors_are_told() -> None:
    class InnerError(Exception):
        pass

    error = InnerError("last")
    error.__cause__ = KeyError("first")
    info = describe_exception(_raised(error))

    assert info.error_class.endswith("InnerError")
    assert info.traceback is not None
    assert "KeyError: 'first'" in info.traceback


def test_the_end_of_a_long_traceback_is_kept() -> None:
    info = describe_exception(_raised(ValueError("x" * 100_000 + " the end")))

    assert len(info.message) == MAX_TEXT_CHARACTERS
    assert info.traceback is not None
    assert len(info.traceback) <= MAX_TRACEBACK_CHARACTERS
    assert info.traceback.rstrip().endswith("the end")


def test_a_deep_recursion_is_described() -> None:
    def down() -> None:
        down()

    with pytest.raises(RecursionError) as caught:
        down()

    assert describe_exception(caught.value).error_class == "RecursionError"


def _raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def _frames() -> list[object]:
    frame, frames = sys._getframe(), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return frames


@pytest.mark.parametrize("start", [0, 1, 998, 999, 1_000, 1_001, 1_999, 5_500])
@pytest.mark.parametrize("after", [0, 700])
def test_a_long_integer_is_found_wherever_it_stands(start: int, after: int) -> None:
    frame = len('["",')
    value = ["x" * max(0, start - frame), 10**1_001, "y" * after]

    with pytest.raises(InvalidJsonError, match="digits"):
        dump_storable(value, "it", 100_000)
    assert dump_storable([value[0], 10**999, value[2]], "it", 100_000)


def test_digits_in_texts_are_no_integers() -> None:
    value = {"a": "7" * 50_000, "b": "\\u0000", "c": ["é" * 3_000, "1" * 1_001]}

    assert json.loads(dump_storable(value, "it", 100_000)) == value
