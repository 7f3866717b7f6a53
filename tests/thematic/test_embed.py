import numpy as np
import pytest

from app.domain.jobs import MAX_CHECKPOINT_BYTES
from app.domain.json_values import dump_storable
from app.pipelines.thematic import embed, minilm
from app.pipelines.thematic.lsa import lsa
from app.pipelines.thematic.milestones import decode, encode
from app.pipelines.thematic.minilm import MiniLM, ModelError
from app.pipelines.thematic.parameters import ParameterError


class Heard:
    def __init__(self) -> None:
        self.reports: list[tuple[float, str]] = []

    async def __call__(self, done: float, message: str) -> None:
        self.reports.append((done, message))


async def test_like_meanings_are_near_and_progress_is_told_by_batch() -> None:
    heard = Heard()
    texts = ["The driver was friendly", "The drivers were kind", "Parking costs too much"] * 7
    embedded = await embed.embed(texts, "auto", heard)
    vectors = embedded.vectors.astype(np.float32)
    assert embedded.backend == "minilm-int8"
    assert embedded.vectors.dtype == np.float16
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert heard.reports[-1] == (1.0, "21 of 21 texts")
    assert "16 of 21 texts" in [message for _, message in heard.reports]


def test_a_vector_does_not_depend_on_its_batch() -> None:
    model = MiniLM()
    ids, _ = model.tokenise(["Short", "A much longer answer about many different things here"])
    alone = model.embed(ids[:1])[0]
    together = model.embed(ids)[0]
    assert np.abs(alone - together).max() < 1e-5


def test_a_long_text_is_cut_and_counted() -> None:
    ids, too_long = MiniLM().tokenise(["word " * 400, "word"])
    assert [len(row) for row in ids] == [256, 3]
    assert too_long == 1
    assert ids[0][-1] == ids[1][-1]


def test_another_file_than_the_published_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "TOKENIZER_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="is not the published"):
        MiniLM()


async def test_auto_falls_back_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "missing_packages", lambda: ["onnxruntime"])
    embedded = await embed.embed(["one text", "another text"], "auto", Heard())
    assert (embedded.backend, embedded.missing) == ("lsa", ["onnxruntime"])
    with pytest.raises(ParameterError, match="install"):
        await embed.embed(["one text"], "minilm-int8", Heard())


@pytest.mark.parametrize("copies", [1, 2, 150])
def test_shared_words_are_near_without_a_model(copies: int) -> None:
    rng = np.random.default_rng(0)
    words = ["driver", "parking", "lunch", "nurse", "ward", "queue", "phone", "letter"]
    texts = ["the driver was late", "our driver was late", "parking fees"]
    texts += [" ".join(rng.choice(words, 4)) + f" number{n % 60}" for n in range(copies * 3)]
    vectors = lsa(texts)
    assert vectors[0] @ vectors[1] > 0.9
    assert vectors[0] @ vectors[2] < 0.5
    assert np.array_equal(vectors, lsa(texts))


def test_texts_without_words_get_the_zero_vector() -> None:
    assert not lsa(["!!!", "parking fees"])[0].any()


def test_checkpoints_keep_every_bit() -> None:
    vectors = np.array([[0.1, -0.2], [0.3, 0.4]], dtype=np.float16)
    before = embed.Embedded(backend="lsa", vectors=vectors, too_long=1, missing=["x"])
    kept = encode(before)
    after = decode(embed.Embedded, kept)
    assert kept["vectors"]["dtype"] == "<f2"
    assert np.array_equal(after.vectors, vectors)
    assert (after.backend, after.too_long, after.missing) == ("lsa", 1, ["x"])


def test_vectors_that_are_not_refused_fit_into_a_checkpoint() -> None:
    most = embed.MOST_NUMBERS // 1536
    embed.refuse_too_many(most, 1536, "embedding.model", "m")
    full = embed.Embedded("endpoint", np.zeros((most, 1536), np.float16), 0, [])
    dump_storable(encode(full), "checkpoint 'embed'", MAX_CHECKPOINT_BYTES)
    with pytest.raises(ParameterError, match=r"17,000 texts of 1,536 dimensions .* 16,368 texts"):
        embed.refuse_too_many(17_000, 1536, "embedding.model", "m")


@pytest.mark.parametrize("backend", ["minilm-int8", "lsa"])
async def test_too_many_texts_are_refused_before_they_are_embedded(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "MOST_NUMBERS", 100)
    heard = Heard()
    with pytest.raises(ParameterError, match=f"embedding.backend='{backend}': 2 texts of"):
        await embed.embed(["Buses are late", "Parking is dear"], backend, heard)
    assert [done for done, _ in heard.reports if done] == []
