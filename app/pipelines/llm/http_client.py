"""The default ChatClient: /chat/completions over httpx2 (0.12 CPU-s to import, 23 MiB)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from app.domain.sharing import MAX_CALL_TOKENS
from app.pipelines.llm.budget import tokens_in
from app.pipelines.llm.concurrency import AdaptiveLimit
from app.pipelines.llm.interface import Chat, Completion, LLMSettings, OnFailedTry
from app.pipelines.llm.retrying import FailedTryError, Retrying
from app.pipelines.llm.structured import cleaned
from app.pipelines.llm.transport import Key, Poster, Server

_PATH: Final = "/chat/completions"
_BAD_REQUEST: Final = 400
# Why an answer may have no words; without a reason it is a hiccup of the server.
_SILENT: Final = frozenset({"length", "content_filter"})
# What some models refuse by name, and what is sent instead, None for nothing.
_ALTERNATIVES: Final = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": None}


class HTTPClient:
    """Makes calls with their retries; several may be under way at once."""

    def __init__(
        self,
        settings: LLMSettings,
        *,
        on_wait: Callable[[str], Awaitable[None]] | None = None,
        retrying: Retrying | None = None,
        server: Poster | None = None,
    ) -> None:
        self._settings = settings
        self._server = server or Server(
            settings.base_url, Key(settings.api_key_env), settings.timeout_seconds
        )
        self._retrying = retrying or Retrying(
            settings.max_retries, AdaptiveLimit(settings.concurrency), on_wait
        )
        self._refused_options: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"HTTPClient({self._settings.model!r} at {self._server.origin})"

    async def complete(self, chat: Chat, on_failed_try: OnFailedTry | None = None) -> Completion:
        """See ChatClient."""
        completion, retries = await self._retrying.call(
            lambda: self._once(chat, on_failed_try), on_failed_try
        )
        return replace(completion, retries=retries)

    async def close(self) -> None:
        """See ChatClient."""
        await self._server.close()

    async def _once(self, chat: Chat, on_failed_try: OnFailedTry | None) -> Completion:
        for _ in _ALTERNATIVES:
            body = self._body(chat)
            try:
                return self._read(chat, await self._server.post(_PATH, body))
            except FailedTryError as error:
                if error.status != _BAD_REQUEST or not self._learns_from(str(error), body):
                    raise
                if on_failed_try is not None:
                    await on_failed_try(FailedTryError(str(error), error.status))
        return self._read(chat, await self._server.post(_PATH, self._body(chat)))

    def _body(self, chat: Chat) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {
            "max_tokens": chat.max_output_tokens,
            "temperature": settings.temperature,
        }
        if settings.seed is not None:
            options["seed"] = settings.seed
        for name in self._refused_options & options.keys():
            value = options.pop(name)
            if (instead := _ALTERNATIVES[name]) is not None:
                options[instead] = value
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [{"role": m.role, "content": cleaned(m.content)} for m in chat.messages],
            **options,
        }
        if chat.response_format is not None:
            body["response_format"] = dict(chat.response_format)
        return body

    def _learns_from(self, words: str, sent: Mapping[str, Any]) -> bool:
        """Whether the server names an option that can be left out; "'max_tokens' is not ...".

        One that was sent in this try: of several calls at once each gets the refusal, and another
        one may have learnt from its own by now.
        """
        for name in _ALTERNATIVES:
            if name in sent and f"'{name}'" in words:
                self._refused_options |= {name}
                return True
        return False

    def _read(self, chat: Chat, answer: dict[str, Any]) -> Completion:
        """The completion in a server's answer, whatever it leaves out."""
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        choice = choice if isinstance(choice, dict) else {}
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        text = _text_of(message.get("content"))
        refusal = message.get("refusal")
        if refusal == "" and text:
            # Some gateways send every key that the protocol knows.
            refusal = None
        reason = str(choice.get("finish_reason") or "stop") if choice else "empty"
        if refusal is None and not text.strip() and reason not in _SILENT:
            reason = "empty"
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return Completion(
            text=text,
            finish_reason=reason,
            refusal=None if refusal is None else str(refusal),
            # Servers that do not count are counted for: a budget must hold everywhere.
            prompt_tokens=_count(usage, "prompt_tokens")
            or tokens_in(message.content for message in chat.messages),
            completion_tokens=_count(usage, "completion_tokens") or tokens_in([text]),
        )


def _text_of(content: Any) -> str:
    """The text of a message, which may also come in parts."""
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return min(value, MAX_CALL_TOKENS) if isinstance(value, int) and value > 0 else 0
