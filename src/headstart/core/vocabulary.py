"""What objectives need to know of a tokenizer, taken from any Hugging Face tokenizer."""

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
    """Build the tables over ids: which are special, and which open or end a word.

    A word is opened, by kind of tokenizer: WordPiece, by a token without the continuation prefix; byte-level
    BPE and Unigram, by a token with the space marker (Ġ or ▁). In the latter a token that holds no letter or
    digit is a word of its own, so that the full stop in "end." is not masked with "end"; what follows such a
    token, a line's end among them, opens a word too, since no space marker need stand there.
    """
    size = len(tokenizer)
    if not tokenizer.is_fast:
        raise ArtifactError(
            f"{type(tokenizer).__name__} is a slow tokenizer",
            allowed="Headstart reads tokenizer.json",
            do="Convert it with AutoTokenizer(use_fast=True)",
        )
    special = np.zeros(size, dtype=bool)
    special[list(tokenizer.all_special_ids)] = True
    tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
    prefix, marker = _word_signs(tokenizer)
    starts, ends = np.ones(size, dtype=bool), special.copy()
    for index, token in enumerate(tokens):
        if token is None or special[index]:
            continue
        if prefix is not None:
            starts[index] = not token.startswith(prefix)
            continue
        is_word = _has_word_character(_bytes_to_text(token) if marker == "Ġ" else token)
        starts[index] = token.startswith(marker) or not is_word
        # A bare space marker is the beginning of the word that follows.
        ends[index] = not is_word and not token.endswith(marker)
    # A decoder's tokenizer names what opens and ends a text otherwise, and seldom has a token for padding.
    names = {"pad": ("pad", "eos"), "cls": ("cls", "bos"), "sep": ("sep", "eos"), "mask": ("mask",)}
    found = {name: [getattr(tokenizer, f"{other}_token_id") for other in others] for name, others in names.items()}
    ids: dict[str, Any] = {
        name: next((value for value in values if value is not None), -1) for name, values in found.items()
    }
    known = tokenizer.get_vocab()
    added = {token: known[token] for token in map(str, tokenizer.extra_special_tokens)}
    spelt = tuple(token or "" for token in tokens)
    return Vocabulary(size=size, special=special, starts_word=starts, ends_word=ends, added=added, tokens=spelt, **ids)


def _word_signs(tokenizer: PreTrainedTokenizerBase) -> tuple[str | None, str]:
    """Return (continuation prefix or None, space marker); the marker counts where there is no prefix."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    model = description["model"]
    if model["type"] == "WordPiece":
        return model.get("continuing_subword_prefix") or "##", ""
    text = json.dumps([description.get("pre_tokenizer"), description.get("normalizer")])
    return None, "Ġ" if "ByteLevel" in text else "▁"


def _has_word_character(text: str) -> bool:
    """Say whether a letter, a digit, a sign that joins letters, or half a character is among them."""
    return any(unicodedata.category(character)[0] in "LNM" or character == "\ufffd" for character in text)


def _bytes_to_text(token: str) -> str:
    """Read a byte-level token as text; a character that is cut off becomes the replacement character."""
    if not set(token) <= _BYTE_OF.keys():
        return token
    return bytes(_BYTE_OF[character] for character in token).decode("utf-8", "replace")


def _byte_alphabet() -> dict[str, int]:
    """Map the characters by which byte-level tokenizers write bytes to those bytes (Radford et al. 2019, GPT-2).

    Bytes that print as one Latin-1 character stand for themselves, the others for those from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
