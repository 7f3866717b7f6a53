"""An OpenAI-compatible server that behaves as badly as it is told, and counts finished calls.

    with FakeLLM() as llm:
        llm.script(Status(429, {"retry-after": "2"}), Said("{"))   # the next two calls
        ...                                                         # then sensible answers
        assert not llm.repeated

It listens on 127.0.0.1 in a thread of its own, so other processes reach it by its URL. A call is
finished once its whole answer was sent.
"""

import asyncio
import hashlib
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from support.schema_answers import nonsense_answer, sensible_answer

WAIT_SECONDS: Final = 20.0
HTML: Final = b"<html><body><h1>502 Bad Gateway</h1></body></html>"

Request = Mapping[str, Any]
# The answer to a chat: an object to be sent as JSON, or a text to be sent as it is.
Answer = Callable[[Request], Any]


@dataclass(frozen=True)
class Status:
    """An HTTP answer that is no completion."""

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True)
class Said:
    """A completion with this text."""

    text: str | None
    finish_reason: str | None = "stop"
    refusal: str | None = None


@dataclass(frozen=True)
class Lie:
    """The answer that would have been given, changed."""

    change: Callable[[Any, Request], Any]


@dataclass(frozen=True)
class Raw:
    """A 200 with this body."""

    body: Any


@dataclass(frozen=True)
class Truncated:
    """The first half of the answer that would have been given."""


@dataclass(frozen=True)
class Held:
    """No answer before `FakeLLM.release`, or ever."""


@dataclass(frozen=True)
class Drip:
    """The answer, byte by byte."""

    pause_seconds: float = 0.02


@dataclass(frozen=True)
class Reset:
    """The connection is reset, after some bytes of an answer or before any."""

    after_bytes: int = 0


Behaviour = Status | Said | Lie | Raw | Truncated | Held | Drip | Reset

EMPTY_CHOICES: Final = Raw({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}})
BAD_GATEWAY: Final = Status(502, {"content-type": "text/html"}, HTML)


def lie_about(key: str, value: Any) -> Lie:
    """Every value under `key`, however deep, becomes `value`: ids, labels, quotes."""

    def changed(answer: Any) -> Any:
        if isinstance(answer, dict):
            return {name: value if name == key else changed(of) for name, of in answer.items()}
        return [changed(of) for of in answer] if isinstance(answer, list) else answer

    return Lie(lambda answer, _: changed(answer))


@dataclass
class Call:
    """A request that arrived."""

    path: str
    headers: Mapping[str, str]
    request: Request
    is_finished: bool = False
    is_abandoned: bool = False

    @property
    def prompt(self) -> str:
        """What was asked, in one text."""
        asked = [self.request.get("messages"), self.request.get("response_format")]
        return json.dumps(asked, sort_keys=True)


class FakeLLM:
    """The server; a context manager.

    Args:
        answer: gives the answers; without it they are generated from the schema in the request.
        nonsense_seed: makes generated answers obey the schema and mean nothing.
        forms: the response formats that it knows; others are answered 400. "bounded_schema" is a
            "json_schema" that bounds lengths or numbers.
        key: refuses other keys with 401, and repeats them in its error as real servers do.
    """

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        nonsense_seed: str | None = None,
        forms: tuple[str, ...] = ("bounded_schema", "json_schema", "json_object"),
        key: str | None = None,
    ) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.errors: list[BaseException] = []
        self.always: Behaviour | None = None
        self.under_way = 0
        self.most_under_way = 0
        self._nonsense_seed = nonsense_seed
        self._forms = forms
        self._key = key
        self._script: list[Behaviour] = []
        self._news = threading.Condition()
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._started.result(WAIT_SECONDS)
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(WAIT_SECONDS)
        assert not self.errors, self.errors

    # -- what tests say and ask ---------------------------------------------------------------

    def script(self, *behaviours: Behaviour) -> None:
        """How the next calls are to be answered, one each."""
        with self._news:
            self._script += behaviours

    def release(self) -> None:
        """Answer the calls that are held."""
        self._loop.call_soon_threadsafe(self._released.set)

    @property
    def finished(self) -> Counter[str]:
        """How often each prompt was answered in full."""
        with self._news:
            return Counter(call.prompt for call in self.calls if call.is_finished)

    @property
    def repeated(self) -> list[str]:
        """Prompts that were answered more than once."""
        return [prompt for prompt, times in self.finished.items() if times > 1]

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for calls; `holds` is asked again whenever one arrives or ends."""
        with self._news:
            assert self._news.wait_for(holds, WAIT_SECONDS), f"{len(self.calls)} calls"

    async def until(self, holds: Callable[[], bool]) -> None:
        """The same without blocking the loop."""
        await asyncio.to_thread(self.wait_until, holds)

    # -- the server ---------------------------------------------------------------------------

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._released = asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                while await self._exchange(reader, writer):
                    pass
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            except Exception as error:  # noqa: BLE001  a test's own hook; the test is told
                self.errors.append(error)
            finally:
                connections.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._started.set_result(server.sockets[0].getsockname()[1])
        await self._stopped.wait()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may serve another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        call = Call(first.split()[1], headers, json.loads(body or b"{}"))
        with self._news:
            self.calls.append(call)
            behaviour = self._behaviour(call)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            self._news.notify_all()
        watch = asyncio.create_task(reader.read(1))
        send = asyncio.create_task(self._send(behaviour, call, writer))
        try:
            await asyncio.wait([watch, send], return_when=asyncio.FIRST_COMPLETED)
            call.is_abandoned = not send.done()
        finally:
            watch.cancel()
            send.cancel()
            await asyncio.gather(watch, send, return_exceptions=True)
            with self._news:
                self.under_way -= 1
                self._news.notify_all()
        return not call.is_abandoned and send.result()

    def _behaviour(self, call: Call) -> Behaviour | None:
        form = (call.request.get("response_format") or {}).get("type", "text")
        given = call.headers.get("authorization", "").removeprefix("Bearer ")
        if self._key is not None and given != self._key:
            return _error(401, f"Incorrect API key provided: {given}.")
        if form == "json_schema" and "max" in json.dumps(schema_of(call.request)):
            form = "bounded_schema"
        if form not in (*self._forms, "text"):
            return _error(400, f"response_format type '{form}' is not supported")
        return self._script.pop(0) if self._script else self.always

    async def _send(
        self, behaviour: Behaviour | None, call: Call, writer: asyncio.StreamWriter
    ) -> bool:
        if isinstance(behaviour, Held):
            await self._released.wait()
        code, headers, body = self._response(behaviour, call)
        head = {"content-length": str(len(body)), "content-type": "application/json", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        message = f"HTTP/1.1 {code} -\r\n{lines}\r\n".encode() + body
        if isinstance(behaviour, Reset):
            writer.write(message[: behaviour.after_bytes])
            await writer.drain()
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if isinstance(behaviour, Drip):
            for byte in message:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(behaviour.pause_seconds)
            with self._news:
                call.is_finished = code == 200
        else:
            # Before the client can have it, who may look at once.
            with self._news:
                call.is_finished = code == 200
            writer.write(message)
            try:
                await writer.drain()
            except ConnectionError:
                with self._news:
                    call.is_finished = False  # it has gone
                raise
        return True

    def _response(
        self, behaviour: Behaviour | None, call: Call
    ) -> tuple[int, Mapping[str, str], bytes]:
        if isinstance(behaviour, Status):
            body = behaviour.body
            return (
                behaviour.code,
                behaviour.headers,
                body if isinstance(body, bytes) else _json(body),
            )
        if isinstance(behaviour, Raw):
            body = behaviour.body
            return 200, {}, body if isinstance(body, bytes) else _json(body)
        if call.path.endswith("/embeddings"):
            return (
                200,
                {},
                _json({"data": [_vector(*pair) for pair in enumerate(call.request["input"])]}),
            )
        return 200, {}, _json(self._completion(behaviour, call.request))

    def _completion(self, behaviour: Behaviour | None, request: Request) -> Any:
        said = behaviour if isinstance(behaviour, Said) else Said(self._text(behaviour, request))
        if isinstance(behaviour, Truncated):
            said = Said((said.text or "")[: len(said.text or "") // 2], "length")
        message = {"role": "assistant", "content": said.text, "refusal": said.refusal}
        prompt = sum(len(message["content"]) for message in request["messages"])
        return {
            "object": "chat.completion",
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": said.finish_reason}],
            "usage": {
                "prompt_tokens": prompt // 4,
                "completion_tokens": len(said.text or "") // 4,
            },
        }

    def _text(self, behaviour: Behaviour | None, request: Request) -> str:
        answer = self._answer(request)
        if isinstance(behaviour, Lie):
            answer = behaviour.change(answer, request)
        return answer if isinstance(answer, str) else json.dumps(answer)

    def _answer(self, request: Request) -> Any:
        schema = schema_of(request)
        if self.answer is not None and not _is_probe(schema):
            return self.answer(request)
        if self._nonsense_seed is not None:
            prompt = json.dumps(request["messages"], sort_keys=True)
            return nonsense_answer(schema, self._nonsense_seed + prompt)
        return sensible_answer(schema)


def schema_of(request: Request) -> dict[str, Any]:
    """The JSON schema that the answer must obey, told by the protocol or in words."""
    form = request.get("response_format") or {}
    if "json_schema" in form:
        return dict(form["json_schema"]["schema"])
    system = str(request["messages"][0]["content"])
    start = system.find("{", system.find("JSON schema:"))
    return dict(json.loads(system[start:])) if start >= 0 else {}


def _is_probe(schema: Mapping[str, Any]) -> bool:
    return "ready" in json.dumps(schema.get("properties", {}).get("reply", {}))


def _error(code: int, message: str, **more: Any) -> Status:
    return Status(code, {}, {"error": {"message": message, **more}})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _vector(index: int, text: str) -> dict[str, Any]:
    digest = hashlib.sha256(text.encode()).digest()
    return {"index": index, "embedding": [byte / 128 - 1 for byte in digest[:8]]}
