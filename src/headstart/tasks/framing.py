"""The special tokens around a text."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from headstart.core.data import InputSpec


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after a text."""
    bare, framed = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (False, True))
    start = next(place for place in range(len(framed)) if framed[place : place + len(bare)] == bare)
    return framed[:start], framed[start + len(bare) :]


def beginning(reading: InputSpec) -> int:
    """Return the token after which a text begins where the tokenizer puts none."""
    known = (reading.tokenizer.bos_token_id, reading.tokenizer.eos_token_id, reading.pad)
    return next(token for token in known if token is not None)
