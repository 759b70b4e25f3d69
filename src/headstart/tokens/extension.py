"""Extends an existing tokenizer by the words of a new domain; known tokens keep their ids.

WordPiece and Unigram get whole words, ranked by the tokens that each saves: its count × (the number of its pieces
minus one). BPE continues merging where training stopped, because its tokens are reached by merges only; a merge saves
one token per occurrence of the pair. In both cases a new token is an entry of the model in tokenizer.json, so
normalization, prefixes and space markers apply to it as to all others.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from headstart.core.errors import ArtifactError, DataError
from headstart.tokens.sampling import MAX_WORD_CHARACTERS

PIECES = "extension.json"
"""File beside an extended tokenizer: for each new id, the older ids that encoded the same text before."""
_MIN_COUNT = 2
# The lookbehind keeps a long run of markers without a word from being read again at each of them.
_UNMARKED = re.compile("(?<!▁)▁*[^▁]+")
_UNUSED_SCORE = -1e4
Pieces = dict[int, list[int]]
Pair = tuple[str, str]


def extend(tokenizer: PreTrainedTokenizerFast, chunks: Sequence[str], limit: int, folder: Path) -> Pieces:
    """Add up to `limit` tokens learned from a text, write the extended tokenizer to a folder, and return the pieces.

    The pieces map each new id to the older ids that encoded the same text. AutoTokenizer loads the folder;
    `load_pieces` reads the pieces from it.
    """
    description, backend = require_extendable(tokenizer), tokenizer.backend_tokenizer
    kind = description["model"]["type"]
    ids = tokenizer.get_vocab()
    _merge_added_tokens(description["model"], ids)
    learned = _LEARNERS[kind](description["model"], backend, _words(backend, chunks), limit)
    if not learned:
        raise DataError(
            "the tokenizer encodes every repeated word of the text as a single token",
            allowed="New tokens are learned for words that it splits",
            do="Remove tokenizer.extend, or add text of the new domain",
        )
    pieces = {len(ids) + i: [ids[piece] for piece in split] for i, split in enumerate(learned.values())}
    tokenizer.save_pretrained(str(folder))
    (folder / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    (folder / PIECES).write_text(json.dumps(pieces), encoding="utf-8")
    return pieces


def require_extendable(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the description of a tokenizer, as in tokenizer.json; raises unless `extend` supports its model."""
    # Truncation and padding reflect the last call of the tokenizer and are not part of it.
    backend = tokenizer.backend_tokenizer
    description: dict[str, Any] = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    kind = description["model"]["type"]
    if kind not in _LEARNERS or (kind == "BPE" and description["model"].get("continuing_subword_prefix")):
        raise ArtifactError(
            f"the tokenizer's model is {kind}",
            allowed=f"tokenizer.extend supports {', '.join(_LEARNERS)}",
            do="Remove tokenizer.extend, or start from another checkpoint",
        )
    return description


def load_pieces(folder: Path) -> Pieces:
    """Return the pieces that `extend` wrote to a folder; empty for a tokenizer that was not extended."""
    path = folder / PIECES
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {int(token): pieces for token, pieces in stored.items()}


def _words(backend: Tokenizer, chunks: Iterable[str]) -> Counter[str]:
    """Count the words of a text, as the tokenizer splits it before it applies its model."""
    counts: Counter[str] = Counter()
    for chunk in chunks:
        text = backend.normalizer.normalize_str(chunk) if backend.normalizer else chunk
        if backend.pre_tokenizer:
            counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
        else:
            counts.update(_UNMARKED.findall(text))
    return Counter({word: n for word, n in counts.items() if n >= _MIN_COUNT and len(word) <= MAX_WORD_CHARACTERS})


def _merge_added_tokens(model: dict[str, Any], known: Mapping[str, int]) -> None:
    """Move tokens that were added to the tokenizer into its model; otherwise new tokens would take their ids."""
    entries = model["vocab"]
    for token, token_id in sorted(known.items(), key=lambda item: item[1])[len(entries) :]:
        if isinstance(entries, list):
            entries.append([token, _UNUSED_SCORE])
        else:
            entries[token] = token_id
    if len(entries) != len(known) or max(known.values()) != len(known) - 1:
        raise ArtifactError(
            f"the tokenizer has {len(known):,} tokens and ids up to {max(known.values()):,}",
            allowed="tokenizer.extend needs consecutive ids",
            do="Remove tokenizer.extend, or start from another checkpoint",
        )


def _whole_words(
    backend: Tokenizer, known: Container[str], words: Mapping[str, int], limit: int
) -> dict[str, list[str]]:
    """Return the words that save the most tokens, each with its current pieces."""
    gains: list[tuple[int, str, list[str]]] = []
    for word, count in words.items():
        pieces = [token.value for token in backend.model.tokenize(word)]
        is_known = all(piece in known for piece in pieces) and any(character.isalpha() for character in word)
        if len(pieces) > 1 and is_known:
            gains.append((-count * (len(pieces) - 1), word, pieces))
    return {word: pieces for _, word, pieces in heapq.nsmallest(limit, gains)}


def _wordpiece(model: dict[str, Any], backend: Tokenizer, words: Mapping[str, int], limit: int) -> dict[str, list[str]]:
    learned = _whole_words(backend, model["vocab"], words, limit)
    first = len(model["vocab"])
    model["vocab"].update({word: first + i for i, word in enumerate(learned)})
    return learned


def _unigram(model: dict[str, Any], backend: Tokenizer, words: Mapping[str, int], limit: int) -> dict[str, list[str]]:
    """Add words with their log frequency as score, at least slightly above that of their pieces, which they replace."""
    scores: dict[str, float] = dict(model["vocab"])
    learned = _whole_words(backend, scores, words, limit)
    total = sum(words.values())
    for word, pieces in learned.items():
        score_of_pieces = sum(scores[piece] for piece in pieces)
        model["vocab"].append([word, max(math.log(words[word] / total), score_of_pieces + 0.01)])
    return learned


def _bpe(model: dict[str, Any], backend: Tokenizer, words: Mapping[str, int], limit: int) -> dict[str, list[str]]:
    """Merge the most frequent pair of adjacent pieces repeatedly, ties broken by text."""
    known, suffix = set(model["vocab"]), model.get("end_of_word_suffix") or ""
    splits = [([token.value for token in backend.model.tokenize(word)], count) for word, count in words.items()]
    # If the joined pieces differ from the word, it contains characters that the model cannot encode.
    splits = [split for split, word in zip(splits, words, strict=True) if "".join(split[0]) == word + suffix]
    counts: Counter[Pair] = Counter()
    words_of: defaultdict[Pair, set[int]] = defaultdict(set)
    for i, (pieces, count) in enumerate(splits):
        for pair in pairwise(pieces):
            counts[pair] += count
            words_of[pair].add(i)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    learned: dict[str, list[str]] = {}
    while heap and len(learned) < limit:
        negative_count, pair = heapq.heappop(heap)
        token = "".join(pair)
        if -negative_count != counts[pair] or counts[pair] < _MIN_COUNT or token in known:
            continue
        known.add(token)
        learned[token] = [base for piece in pair for base in learned.get(piece, [piece])]
        model["merges"].append(list(pair))
        model["vocab"][token] = len(model["vocab"])
        changed: set[Pair] = set()
        for i in words_of.pop(pair):
            pieces, count = splits[i]
            for old in pairwise(pieces):
                counts[old] -= count
                changed.add(old)
            pieces = _merged(pieces, pair, token)
            splits[i] = (pieces, count)
            for new in pairwise(pieces):
                counts[new] += count
                words_of[new].add(i)
                changed.add(new)
        for other in changed:
            heapq.heappush(heap, (-counts[other], other))
    return learned


def _merged(pieces: Sequence[str], pair: Pair, token: str) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] = token
        else:
            out.append(piece)
    return out


_LEARNERS = {"WordPiece": _wordpiece, "Unigram": _unigram, "BPE": _bpe}
