"""The special tokens that a tokenizer adds around a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.core.data import InputSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer adds before and after a text."""
    plain, framed = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (False, True))
    start = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
    return framed[:start], framed[start + len(plain) :]


def start_token(spec: InputSpec) -> int:
    """Return the token to start a text with if the tokenizer adds none: BOS, EOS or padding, the first that exists."""
    candidates = (spec.tokenizer.bos_token_id, spec.tokenizer.eos_token_id, spec.pad)
    return next(token for token in candidates if token is not None)
