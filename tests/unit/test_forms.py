"""Reading forms: the same however the body is cut, and nothing that is no form gets through."""

import io
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api import forms
from app.api.forms import (
    MAX_FIELD_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Form,
    FormError,
    Part,
    Parts,
    read_form,
)
from app.api.problems import Problem

TYPE = "multipart/form-data; boundary=b0"
FILE = b'--b0\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n'
FILE += b"Content-Type: text/csv\r\n\r\n"
NAME = b"--b0\r\ncontent-disposition:form-data;name=name\r\n\r\n"
END = b"\r\n--b0--\r\n"
# What looks like a delimiter and is none.
CONTENT = b"\r\n--b1\r\n-\r\n--b\r\r\n--\nb0--b0\r\n"
BODY = b"preamble\r\n" + FILE + CONTENT + b"\r\n" + NAME + b"A name\r\n--b0-- \r\nepilogue --b0"


def parts_of(chunks: Iterable[bytes], boundary: bytes = b"b0") -> list[tuple[Part, bytes]]:
    parts = Parts(boundary)
    found: list[tuple[Part, bytes]] = []
    for chunk in chunks:
        for event in parts.feed(chunk):
            if isinstance(event, Part):
                found.append((event, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + event)
    parts.close()
    return found


EXPECTED = [(Part("file", "a.csv"), CONTENT), (Part("name", None), b"A name")]


def test_a_body_may_be_cut_anywhere() -> None:
    assert parts_of([BODY]) == EXPECTED
    assert parts_of(bytes([byte]) for byte in BODY) == EXPECTED
    for at in range(len(BODY)):
        assert parts_of([BODY[:at], BODY[at:]]) == EXPECTED


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"-", b"b", b"0", b"--b0", b"\r\n", b"x"])),
    st.integers(1, 9),
)
def test_any_content_comes_back(pieces: list[bytes], size: int) -> None:
    content = b"".join(pieces)
    if (content + END).find(b"\r\n--b0") < len(content):
        return  # the client has chosen a boundary that is in its file
    body = FILE + content + END
    assert parts_of([body]) == [(Part("file", "a.csv"), content)]
    cut = [body[at : at + size] for at in range(0, len(body), size)]
    assert parts_of(cut) == [(Part("file", "a.csv"), content)]


def test_a_part_may_be_empty() -> None:
    assert parts_of([FILE + END]) == [(Part("file", "a.csv"), b"")]
    assert parts_of([b"--b0--"]) == []


@pytest.mark.parametrize(
    ("disposition", "part"),
    [
        (b'form-data; name="a b"; filename="x;y.csv"', Part("a b", "x;y.csv")),
        (rb'form-data; name="a\"b"', Part('a"b', None)),
        (b"FORM-DATA; NAME=a", Part("a", None)),
        ('form-data; name="ü"; filename="日本.csv"'.encode(), Part("ü", "日本.csv")),
        (b"form-data; name=a; filename*=UTF-8''%e2%82%ac.csv", Part("a", "€.csv")),
        (b'form-data; name=""', Part("", None)),
    ],
)
def test_names_are_read_as_clients_write_them(disposition: bytes, part: Part) -> None:
    body = b"--b0\r\nContent-Disposition: " + disposition + b"\r\n\r\nx" + END
    assert parts_of([body]) == [(part, b"x")]


def head(lines: bytes) -> bytes:
    return b"--b0\r\n" + lines + b"\r\n\r\nx" + END


DISPOSITION = b'Content-Disposition: form-data; name="file"\r\n'
BROKEN = {
    "nothing": b"",
    "no delimiter": b"id,text\r\n1,a\r\n",
    "no end": FILE + b"x",
    "no end behind the delimiter": FILE + b"x\r\n--b0",
    "another boundary": BODY.replace(b"b0", b"b1"),
    "something behind the delimiter": FILE.replace(b"--b0", b"--b0x") + END,
    "a long line behind the delimiter": b"--b0" + b" " * 1_000,
    "no headers": b"--b0\r\n\r\nx" + END,
    "a line that is no header": head(b"Content-Disposition"),
    "no form-data": head(b'Content-Disposition: attachment; name="file"'),
    "no disposition": head(b"Content-Type: text/csv"),
    "no name": head(b"Content-Disposition: form-data"),
    "headers without end": b"--b0\r\nX: " + b"x" * MAX_HEADER_BYTES,
    "a long header": head(DISPOSITION + b"X: " + b"x" * MAX_HEADER_BYTES),
    "long headers together": head(DISPOSITION + b"X: " + b"x" * (MAX_HEADER_BYTES - 10)),
    "many headers": head(DISPOSITION + b"\r\n".join([b"X: x"] * MAX_HEADERS)),
    "encoded": head(
        b'Content-Disposition: form-data; name="file"\r\nContent-Transfer-Encoding: base64'
    ),
}


SLOW = {
    "what begins like a delimiter": FILE + b"\r\n--b0x" * 1_000,
    "spaces behind a delimiter": FILE + b"x\r\n--b0" + b" " * 30_000,
}


@pytest.mark.parametrize("size", [1_000, 10_000])
@pytest.mark.parametrize("body", SLOW.values(), ids=SLOW)
def test_what_would_be_read_byte_by_byte_is_refused(body: bytes, size: int) -> None:
    parts = Parts(b"b0")

    def feed() -> None:
        for at in range(0, len(body), size):
            parts.feed(body[at : at + size])

    with pytest.raises(FormError, match="delimiter"):
        feed()


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(FormError):
        parts_of([body])
    with pytest.raises(FormError):
        parts_of(bytes([byte]) for byte in body)


async def read(body: bytes, content_type: str = TYPE, max_file_bytes: int = 100) -> Form:
    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 10):
            yield body[at : at + 10]

    return await read_form(
        chunks(),
        content_type,
        io.BytesIO(),
        file_field="file",
        text_fields=("name",),
        max_file_bytes=max_file_bytes,
    )


async def test_a_form_is_read_with_its_fields() -> None:
    form = await read(BODY)
    assert (form.fields, form.file_name) == ({"name": "A name"}, "a.csv")
    assert (await read(FILE + END)).fields == {}


async def test_the_file_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_WRITE_BYTES", 7)
    file = io.BytesIO()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(BODY), 3):
            yield BODY[at : at + 3]

    await read_form(
        chunks(), TYPE, file, file_field="file", text_fields=("name",), max_file_bytes=100
    )
    assert file.read() == CONTENT


async def test_a_file_may_be_as_large_as_is_said_and_no_larger() -> None:
    await read(FILE + b"x" * 100 + END)
    with pytest.raises(Problem) as caught:
        await read(FILE + b"x" * 101 + END)
    assert caught.value.status_code == 413


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (NAME + b"x" + END, "/file"),
        (FILE + b"\r\n" + FILE + END, "/file"),
        (NAME + b"x\r\n" + NAME + b"y\r\n" + FILE + END, "/name"),
        (NAME + b"\xff\r\n" + FILE + END, "/name"),
        (NAME + b"x" * (MAX_FIELD_BYTES + 1) + END, "/name"),
        (NAME.replace(b"=name", b'="a/b~c"') + END, "/a~1b~0c"),
        (NAME.replace(b"=name", b"=" + b"x" * 1_000) + END, "/" + "x" * 100),
    ],
)
async def test_a_wrong_field_is_named(body: bytes, pointer: str) -> None:
    with pytest.raises(Problem) as caught:
        await read(body)
    assert caught.value.status_code == 422
    assert [at for at, _ in caught.value.errors] == [pointer]


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("", 415),
        ("application/json", 415),
        ("multipart/mixed; boundary=b0", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        ("multipart/form-data; boundary=" + "x" * 71, 400),
        ('Multipart/Form-Data; charset=utf-8; boundary="b0"', 200),
    ],
)
async def test_the_content_type_has_to_fit(content_type: str, status: int) -> None:
    if status == 200:
        await read(BODY, content_type)
        return
    with pytest.raises(Problem) as caught:
        await read(BODY, content_type)
    assert caught.value.status_code == status


@pytest.mark.parametrize(
    "parameters",
    [
        b"name=file; filename*=undefined''x",
        b"name=file; filename*=idna''x",
        b"name=file; filename*=a; filename*0=b",
        b"name*=x; name*0=y",
        b"name=file; filename*" + b"9" * 5_000 + b"=a",
        b"name=file; filename*=\x00''a",
    ],
)
def test_headers_that_the_standard_library_trips_over_are_refused(parameters: bytes) -> None:
    body = b"--b0\r\nContent-Disposition: form-data; " + parameters + b"\r\n\r\nx" + END

    with pytest.raises(FormError):
        parts_of([body])
