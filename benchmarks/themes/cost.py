"""What an analysis with an LLM costs for 1,000 answers: calls, tokens, and money at given prices.

    PYTHONPATH=.:tests python -m benchmarks.themes.cost [--prompt-price 0.15 --completion-price 0.6]

The model is the honest one of the tests: it answers by rule over HTTP, 20 answers a call, as short
as the form allows. Tokens are counted by the WordPiece tokenizer of the built-in embedding; a
model's own differs by some tenths. Prices are per million tokens; the defaults are an example.
"""

import argparse
import asyncio
import json
from typing import Any

from support.fake_llm import FakeLLM
from thematic.coder import good
from tokenizers import Tokenizer

from app.pipelines.thematic import minilm
from app.pipelines.thematic.pipeline import ThematicAnalysis
from benchmarks.themes.all import SETS
from benchmarks.themes.labelled import read
from benchmarks.themes.scaling import Forgetful

ANSWERS = 1_000
RUNS: dict[str, dict[str, Any]] = {
    "name": {"mode": "name"},
    "name, with stances": {"mode": "name", "stance": True},
    "full": {"mode": "full"},
    "full, with stances": {"mode": "full", "stance": True},
    "full, all coded twice": {"mode": "full", "double_coding": "all"},
}


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(description="Cost of 1,000 answers.")
    parser.add_argument("--prompt-price", type=float, default=0.15)
    parser.add_argument("--completion-price", type=float, default=0.6)
    prices = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(minilm.TOKENIZER))
    tokenizer.no_truncation()
    texts = read(SETS[0].file, text_column="text", label_column="label").texts[:ANSWERS]
    print("| mode | calls | tokens in | tokens out | cost |\n|---|---|---|---|---|")
    for name, parameters in RUNS.items():
        with FakeLLM(good) as llm:
            settings = {"base_url": llm.url, "model": "honest", "concurrency": 4}
            analysis = ThematicAnalysis(defaults={"llm": settings})
            result = asyncio.run(analysis.run({"answers": texts, **parameters}, Forgetful()))
            asked = [json.dumps(call.request["messages"]) for call in llm.calls]
            answered = [json.dumps(good(call.request)) for call in llm.calls]
        counts = [
            sum(len(tokenizer.encode(text).ids) for text in side) for side in (asked, answered)
        ]
        cost = counts[0] * prices.prompt_price + counts[1] * prices.completion_price
        calls = result["usage"]["llm_calls"]
        print(f"| {name} | {calls} | {counts[0]:,} | {counts[1]:,} | {cost / 1e6:.3f} |")


if __name__ == "__main__":
    main()
