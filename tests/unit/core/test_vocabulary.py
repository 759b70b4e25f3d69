"""The tables over token ids that objectives read, for each kind of tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError
from headstart.core.vocabulary import vocabulary_of

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def fast(model, pre_tokenizer=None, **special) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(special or SPECIAL))


def table(words: list[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate([*SPECIAL.values(), *words])}


def starts(tokenizer, words: list[str]) -> dict[str, bool]:
    vocabulary = vocabulary_of(tokenizer)
    return {word: bool(vocabulary.starts_word[tokenizer.convert_tokens_to_ids(word)]) for word in words}


def test_a_token_that_an_objective_writes_must_exist():
    flags = np.zeros(9, dtype=bool)
    vocabulary = Vocabulary(9, pad=0, cls=1, sep=2, mask=-1, special=flags, starts_word=flags)
    assert vocabulary.require("cls") == 1
    with pytest.raises(ArtifactError, match="the tokenizer has no mask token"):
        vocabulary.require("mask")


def test_wordpiece_words_continue_with_a_prefix():
    words = ["play", "##ing", ".", "##s", "#"]
    tokenizer = fast(models.WordPiece(table(words), unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer())
    assert starts(tokenizer, words) == {"play": True, "##ing": False, ".": True, "##s": False, "#": True}


def test_byte_level_bpe_words_start_with_a_space_marker():
    words = ["Ġplay", "ing", "Ġ", ".", "1", "!?"]
    tokenizer = fast(models.BPE(table(words), []), pre_tokenizers.ByteLevel())
    assert starts(tokenizer, words) == {"Ġplay": True, "ing": False, "Ġ": True, ".": True, "1": False, "!?": True}


def test_unigram_words_start_with_a_space_marker():
    words = ["▁play", "ing", "▁", ".", "ि"]
    pieces = [(word, -float(index)) for word, index in table(words).items()]
    tokenizer = fast(models.Unigram(pieces, unk_id=1), pre_tokenizers.Metaspace())
    expected = {"▁play": True, "ing": False, "▁": True, ".": True, "ि": False}
    assert starts(tokenizer, words) == expected, "a vowel sign belongs to the letter before it"


def test_special_tokens_are_known_and_missing_ones_are_minus_one():
    tokenizer = fast(models.WordPiece(table(["a"]), unk_token="[UNK]"))
    vocabulary = vocabulary_of(tokenizer)
    assert (vocabulary.pad, vocabulary.cls, vocabulary.sep, vocabulary.mask) == (0, 2, 3, 4)
    assert vocabulary.special.tolist() == [True] * 5 + [False]
    assert vocabulary.size == len(tokenizer) == 6
    bare = vocabulary_of(fast(models.WordPiece(table(["a"]), unk_token="[UNK]"), unk_token="[UNK]"))
    assert (bare.pad, bare.mask) == (-1, -1) and bare.special.sum() == 1


def test_a_decoder_s_tokenizer_has_bos_and_eos():
    words = {"<s>": 0, "</s>": 1, "a": 2}
    both = vocabulary_of(fast(models.BPE(words, []), bos_token="<s>", eos_token="</s>"))
    assert (both.cls, both.sep, both.pad, both.mask) == (0, 1, 1, -1)
    one = vocabulary_of(fast(models.BPE(words, []), bos_token="</s>", eos_token="</s>", pad_token="<s>"))
    assert (one.cls, one.sep, one.pad) == (1, 1, 0)


def test_added_tokens_are_counted():
    tokenizer = fast(models.WordPiece(table(["a"]), unk_token="[UNK]"))
    tokenizer.add_tokens(["<new>"])
    assert vocabulary_of(tokenizer).size == 7


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

        def __len__(self):
            return 3

    with pytest.raises(ArtifactError, match="slow tokenizer"):
        vocabulary_of(Slow())
