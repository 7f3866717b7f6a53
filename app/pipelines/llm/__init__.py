"""Language models for pipelines: any server of the OpenAI protocol, each question asked once.

    stage ──▶ LLM.ask ──▶ cache of finished calls (job database)
                │              └─ miss ─▶ budget ─▶ ladder of answer forms ─▶ ChatClient
                └─ checks of the answer ─▶ one repair call ─▶ AnswerRejectedError

Nothing here knows the thematic analysis; another plugin may use it as it is. Importing it loads no
HTTP library.
"""

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

__all__ = [
    "AnswerRejectedError",
    "BudgetExceededError",
    "Chat",
    "ChatClient",
    "Completion",
    "LLMError",
    "LLMSettings",
    "LLMUnavailableError",
    "Message",
    "StageUsage",
]
