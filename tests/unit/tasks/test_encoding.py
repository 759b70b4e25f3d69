"""Tokenization for the classification heads of every family."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headstart.core.data import InputSpec
from headstart.tasks.encoding import encode_texts


@pytest.fixture
def plain_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that adds no special tokens, as GPT-2's."""
    words = {word: index for index, word in enumerate(["<unk>", "</s>", "in", "the", "beginning"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def ids(texts, tokenizer, family, max_length=8):
    return [feature["input_ids"] for feature in encode_texts(texts, InputSpec(tokenizer, family, max_length))]


def test_an_encoder_decoder_gets_exactly_one_end_token(plain_tokenizer):
    assert ids([["in the", "in </s> the", "the " * 20, ""]], plain_tokenizer, "encoder-decoder", 6) == [
        [2, 3, 1], [2, 3, 1], [3, 3, 3, 3, 3, 1], [1],
    ]  # fmt: skip


def test_a_decoder_gets_a_token_for_an_empty_text(plain_tokenizer):
    assert ids([["in the", ""]], plain_tokenizer, "decoder") == [[2, 3], [1]]


def test_end_tokens_that_the_tokenizer_adds_are_kept(tiny_tokenizer):
    pairs = [["In the", "a [SEP] b"], ["beginning", "c"]]
    sep = tiny_tokenizer.sep_token_id
    encoded = ids(pairs, tiny_tokenizer, "encoder-decoder", 32)
    assert [row.count(sep) for row in encoded] == [2, 2] and all(row[-1] == sep for row in encoded)
    assert "token_type_ids" not in encode_texts(pairs, InputSpec(tiny_tokenizer, "encoder-decoder", 32))[0]
