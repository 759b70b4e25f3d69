"""The word cache returns the tokenizer's ids, for any characters between and within words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headstart.tokens.word_cache import WordCache, splits_before_spaces

KINDS = ["wordpiece", "bpe", "unigram"]
# Spaces of all kinds, characters that normalize to one, joiners, marks, capitals, a wide letter, an emoji.
LETTERS = list("abdkmoABé.,'´¨ﷺ漢😀") + ["\u0301", "\u200b", "\u200d", "\u00a0", "\u3000", "\t", "\n"] + 8 * [" "]


def by_text(cache: WordCache, texts: list[str]) -> list[list[int]]:
    encoded = cache.encode(texts)
    ids = iter(encoded.ids.tolist())
    return [[next(ids) for _ in range(length)] for length in encoded.lengths]


def by_tokenizer(backend: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text(alphabet=st.sampled_from(LETTERS), max_size=60), max_size=6))
@settings(max_examples=60, deadline=None)
def test_ids_are_the_tokenizers(kind: str, texts: list[str], tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    backend = tokenizers[kind].backend_tokenizer
    cache = WordCache(backend, max_words=4)
    for _ in range(2):
        assert by_text(cache, texts) == by_tokenizer(backend, texts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_word_is_not_encoded_again(
    kind: str, tokenizers: dict[str, PreTrainedTokenizerFast], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = tokenizers[kind].backend_tokenizer
    cache = WordCache(backend)
    lines = [line for text in texts for line in text.splitlines()]
    known = by_tokenizer(backend, lines)
    assert by_text(cache, lines) == known
    encoded: list[str] = []

    class Watched:
        def encode_batch(self, batch: list[str], **_: Any) -> list[Any]:
            encoded.extend(batch)
            return []

        encode_batch_fast = encode_batch

    monkeypatch.setattr(cache, "_backend", Watched())
    assert by_text(cache, lines) == known
    assert not encoded


def changed(tokenizer: PreTrainedTokenizerFast, change: Any) -> dict[str, Any]:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    change(backend)
    description: dict[str, Any] = json.loads(backend.to_str())
    return description


def test_a_tokenizer_that_spans_spaces_gets_unsplit_texts(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    from tokenizers import AddedToken

    def pattern(backend: Any) -> None:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[a-z ]+"), "isolated")

    def no_splitter(backend: Any) -> None:
        backend.pre_tokenizer = None

    def unsplit(backend: Any) -> None:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)

    def no_regex(backend: Any) -> None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)

    def replaced(backend: Any) -> None:
        backend.normalizer = normalizers.Replace("a b", "c")

    def stripped(backend: Any) -> None:
        backend.normalizer = normalizers.Strip()

    def dropout(backend: Any) -> None:
        backend.model.dropout = 0.1

    def added(backend: Any) -> None:
        backend.add_tokens([AddedToken("New York")])

    def greedy(backend: Any) -> None:
        backend.add_tokens([AddedToken("York", rstrip=True)])

    bpe = tokenizers["bpe"]
    for change in (pattern, no_splitter, unsplit, no_regex, replaced, stripped, dropout, added, greedy):
        assert not splits_before_spaces(changed(bpe, change)), change.__name__
    for kind in KINDS:
        assert splits_before_spaces(changed(tokenizers[kind], lambda _: None)), kind
    assert splits_before_spaces(changed(bpe, lambda backend: backend.add_tokens(["York"])))
    cache = WordCache(Tokenizer.from_str(json.dumps(changed(bpe, added))))
    york = bpe.backend_tokenizer.get_vocab_size()
    assert york in by_text(cache, ["ba New York da"])[0]
