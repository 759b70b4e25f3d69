"""A ready tokenizer that learns the words of a new domain; what it knew keeps its ids.

WordPiece and Unigram get whole words, chosen by the tokens that each saves: how often it occurs × pieces it was
written in, less one. Byte-level and other BPE go on merging where they had stopped, since a token of theirs is
reached by merges alone; each merge saves as many tokens as the pair occurs. Either way a new token is an entry of the
model in tokenizer.json, so normalisation, prefixes and space markers hold for it as for the others.
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
from headstart.tokens.sampling import LONGEST_WORD

PIECES = "extension.json"
"""Beside an extended tokenizer: for each new id, the old ids that wrote the same text before."""
_LEAST = 2
_UNMARKED = re.compile("▁*[^▁]+")
_NEVER = -1e4
Pieces = dict[int, list[int]]
Pair = tuple[str, str]


def extend(tokenizer: PreTrainedTokenizerFast, chunks: Sequence[str], most: int, folder: Path) -> Pieces:
    """Learn up to `most` tokens from a text, write the extended tokenizer to a folder, and return the old pieces.

    AutoTokenizer loads the folder by itself; `load_pieces` reads what is returned here.
    """
    backend = tokenizer.backend_tokenizer
    # How the tokenizer was called last, cut or padded, is no part of what it is.
    description: dict[str, Any] = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    kind = description["model"]["type"]
    if kind not in _LEARNERS or (kind == "BPE" and description["model"].get("continuing_subword_prefix")):
        raise ArtifactError(
            f"the tokenizer is of the kind {kind}",
            allowed=f"tokenizer.extend knows {', '.join(_LEARNERS)}",
            do="Leave out tokenizer.extend, or start from another checkpoint",
        )
    ids = tokenizer.get_vocab()
    _settle(description["model"], ids)
    found = _LEARNERS[kind](description["model"], backend, _words(backend, chunks), most)
    if not found:
        raise DataError(
            "the tokenizer writes every word of the text that occurs twice in one piece",
            allowed="A token is learnt for words that it splits",
            do="Leave out tokenizer.extend, or add text of the new domain",
        )
    pieces = {len(ids) + place: [ids[piece] for piece in written] for place, written in enumerate(found.values())}
    tokenizer.save_pretrained(str(folder))
    (folder / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    (folder / PIECES).write_text(json.dumps(pieces), encoding="utf-8")
    return pieces


def load_pieces(folder: Path) -> Pieces:
    """Return what `extend` returned, from the folder that it wrote; nothing for any other tokenizer."""
    path = folder / PIECES
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {int(token): written for token, written in stored.items()}


def _words(backend: Tokenizer, chunks: Iterable[str]) -> Counter[str]:
    """Count the words of a text as the tokenizer cuts it before it looks for pieces."""
    counts: Counter[str] = Counter()
    for chunk in chunks:
        text = backend.normalizer.normalize_str(chunk) if backend.normalizer else chunk
        if backend.pre_tokenizer:
            counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
        else:
            counts.update(_UNMARKED.findall(text))
    return Counter({word: n for word, n in counts.items() if n >= _LEAST and len(word) <= LONGEST_WORD})


def _settle(model: dict[str, Any], known: Mapping[str, int]) -> None:
    """Make entries of the model out of tokens that were added after it, or theirs would be the ids of the new ones."""
    entries = model["vocab"]
    for token, number in sorted(known.items(), key=lambda item: item[1])[len(entries) :]:
        if isinstance(entries, list):
            entries.append([token, _NEVER])
        else:
            entries[token] = number
    if len(entries) != len(known) or max(known.values()) != len(known) - 1:
        raise ArtifactError(
            f"the tokenizer has {len(known):,} tokens and ids up to {max(known.values()):,}",
            allowed="tokenizer.extend needs ids without gaps",
            do="Leave out tokenizer.extend, or start from another checkpoint",
        )


def _whole_words(
    backend: Tokenizer, known: Container[str], words: Mapping[str, int], most: int
) -> dict[str, list[str]]:
    """Return the words that save most tokens, with the pieces that write them so far."""
    gains: list[tuple[int, str, list[str]]] = []
    for word, count in words.items():
        written = [token.value for token in backend.model.tokenize(word)]
        is_written = all(piece in known for piece in written) and any(character.isalpha() for character in word)
        if len(written) > 1 and is_written:
            gains.append((-count * (len(written) - 1), word, written))
    return {word: written for _, word, written in heapq.nsmallest(most, gains)}


def _wordpiece(model: dict[str, Any], backend: Tokenizer, words: Mapping[str, int], most: int) -> dict[str, list[str]]:
    found = _whole_words(backend, model["vocab"], words, most)
    first = len(model["vocab"])
    model["vocab"].update({word: first + place for place, word in enumerate(found)})
    return found


def _unigram(model: dict[str, Any], backend: Tokenizer, words: Mapping[str, int], most: int) -> dict[str, list[str]]:
    """A word's score is the logarithm of its frequency, and a little above its pieces', or it would never be used."""
    scores: dict[str, float] = dict(model["vocab"])
    found = _whole_words(backend, scores, words, most)
    total = sum(words.values())
    for word, written in found.items():
        apart = sum(scores[piece] for piece in written)
        model["vocab"].append([word, max(math.log(words[word] / total), apart + 0.01)])
    return found


def _bpe(model: dict[str, Any], backend: Tokenizer, words: Mapping[str, int], most: int) -> dict[str, list[str]]:
    """Merge the commonest pair of neighbours, again and again, ties broken by their text."""
    known, ending = set(model["vocab"]), model.get("end_of_word_suffix") or ""
    spelt = [([token.value for token in backend.model.tokenize(word)], count) for word, count in words.items()]
    # Where the joined pieces are another text, the word holds what the model cannot write.
    spelt = [one for one, word in zip(spelt, words, strict=True) if "".join(one[0]) == word + ending]
    counts: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)
    for place, (pieces, count) in enumerate(spelt):
        for pair in pairwise(pieces):
            counts[pair] += count
            places[pair].add(place)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    found: dict[str, list[str]] = {}
    while heap and len(found) < most:
        negative, pair = heapq.heappop(heap)
        token = "".join(pair)
        if -negative != counts[pair] or counts[pair] < _LEAST or token in known:
            continue
        known.add(token)
        found[token] = [base for part in pair for base in found.get(part, [part])]
        model["merges"].append(list(pair))
        model["vocab"][token] = len(model["vocab"])
        changed: set[Pair] = set()
        for place in places.pop(pair):
            pieces, count = spelt[place]
            for old in pairwise(pieces):
                counts[old] -= count
                changed.add(old)
            pieces = _merged(pieces, pair, token)
            spelt[place] = (pieces, count)
            for new in pairwise(pieces):
                counts[new] += count
                places[new].add(place)
                changed.add(new)
        for other in changed:
            heapq.heappush(heap, (-counts[other], other))
    return found


def _merged(pieces: Sequence[str], pair: Pair, token: str) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] = token
        else:
            out.append(piece)
    return out


_LEARNERS = {"WordPiece": _wordpiece, "Unigram": _unigram, "BPE": _bpe}
