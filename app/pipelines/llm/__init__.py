"""Language models for pipelines: any server of the OpenAI protocol, each question asked once.

    stage ──▶ LLM.ask ──▶ cache of finished calls (job database)
                │              └─ miss ─▶ budget ─▶ ladder of answer forms ─▶ ChatClient
                └─ checks of the answer ─▶ one repair call ─▶ AnswerRejectedError

Nothing here knows the thematic analysis; another plugin may use it as it is. Importing it loads no
HTTP library, and pydantic only with the first name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from app.pipelines.llm.budget import Cost, estimate
from app.pipelines.llm.interface import (
    AnswerRejectedError,
    BudgetExceededError,
    Chat,
    ChatClient,
    Completion,
    LLMError,
    LLMSettings,
    LLMUnavailableError,
    Message,
    StageUsage,
)
from app.pipelines.llm.quoting import as_data

if TYPE_CHECKING:
    from app.pipelines.llm.asking import LLM, CallStore
    from app.pipelines.llm.opening import open_llm
    from app.pipelines.llm.parts import in_parts

__all__ = [
    "LLM",
    "AnswerRejectedError",
    "BudgetExceededError",
    "CallStore",
    "Chat",
    "ChatClient",
    "Completion",
    "Cost",
    "LLMError",
    "LLMSettings",
    "LLMUnavailableError",
    "Message",
    "StageUsage",
    "as_data",
    "estimate",
    "in_parts",
    "open_llm",
]

_LATER = {"LLM": "asking", "CallStore": "asking", "open_llm": "opening", "in_parts": "parts"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"app.pipelines.llm.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
