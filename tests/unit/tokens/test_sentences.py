"""Sentence starts: examples of the rules, and properties for any text."""

from __future__ import annotations

import time
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from headstart.tokens.sentences import sentence_starts


def split(text: str) -> list[str]:
    starts = sentence_starts(text)
    return [text[a:b] for a, b in pairwise([*starts, len(text)])]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", " Two!", " Three?", " Four…", " Five."],
        ['He said "Stop."', " Then (she left.)", " End."],
        ['"What?" he asked.', " Nobody knew."],
        ["Dr. Smith met J. R. R. Tolkien in the U.S. Army, e.g. in vol. 3 of No. 5.", " They spoke."],
        ["It cost 3.5 million.", " 20 people paid."],
        ["A heading without a stop", "\nA line.", "\n\nAnother."],
        ["Mr.", "\nNew line wins."],
        ["今日は。", "明日も！「はい。」", "そう。"],
        ["Das ist gut.", " Über alles."],
        ["Trailing space. \n "],
        ["  Leading space.", " Next."],
        ["And...", " So on."],
    ],
)
def test_examples(sentences: list[str]) -> None:
    assert split("".join(sentences)) == sentences


@given(st.text(alphabet=st.sampled_from(list(" \n\t.!?…。「」\"')abAB1_é世\x1c\u3000")), max_size=60))
@settings(max_examples=300, deadline=None)
def test_starts_are_ascending_and_every_sentence_has_content(text: str) -> None:
    starts = sentence_starts(text)
    assert starts == sorted(set(starts)) and starts[:1] == ([0] if text else [])
    assert all(sentence.strip(" \n\t\u3000") for sentence in split(text)[1:])


@given(text=st.text(alphabet=st.sampled_from(list(" \n\t.!?…\"')(-,abAB1_é\x1c\u00a0")), max_size=60))
@settings(max_examples=100, deadline=None)
def test_sentences_encode_to_the_tokens_of_the_text(text: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for kind, tokenizer in tokenizers.items():
        pieces = [tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in split(text)]
        assert list(chain.from_iterable(pieces)) == tokenizer(text, add_special_tokens=False)["input_ids"], kind


@given(text=st.text(alphabet=st.sampled_from(list(" \n。！「」”）.世界a1_")), max_size=40))
@settings(max_examples=100, deadline=None)
def test_cjk_sentences_too_except_for_unigram(text: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for kind in ("wordpiece", "bpe"):
        pieces = [tokenizers[kind](piece, add_special_tokens=False)["input_ids"] for piece in split(text)]
        assert list(chain.from_iterable(pieces)) == tokenizers[kind](text, add_special_tokens=False)["input_ids"], kind


@pytest.mark.parametrize("unit", [" ", ".", '"', ". ", "a", "。", "\n", ".)"])
def test_time_is_linear_on_monotonous_text(unit: str) -> None:
    text = unit * (400_000 // len(unit)) + "x"
    start = time.process_time()
    sentence_starts(text)
    assert time.process_time() - start < 5
