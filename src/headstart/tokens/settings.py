"""The tokenizer section of a recipe, in a module of its own so that reading a recipe does not import transformers."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from headstart.core.config import Section

MIN_VOCAB_SIZE = 300


class TokenizerConfig(Section):
    """Which tokenizer to train, or which existing tokenizer to use."""

    newer: ClassVar[tuple[str, ...]] = ("extend",)

    kind: Literal["wordpiece", "bpe", "unigram"] = Field("wordpiece", description="the subword model")
    vocab_size: int = Field(16384, ge=MIN_VOCAB_SIZE, description="number of tokens, including the five special tokens")
    lowercase: bool = Field(True, description="lowercase the text; WordPiece also strips accents, as BERT uncased does")
    path: Path | None = Field(
        None,
        description="folder of an existing tokenizer, used instead of training one, or a checkpoint on the Hub "
        "(`org/name@revision`); a checkpoint has its own",
    )
    sample_mb: float = Field(50, gt=0, description="megabytes of text, sampled uniformly, to train on")
    extend: int | None = Field(
        None, ge=1, description="maximum number of tokens to add to an existing tokenizer, for words that it splits"
    )
