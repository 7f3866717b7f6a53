"""A job's language model, made of its settings."""

from collections.abc import Awaitable, Callable

from app.pipelines.llm.asking import LLM, CallStore
from app.pipelines.llm.interface import LLMSettings


def open_llm(
    settings: LLMSettings,
    context: CallStore,
    *,
    on_wait: Callable[[str], Awaitable[None]] | None = None,
    apart: str = "",
) -> LLM:
    """The model of these settings; close it at the end.

    Args:
        apart: see LLM.
        on_wait: told in one line for people why a call waits before it is tried again.

    Raises:
        LLMUnavailableError: the key's environment variable is not set, or the SDK that the
            settings name is not installed.
    """
    if settings.client == "openai":
        from app.pipelines.llm.sdk_client import SDKClient  # noqa: PLC0415  only where installed

        return LLM(settings, SDKClient(settings, on_wait=on_wait), context, apart)
    from app.pipelines.llm.http_client import HTTPClient  # noqa: PLC0415  only in jobs with an LLM

    return LLM(settings, HTTPClient(settings, on_wait=on_wait), context, apart)
