"""The special tokens around a text: those that a tokenizer adds, and those that a checkpoint saw in pre-training."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from headstart.core.data import InputSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SENTINEL = re.compile(r"<extra_id_(\d+)>")


@dataclass(frozen=True)
class Framing:
    """Whether the texts of an encoder-decoder begin with [CLS], if its tokenizer adds one."""

    source_cls: bool = True
    """The encoder reads [CLS] first."""
    target_cls: bool = True
    """The decoder writes [CLS] first."""


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer adds before and after a text."""
    plain, framed = (list(tokenizer("a", add_special_tokens=special)["input_ids"]) for special in (False, True))
    start = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
    return framed[:start], framed[start + len(plain) :]


def without_cls(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a fast tokenizer that adds no [CLS] before a text; any other tokenizer is returned itself."""
    from tokenizers import processors

    before, after = frame(tokenizer)
    if not tokenizer.is_fast or before != [tokenizer.cls_token_id]:
        return tokenizer
    other = copy.deepcopy(tokenizer)
    backend = other.backend_tokenizer  # type: ignore[attr-defined]  # fast tokenizers have one
    current = json.loads(backend.to_str())["post_processor"]
    parts = current.get("processors", [current])
    kept = [processors.ByteLevel(trim_offsets=part["trim_offsets"]) for part in parts if part["type"] == "ByteLevel"]
    ends = [str(other.convert_ids_to_tokens(token)) for token in after]
    template = processors.TemplateProcessing(
        single=["$A:0", *(f"{end}:0" for end in ends)],
        pair=["$A:0", *(f"{end}:0" for end in ends), "$B:1", *(f"{end}:1" for end in ends)],
        special_tokens=list(zip(ends, after, strict=True)),
    )
    backend.post_processor = processors.Sequence([*kept, template]) if kept else template
    return other


def start_token(spec: InputSpec) -> int:
    """Return the token to start a text with if the tokenizer adds none: BOS, EOS or padding, the first that exists."""
    candidates = (spec.tokenizer.bos_token_id, spec.tokenizer.eos_token_id, spec.pad)
    return next(token for token in candidates if token is not None)


@lru_cache(maxsize=4)
def sentinels(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids of T5's sentinels in the order of their numbers; none if the tokenizer has none.

    They are searched once, because prompts ask for them in every row.
    """
    vocabulary = tokenizer.get_vocab()
    numbers = {match[0]: int(match[1]) for token in vocabulary if (match := _SENTINEL.fullmatch(token))}
    return tuple(vocabulary[token] for token in sorted(numbers, key=lambda token: numbers[token]))
