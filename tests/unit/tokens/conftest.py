"""Synthetic text, and one tokenizer of each kind trained on it."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from headstart.core.randomness import generator
from headstart.tokens.tokenizer import TokenizerConfig, train

KINDS = ("wordpiece", "bpe", "unigram")
_SYLLABLES = [a + b for a in ("b", "d", "gr", "k", "l", "m", "n", "s", "st", "tr") for b in "aeiou"]


def synthetic_texts(count: int) -> list[str]:
    """Return texts of synthetic words whose frequencies fall steeply, as in natural language."""
    rng = generator(0, 0, 0, "test texts")
    words = ["".join(rng.choice(_SYLLABLES, size=rng.integers(1, 4))) for _ in range(800)]
    texts = []
    for _ in range(count):
        picks = [words[int(800 * rng.random() ** 3)] for _ in range(60)]
        sentences = [" ".join(picks[i : i + 10]).capitalize() + "." for i in range(0, 60, 10)]
        texts.append(" ".join(sentences[:3]) + "\n" + " ".join(sentences[3:]))
    return texts


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return synthetic_texts(300)


@pytest.fixture(scope="session")
def tokenizers(texts: list[str]) -> dict[str, PreTrainedTokenizerFast]:
    return {
        kind: train(
            texts, TokenizerConfig.model_validate({"kind": kind, "vocab_size": 400, "lowercase": False}), seed=0
        )
        for kind in KINDS
    }
