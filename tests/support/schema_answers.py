"""Answers that obey a JSON schema: sensible ones, always the same, or nonsense by a seed."""

import random
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

Schema = Mapping[str, Any]

# Without digits: texts about computed tables may hold no number that is not in them.
ADJECTIVES = ("calm", "kind", "late", "open", "plain", "quick", "steady", "warm")
NOUNS = ("arrival", "booking", "care", "food", "letter", "parking", "staff", "visit", "waiting")


def sensible_answer(schema: Schema) -> Any:
    """The first choice everywhere, one entry per id, and no two texts alike."""
    return _Sensible(schema).of(schema)


def nonsense_answer(schema: Schema, seed: str) -> Any:
    """Anything that the schema allows."""
    chance = random.Random(seed)  # noqa: S311  repeatable on purpose
    return _Nonsense(schema, chance).of(schema)


class _Sensible:
    def __init__(self, root: Schema) -> None:
        self._definitions = root.get("$defs", {})
        self._texts = self._new_texts()

    def of(self, schema: Schema) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                return {name: self.of(part) for name, part in schema.get("properties", {}).items()}
            case "array":
                return self.array(schema)
            case "string":
                return self.text(schema)
            case "integer":
                return int(self.number(schema))
            case "number":
                return self.number(schema)
            case "boolean":
                return self.choice([True, False])
            case _:
                return None

    def _resolved(self, schema: Schema) -> Schema:
        while True:
            if "$ref" in schema:
                schema = self._definitions[schema["$ref"].rsplit("/", 1)[-1]]
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                schema = self.choice(options)
            elif len(schema.get("allOf", ())) == 1:
                schema = schema["allOf"][0]
            else:
                return schema

    def array(self, schema: Schema) -> list[Any]:
        items = self._resolved(schema.get("items", {}))
        ids = self._resolved(items.get("properties", {}).get("id", {})).get("enum")
        if ids:
            return [{**self.of(items), "id": one} for one in ids]
        least = max(1, schema.get("minItems", 0))
        if schema.get("uniqueItems") and "enum" in items:
            return list(items["enum"][:least])
        return [self.of(items) for _ in range(least)]

    def choice(self, options: list[Any]) -> Any:
        return options[0]

    def text(self, schema: Schema) -> str:
        text = next(self._texts)
        while len(text) < schema.get("minLength", 0):
            text = f"{text} {next(self._texts)}"
        return text[: schema.get("maxLength", 1_000)]

    def number(self, schema: Schema) -> float:
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return float(min(least, schema.get("maximum", least)))

    @staticmethod
    def _new_texts() -> Iterator[str]:
        for place in count():
            turn, noun = divmod(place, len(NOUNS))
            rounds, adjective = divmod(turn, len(ADJECTIVES))
            yield " ".join([*["very"] * rounds, ADJECTIVES[adjective], NOUNS[noun]])


class _Nonsense(_Sensible):
    def __init__(self, root: Schema, chance: random.Random) -> None:
        super().__init__(root)
        self._chance = chance

    def array(self, schema: Schema) -> list[Any]:
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 4), least + 4)
        return [self.of(schema.get("items", {})) for _ in range(self._chance.randint(least, most))]

    def choice(self, options: list[Any]) -> Any:
        return self._chance.choice(options)

    def text(self, schema: Schema) -> str:
        letters = "abc xyz 0159 %«»\"'\\\n<|im_end|>éß漢\u202e"
        least = schema.get("minLength", 0)
        length = self._chance.randint(least, max(least, min(60, schema.get("maxLength", 60))))
        return "".join(self._chance.choice(letters) for _ in range(length))

    def number(self, schema: Schema) -> float:
        return self._chance.uniform(schema.get("minimum", -1e6), schema.get("maximum", 1e6))
