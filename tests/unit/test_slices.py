"""Large answers: sent as they are taken, given up when they are not, and their room given back."""

import asyncio
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

import pytest
from starlette.types import Message

from app.api import slices
from app.api.problems import Problem
from app.api.room import Room
from app.api.slices import SLICE_BYTES, SlicedResponse

SCOPE = {"type": "http", "path": "/jobs/1/result"}
SIZE = 3 * SLICE_BYTES + 1


async def nothing() -> Message:
    raise AssertionError


def filled() -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115  the response closes it
    file.write(b"x" * SIZE)
    file.flush()
    return file


async def test_an_answer_comes_whole_and_gives_its_room_back() -> None:
    room = Room(SIZE, "answers")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    file = filled()
    await SlicedResponse(file, "text/plain", room=room)(SCOPE, nothing, send)

    assert b"".join(message.get("body", b"") for message in sent) == b"x" * SIZE
    assert not sent[-1].get("more_body", False)
    assert file.closed
    room.take(SIZE)


@pytest.mark.parametrize("source", [[b"x" * 100] * 3, None])
async def test_a_client_that_takes_nothing_is_given_up(
    source: Sequence[bytes] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SEND_SECONDS", 0.05)
    room = Room(SIZE, "answers")
    sent: list[Message] = []

    async def send(message: Message) -> None:
        if len(sent) == 2:  # the head and one piece
            await asyncio.Event().wait()
        sent.append(message)

    file = source or filled()
    response = SlicedResponse(file, "text/plain", room=room)
    await asyncio.wait_for(response(SCOPE, nothing, send), 5.0)

    assert len(sent) == 2
    assert sent[-1]["more_body"]
    assert isinstance(file, list) or file.closed  # type: ignore[union-attr]
    room.take(SIZE)


async def test_answers_have_so_much_room_together_also_those_that_are_never_sent() -> None:
    room = Room(SIZE, "answers")
    with filled() as one, filled() as other:
        response = SlicedResponse(one, "text/plain", room=room)
        with pytest.raises(Problem) as refused:
            SlicedResponse(other, "text/plain", room=room)
        assert refused.value.status_code == 503
        del response
        SlicedResponse(other, "text/plain", room=room)
