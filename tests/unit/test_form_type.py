"""The header that says where the parts of a form end is read in one way or not at all."""

import time

import pytest
from fastapi import Request

from app.api.problems import Problem
from app.api.requests import form_type


def of(text: str) -> str:
    headers = [(b"content-type", text.encode("latin-1"))]
    return form_type(Request({"type": "http", "headers": headers}))


@pytest.mark.parametrize(
    "parameters",
    [
        "boundary=b",
        " boundary=b",
        ' boundary="b"',
        "BOUNDARY=b;",
        "boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
        "boundary=---------------------------974767299852498929531610575",
        'boundary="a b\'()+_,-./:=?"',
        "boundary=a/b:c=d?",
        "charset=utf-8; boundary=b",
        'boundary="a\\"b"; charset=utf-8 ',
        "",
    ],
)
def test_what_clients_send_is_taken(parameters: str) -> None:
    assert of(f"multipart/form-data;{parameters}") == f"multipart/form-data;{parameters}"


@pytest.mark.parametrize(
    "parameters",
    ["boundary*=a", "boundary*0=a", "boundary=a;boundary=b", 'boundary="a', "x y=a", "b=a b"],
)
def test_what_can_be_read_in_two_ways_is_refused(parameters: str) -> None:
    with pytest.raises(Problem) as refused:
        of(f"multipart/form-data; {parameters}")
    assert refused.value.status_code == 400


def test_the_longest_header_takes_no_time() -> None:
    for piece in (";", "a=;", 'a="\\"', "a=b; ", " ", '"', "\\"):
        began = time.perf_counter()
        with pytest.raises(Problem):
            of("multipart/form-data;" + piece * (16_000 // len(piece)) + "\x00")
        assert time.perf_counter() - began < 0.1
