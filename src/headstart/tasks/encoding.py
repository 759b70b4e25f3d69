"""Tokenization of texts and pairs for classification heads of every family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headstart.core.data import Feature, InputSpec
from headstart.core.errors import RecipeError
from headstart.core.vocabulary import language_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_texts(texts: Sequence[Sequence[str]], spec: InputSpec, language: str | None = None) -> list[Feature]:
    """Tokenize a column of texts, or two columns as pairs, truncated to max_length (the longer text first).

    A decoder's head reads the last token, so even an empty text gets one token. The heads of encoder-decoders read the
    end-of-text token and need the same number of them in every text: one is added if the tokenizer adds none, and
    those that the text itself contains are removed. With a language, its token is before each text.
    """
    tokenizer, needs_end = spec.tokenizer, spec.family == "encoder-decoder"
    if language is not None:
        token = require_language(tokenizer, language)
        texts = [[token + text for text in column] for column in texts]
    encoded = tokenizer(
        *map(list, texts), truncation=True, max_length=spec.max_length, return_attention_mask=False,
        return_special_tokens_mask=needs_end,
    )  # fmt: skip
    keys = ["input_ids"] if needs_end else [key for key in ("input_ids", "token_type_ids") if key in encoded]
    features: list[Feature] = [{key: encoded[key][row] for key in keys} for row in range(len(texts[0]))]
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    for row, feature in enumerate(features):
        ids = feature["input_ids"]
        if needs_end:
            special = encoded["special_tokens_mask"][row]
            ids = [token for token, is_special in zip(ids, special, strict=True) if is_special or token != end]
            feature["input_ids"] = ids if end in ids else [*ids[: spec.max_length - 1], end]
        elif not ids:
            feature["input_ids"] = [spec.pad if end is None else end]
    return features


def require_language(tokenizer: PreTrainedTokenizerBase, language: str) -> str:
    """Return the token of a language; raise if the tokenizer has none."""
    token = language_token(language)
    if token not in tokenizer.get_vocab():
        raise RecipeError(
            f"task.language is {language}, but the tokenizer of the checkpoint has no token {token}",
            allowed="`headstart pretrain` adds the token of each `language` of its corpora",
            do="Remove task.language, or choose a checkpoint that was pre-trained with languages",
        )
    return token
