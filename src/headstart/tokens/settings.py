"""What a recipe says of its tokenizer; apart from the work, so that reading a recipe imports no transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from headstart.core.config import Section


class TokenizerConfig(Section):
    """Which tokenizer to train, or which to take as it is."""

    kind: Literal["wordpiece", "bpe", "unigram"] = Field("wordpiece", description="the sub-word model")
    vocab_size: int = Field(16384, ge=300, description="number of tokens, the five special ones included")
    lowercase: bool = Field(True, description="fold case, and in WordPiece strip accents as BERT uncased does")
    path: Path | None = Field(
        None, description="folder of a ready tokenizer to use instead of training one; a checkpoint brings its own"
    )
    sample_mb: float = Field(50, gt=0, description="megabytes of text, sampled uniformly, to train on")
    extend: int | None = Field(
        None, ge=1, description="tokens at most that a ready tokenizer learns from the corpus, for words that it splits"
    )

    @model_serializer(mode="wrap")
    def _without_what_is_unset(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `extend` where nothing is extended: tokenizers and runs are named by a hash of these settings."""
        written: dict[str, Any] = whole(self)
        return written if self.extend is not None else {key: v for key, v in written.items() if key != "extend"}
