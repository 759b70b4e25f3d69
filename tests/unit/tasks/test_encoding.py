"""Token ids that the heads of every family can pool."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headstart.core.data import InputSpec
from headstart.tasks.encoding import encode_texts


@pytest.fixture
def bare() -> PreTrainedTokenizerFast:
    """A tokenizer without [CLS] and the like, as GPT-2's."""
    words = {word: number for number, word in enumerate(["<unk>", "</s>", "in", "the", "beginning"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def ids(texts, tokenizer, family, max_length=8):
    return [feature["input_ids"] for feature in encode_texts(texts, InputSpec(tokenizer, family, max_length))]


def test_an_encoder_decoder_gets_one_end_and_no_other(bare):
    assert ids([["in the", "in </s> the", "the " * 20, ""]], bare, "encoder-decoder", 6) == [
        [2, 3, 1], [2, 3, 1], [3, 3, 3, 3, 3, 1], [1],
    ]  # fmt: skip


def test_a_decoder_reads_something_even_of_nothing(bare):
    assert ids([["in the", ""]], bare, "decoder") == [[2, 3], [1]]


def test_ends_of_the_tokenizers_own_stay(tiny_tokenizer):
    pairs = [["In the", "a [SEP] b"], ["beginning", "c"]]
    sep = tiny_tokenizer.sep_token_id
    found = ids(pairs, tiny_tokenizer, "encoder-decoder", 32)
    assert [row.count(sep) for row in found] == [2, 2] and all(row[-1] == sep for row in found)
    assert "token_type_ids" not in encode_texts(pairs, InputSpec(tiny_tokenizer, "encoder-decoder", 32))[0]
