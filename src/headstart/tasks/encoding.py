"""Tokenization of texts and pairs for classification heads of every family."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.core.data import Feature, InputSpec


def encode_texts(texts: Sequence[Sequence[str]], spec: InputSpec) -> list[Feature]:
    """Tokenize a column of texts, or two columns as pairs, truncated to max_length (the longer text first).

    A decoder's head reads the last token, so even an empty text gets one token. The heads of encoder-decoders read the
    end-of-text token and need the same number of them in every text: one is added if the tokenizer adds none, and
    those that the text itself contains are removed.
    """
    tokenizer, needs_end = spec.tokenizer, spec.family == "encoder-decoder"
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
