"""The baseline of static vectors: the mean of the vectors of a text's tokens, with a linear model."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult, NotApplicable
from headstart.evaluation.metrics import Floats
from headstart.evaluation.text_vectors import Embed, learn_from_vectors

VARIABLE = "HEADSTART_STATIC"
_PACKAGE = "wordllama"
_FILES = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
"""The vectors and the tokenizer in the package."""


def vector_files() -> tuple[Path, Path] | None:
    """Return the files of vectors and tokenizer: of the folder `HEADSTART_STATIC`, or of the package wordllama."""
    folder = os.environ.get(VARIABLE)
    if folder:
        return Path(folder, "model.safetensors"), Path(folder, "tokenizer.json")
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    return package / _FILES[0], package / _FILES[1]


def static(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The mean of the static vectors of a text's tokens with logistic regression (ridge for numbers).

    The variable `HEADSTART_STATIC` names a folder in the format of model2vec (model.safetensors and tokenizer.json), as
    `headstart export --to static` writes it. Without it, the vectors of the package wordllama are used. C is chosen on
    the validation rows; the result does not depend on the seed.
    Paper: Reimers & Gurevych 2020; Miller 2024, WordLlama; Tulkens & van Dongen 2024, Model2Vec
    """

    def prepare() -> tuple[Embed, dict[str, Any]]:
        files = vector_files()
        if files is None:
            raise NotApplicable(
                f"there are no static vectors; `pip install {_PACKAGE}`, or set the variable {VARIABLE} to a folder"
            )
        return lambda texts: _means(texts, *files), {"vectors": files[0].name}

    return learn_from_vectors("static", (train, validation, test), metric, prepare)


def _means(texts: Sequence[str], vectors_file: Path, tokenizer_file: Path) -> Floats:
    """Return the mean vector of each text's tokens; a text without a known token gets zeros."""
    tokenizer, vectors = _load(vectors_file, tokenizer_file)
    means = np.zeros((len(texts), vectors.shape[1]))
    for row, encoding in enumerate(tokenizer.encode_batch(list(texts), add_special_tokens=False)):
        known = [token for token in encoding.ids if token < len(vectors)]
        if known:
            means[row] = vectors[known].mean(axis=0)
    return means


@lru_cache(maxsize=2)
def _load(vectors_file: Path, tokenizer_file: Path) -> tuple[Any, Floats]:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    try:
        tensors = [tensor for tensor in load_file(vectors_file).values() if tensor.ndim == 2]
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        vectors = tensors[0].astype(np.float64)
    except Exception as error:
        # Both libraries raise bare exceptions of their Rust parts.
        raise DataError(
            f"{vectors_file.parent} cannot be read as static vectors ({error})",
            allowed="model.safetensors with one matrix of vectors, and tokenizer.json",
            do=f"Set {VARIABLE} to such a folder; `headstart export MODEL --to static` writes one",
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, vectors
