"""Texts as token ids, such as the heads of every family can pool."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.core.data import Feature, InputSpec


def encode_texts(texts: Sequence[Sequence[str]], reading: InputSpec) -> list[Feature]:
    """Tokenise a column of texts, or two as pairs, cut to max_length from the longer side.

    Encoders pool their first token, or all; a decoder's head reads the last one, so there must be one even of an empty
    text. The heads of encoder-decoders read the end-of-text token, and want as many of them in every text: one is added
    where the tokenizer gives none, and one that the text itself spells is left out.
    """
    tokenizer, ends = reading.tokenizer, reading.family == "encoder-decoder"
    encoded = tokenizer(
        *map(list, texts), truncation=True, max_length=reading.max_length, return_attention_mask=False,
        return_special_tokens_mask=ends,
    )  # fmt: skip
    keys = [key for key in ("input_ids", "token_type_ids") if key in encoded and not (ends and key != "input_ids")]
    features: list[Feature] = [{key: encoded[key][row] for key in keys} for row in range(len(texts[0]))]
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    for row, feature in enumerate(features):
        ids = feature["input_ids"]
        if ends:
            marks = encoded["special_tokens_mask"][row]
            ids = [token for token, mark in zip(ids, marks, strict=True) if mark or token != end]
            feature["input_ids"] = ids if end in ids else [*ids[: reading.max_length - 1], end]
        elif not ids:
            feature["input_ids"] = [reading.pad if end is None else end]
    return features
