"""Builds the `Vocabulary` that objectives read from any Hugging Face tokenizer."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return the tables over all ids: which tokens are special, and which begin or end a word.

    Algorithm:
        In WordPiece, a token without the continuation prefix begins a word. In byte-level BPE and Unigram, a token with
        the space marker (Ġ or ▁) does. There, a token without a letter or digit is a word of its own, so that the full
        stop in "end." is not masked together with "end". The token after it (after a line break, for example) begins a
        word too, since it may lack the space marker.
    """
    size = len(tokenizer)
    if not tokenizer.is_fast:
        raise ArtifactError(
            f"{type(tokenizer).__name__} is a slow tokenizer",
            allowed="Headstart needs a fast one, with a tokenizer.json",
            do="Convert it with AutoTokenizer(use_fast=True)",
        )
    special = np.zeros(size, dtype=bool)
    special[list(tokenizer.all_special_ids)] = True
    tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
    prefix, marker = _word_markers(tokenizer)
    starts, ends = np.ones(size, dtype=bool), special.copy()
    for index, token in enumerate(tokens):
        if token is None or special[index]:
            continue
        if prefix is not None:
            starts[index] = not token.startswith(prefix)
            continue
        is_word = _has_word_character(_bytes_to_text(token) if marker == "Ġ" else token)
        starts[index] = token.startswith(marker) or not is_word
        # A space marker alone begins the word of the next token.
        ends[index] = not is_word and not token.endswith(marker)
    # Tokenizers of decoders have bos and eos instead of cls and sep, and often no padding token.
    names = {"pad": ("pad", "eos"), "cls": ("cls", "bos"), "sep": ("sep", "eos"), "mask": ("mask",)}
    candidates = {name: [getattr(tokenizer, f"{token}_token_id") for token in tried] for name, tried in names.items()}
    ids: dict[str, Any] = {
        name: next((value for value in values if value is not None), -1) for name, values in candidates.items()
    }
    known = tokenizer.get_vocab()
    added = {token: known[token] for token in map(str, tokenizer.extra_special_tokens)}
    strings = tuple(token or "" for token in tokens)
    return Vocabulary(
        size=size, special=special, starts_word=starts, ends_word=ends, added=added, tokens=strings, **ids
    )


def language_token(language: str) -> str:
    """Return the special token of a language, such as `<pt>`."""
    return f"<{language}>"


def _word_markers(tokenizer: PreTrainedTokenizerBase) -> tuple[str | None, str]:
    """Return the continuation prefix, or None, and the space marker, which is used if there is no prefix."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    model = description["model"]
    if model["type"] == "WordPiece":
        return model.get("continuing_subword_prefix") or "##", ""
    text = json.dumps([description.get("pre_tokenizer"), description.get("normalizer")])
    return None, "Ġ" if "ByteLevel" in text else "▁"


def _has_word_character(text: str) -> bool:
    """True if the text contains a letter, a digit, a combining mark or an incomplete character."""
    return any(unicodedata.category(character)[0] in "LNM" or character == "\ufffd" for character in text)


def _bytes_to_text(token: str) -> str:
    """Decode a byte-level token; an incomplete character becomes the replacement character."""
    if not set(token) <= _BYTE_OF.keys():
        return token
    return bytes(_BYTE_OF[character] for character in token).decode("utf-8", "replace")


def _byte_alphabet() -> dict[str, int]:
    """Map the characters with which byte-level tokenizers write bytes to those bytes (Radford et al. 2019, GPT-2).

    Bytes that are printable in Latin-1 are written as themselves, the others as characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
