"""What a language model is to a pipeline: settings, one call, what it cost, how it fails."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.domain.errors import HaulageError

EMBED_STAGE: Final = "embed"
"""Where the calls of embeddings are counted; they are no part of a language model's budget."""


@dataclass(frozen=True, slots=True)
class LLMSettings:
    """How to reach a model and what it may cost. Field names are the payload's keys.

    Attributes:
        base_url: of an OpenAI-compatible server, e.g. "http://127.0.0.1:8080/v1".
        api_key_env: name of the environment variable that holds the key; never the key itself.
        concurrency: calls under way at most; halves when the server says 429.
        timeout_seconds: for one call, from the connection to the last byte.
        max_retries: of one call, after 408, 409, 429, 5xx, a broken connection or a time-out.
        structured: "auto" probes once, else "json_schema", "json_object" or "text".
        max_calls: requests that the job may make, failed ones too, None without a bound; the next
            two likewise. Embeddings are not among them.
        max_cost: in the currency of the prices.
        prompt_price: per million tokens; the next likewise.
        client: "httpx" or "openai" (the SDK, where it is installed).
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    temperature: float = 0.0
    seed: int | None = 0
    max_output_tokens: int = 2_048
    concurrency: int = 4
    timeout_seconds: float = 120.0
    max_retries: int = 5
    structured: str = "auto"
    max_calls: int | None = None
    max_tokens_total: int | None = None
    max_cost: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0
    client: str = "httpx"


@dataclass(frozen=True, slots=True)
class EmbeddingsSettings:
    """How to reach an embedding model and what it may cost; see LLMSettings."""

    base_url: str
    model: str
    api_key_env: str | None = None
    concurrency: int = 4
    timeout_seconds: float = 120.0
    max_retries: int = 5
    max_calls: int | None = None
    max_tokens_total: int | None = None
    max_cost: float | None = None
    prompt_price: float = 0.0

    @property
    def completion_price(self) -> float:
        """Nothing is written."""
        return 0.0

    @property
    def max_output_tokens(self) -> int:
        """Likewise."""
        return 0


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """One call: messages and the form that the answer is to have.

    Attributes:
        response_format: as the protocol has it ({"type": "json_schema", ...}), None for text.
    """

    messages: tuple[Message, ...]
    response_format: Mapping[str, Any] | None
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished call.

    Attributes:
        text: the answer as it came; "" for a refusal without words.
        finish_reason: "stop", "length", "content_filter", ...
        refusal: what the model said instead of an answer, None where it did not refuse.
        retries: how often the call had to be made again before it was answered.
    """

    text: str
    finish_reason: str
    refusal: str | None
    prompt_tokens: int
    completion_tokens: int
    retries: int = 0


@dataclass(frozen=True, slots=True)
class StageUsage:
    """What one stage of a job cost; calls whose answers were kept already cost nothing again.

    Attributes:
        cached_calls: answers that were found in the job database.
        rejected: answers that failed their checks at first.
    """

    calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    rejected: int = 0
    cost: float = 0.0


class ChatClient(Protocol):
    """Makes one call, with its retries; knows nothing of answers' meaning."""

    async def complete(self, chat: Chat, on_failed_try: "OnFailedTry | None" = None) -> Completion:
        """The answer.

        Args:
            on_failed_try: told of each try that failed before it is made again, and of one that
                is broken off with its task (BrokenOffError); may raise to end the call.

        Raises:
            LLMUnavailableError: refused for good (400, 401, 403, 404), or no answer within the
                retries.
        """

    async def close(self) -> None:
        """End the calls under way and give up the connections; twice is harmless."""


class LLMError(HaulageError):
    """A language model did not do what it was asked for."""


class LLMUnavailableError(LLMError):
    """The server refuses, or cannot be reached.

    Attributes:
        status: of its HTTP answer, None without one.
        is_final: whether asking again is of no use (a wrong key or model).
        is_charged: whether the server may have done the work all the same.
        later_seconds: after which asking again may be of use, None where nothing is known.
    """

    def __init__(
        self,
        reason: str,
        status: int | None = None,
        *,
        is_final: bool = False,
        is_charged: bool = False,
        later_seconds: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.is_final = is_final
        self.is_charged = is_charged
        self.later_seconds = later_seconds


OnFailedTry = Callable[[LLMUnavailableError], Awaitable[None]]


class BudgetExceededError(LLMError):
    """The next call would exceed `max_calls`, `max_tokens_total` or `max_cost`.

    Attributes:
        is_final: whether no other call would fit either.
    """

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class AnswerRejectedError(LLMError):
    """The answer, and the one after the repair call, failed their checks.

    Attributes:
        problems: what is wrong, in the words of the repair call.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems[:5]) or "the answer was of no use")
        self.problems = problems
