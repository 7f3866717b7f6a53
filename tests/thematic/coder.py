"""A model that codes well and by rule, over HTTP or in the process; and ways to make it lie."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from thematic.recording import RecordingContext

from app.pipelines.llm import Chat, Completion, LLMSettings
from app.pipelines.llm.asking import LLM
from app.pipelines.thematic.asker import Asker
from app.pipelines.thematic.words import is_stop, stem, tokens

Answer = Callable[[Mapping[str, Any]], Any]

COMPLAINTS = frozenset({"full", "cost", "far", "cold", "bland", "late", "bad"})


class Coder:
    """A ChatClient that answers by a function, as a FakeLLM would, and counts by stage."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.calls: Counter[str] = Counter()
        self.shown: list[dict[str, Any]] = []

    async def complete(self, chat: Chat, on_failed_try: Any = None) -> Completion:
        request = {
            "messages": [
                {"role": message.role, "content": message.content} for message in chat.messages
            ],
            "response_format": chat.response_format,
        }
        self.calls[stage(request)] += 1
        if stage(request) != "probe":
            self.shown.append(document(request))
        given = self._answer(request)
        text = given if isinstance(given, str) else json.dumps(given)
        return Completion(text, "stop", None, len(str(request)) // 4, len(text) // 4)

    async def close(self) -> None:
        pass


SETTINGS = LLMSettings("http://127.0.0.1:9/v1", "coder")


def asker(client: Coder, settings: LLMSettings = SETTINGS) -> Asker:
    """What a stage asks, with the client's own checks and repairs under it."""
    return Asker(lambda: LLM(settings, client, RecordingContext()))


def document(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the question shows, whichever stage asks."""
    shown: dict[str, Any] = json.loads(request["messages"][1]["content"].split("\n", 1)[1])
    return shown


def stage(request: Mapping[str, Any]) -> str:
    """Which stage asks, by what it shows; "probe" for the client's own question."""
    if len(request["messages"]) < 2:
        return "probe"
    shown = document(request)
    if "facts" in shown:
        return "insights"
    if "taken" in shown:
        return "name"
    if "answers" not in shown:
        return "review"
    return "assign" if "themes" in shown else "stance"


def good(request: Mapping[str, Any]) -> Any:
    """The right answer to a question of any stage."""
    return {
        "probe": lambda _: {"reply": "ready", "letters": "a", "digit": 1, "words": []},
        "name": _names,
        "review": lambda _: {"merge": [], "split": [], "vague": []},
        "assign": _themes,
        "stance": _stances,
        "insights": _sentences,
    }[stage(request)](request)


def lying(at: str, change: Callable[[Any, dict[str, Any]], Any]) -> Answer:
    """Good answers but for those of one stage, which `change` makes of the good ones."""

    def answer(request: Mapping[str, Any]) -> Any:
        true = good(request)
        return change(true, document(request)) if stage(request) == at else true

    return answer


def _names(request: Mapping[str, Any]) -> Any:
    names = {}
    for theme in document(request)["themes"]:
        for group in (theme, *theme["subthemes"]):
            words = list(dict.fromkeys(" ".join(group["keywords"]).split()))[:4] or ["nothing"]
            names[group["id"]] = {
                "name": f"About {' '.join(words)} {'in part' if group is not theme else ''}",
                "description": f"People speak of {' and '.join(words)}.",
            }
    return names


def _stems(text: str) -> set[str]:
    return {stem(word) for word in tokens(text) if not is_stop(word)}


def _themes(request: Mapping[str, Any]) -> Any:
    shown = document(request)
    has_stance = "positive (" in request["messages"][0]["content"]
    judged = {}
    for key, text in shown["answers"].items():
        common = {
            theme["name"]: len(_stems(text) & _stems(f"{theme['name']} {theme['description']}"))
            for theme in shown["themes"]
        }
        most = max(common.values())
        names = [name for name, words in common.items() if words == most][:1] if most else ["other"]
        judged[key] = {
            "themes": [{"theme": name, "stance": _stance(text)} for name in names]
            if has_stance
            else names
        }
    return judged


def _stance(text: str) -> str:
    return "negative" if COMPLAINTS & set(tokens(text)) else "positive"


def _stances(request: Mapping[str, Any]) -> Any:
    return {key: _stance(pair["answer"]) for key, pair in document(request)["answers"].items()}


def _sentences(request: Mapping[str, Any]) -> Any:
    facts = document(request)["facts"]
    return {
        "sentences": [
            {
                "text": re.sub(
                    r"^The largest theme is",
                    "More answers than on any other theme are on",
                    fact["says"],
                ),
                "facts": [key],
            }
            for key, fact in list(facts.items())[:3]
        ]
    }
