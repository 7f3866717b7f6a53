"""A pipeline of your own: any class with an asynchronous `run(payload, context)`."""

from collections import Counter
from typing import Any


class WordCount:
    """Counts the words of {"texts": [...]}; a second attempt goes on after the last kept text."""

    async def run(self, payload: dict[str, Any], context: Any) -> dict[str, Any]:
        """Return the ten most frequent words."""
        texts = payload["texts"]
        done, counts = await context.load_checkpoint("counting") or (0, {})
        for number in range(done, len(texts)):
            await context.progress(number / len(texts), "counting", f"text {number + 1}")
            counts = Counter(counts) + Counter(texts[number].lower().split())
            await context.save_checkpoint("counting", (number + 1, counts))
        return {"words": dict(Counter(counts).most_common(10))}
