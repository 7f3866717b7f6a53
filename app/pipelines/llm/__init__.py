"""Language models for pipelines: any server of the OpenAI protocol, each question asked once.

    stage ──▶ LLM.ask ──▶ cache of finished calls (job database)
                │              └─ miss ─▶ budget ─▶ ladder of answer forms ─▶ ChatClient
                └─ checks of the answer ─▶ one repair call ─▶ AnswerRejectedError

Nothing here knows the thematic analysis; another plugin may use it as it is. Importing it loads no
HTTP library.
"""

from app.pipelines.llm.asking import LLM, CallStore, in_parts, open_llm
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
