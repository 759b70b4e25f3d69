"""Windows over long texts: they cover every token, overlap, and have exact offsets in any script."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import InputSpec
from headstart.tasks.windows import windows

KINDS = ("wordpiece", "bpe", "unigram")
WORDS = ["God", "heaven", "earth.", "É́tat", "naïve", "北京大学", "🙂🙃", "A\u0301B", "don't", "½", "ﬁn", "\u200dx"]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=6), min_size=1, max_size=60).map(" ".join)


def spec_of(tokenizers, kind, max_length=24) -> InputSpec:
    return InputSpec(tokenizers[kind], "encoder", max_length)


def tokens_and_offsets(tokenizer, text) -> tuple[list[int], list[tuple[int, int] | None]]:
    """All tokens of a text, and their offsets without leading whitespace."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = [(end - len(text[start:end].lstrip()), end) for start, end in encoded["offset_mapping"]]
    return encoded["input_ids"], list(map(none_if_empty, offsets))


def none_if_empty(offset) -> tuple[int, int] | None:
    """None for whitespace: tokenizers disagree on its offsets, and answers do not contain it."""
    return tuple(offset) if offset[0] < offset[1] else None


def of_text(window):
    """The window's tokens of the second text, with their offsets."""
    in_text = window.offsets[:, 0] >= 0
    return np.array(window.input_ids)[in_text].tolist(), list(map(none_if_empty, window.offsets[in_text].tolist()))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, stride=st.integers(0, 12))
def test_windows_cover_every_token_and_share_the_stride(tiny_tokenizers, kind, text, stride):
    spec = spec_of(tiny_tokenizers, kind)
    all_windows = list(windows(["Who made it?"], [text], spec, stride, 6))
    ids, offsets = of_text(all_windows[0])
    for before, window in pairwise(all_windows):
        new_ids, new_offsets = of_text(window)
        overlap = min(stride, (24 - 3 - 6) // 2)
        assert of_text(before)[0][-overlap:] == new_ids[:overlap] or not overlap
        assert len(new_ids) > overlap, "every window adds a token"
        ids, offsets = ids + new_ids[overlap:], offsets + new_offsets[overlap:]
    assert (ids, offsets) == tokens_and_offsets(tiny_tokenizers[kind], text)
    assert all(len(window.input_ids) <= 24 and window.pair == 0 for window in all_windows)
    assert all_windows[0].start == 0 and all_windows[-1].end == len(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, ends=st.tuples(st.integers(0, 400), st.integers(1, 12)))
def test_a_character_span_gets_exactly_its_tokens(tiny_tokenizers, kind, text, ends):
    """They are the tokens with one of its characters, and some window contains them all."""
    start = ends[0] % len(text) if text else 0
    end = start + len(text[start : start + ends[1]].rstrip())
    start = end - len(text[start:end].lstrip())
    spec = spec_of(tiny_tokenizers, kind, 40)
    _, offsets = tokens_and_offsets(tiny_tokenizers[kind], text)
    expected = [offset for offset in offsets if offset and offset[1] > start and offset[0] < end]
    all_windows = list(windows(["Who?"], [text], spec, 15, 5))
    spans = [(window, span) for window in all_windows if (span := window.tokens_of(start, end)) is not None]
    if not expected or len(offsets) - offsets[::-1].index(expected[-1]) - offsets.index(expected[0]) > 15:
        return
    assert spans
    for window, (first, last) in spans:
        assert list(filter(None, map(none_if_empty, window.offsets[first : last + 1].tolist()))) == expected


def test_pairs_keep_their_indices_across_chunks(tiny_tokenizers, monkeypatch):
    monkeypatch.setattr("headstart.tasks.windows._PAIRS_PER_CALL", 3)
    texts = ["word " * (8 * (i % 4 + 1)) for i in range(8)]
    all_windows = list(windows(["Who?"] * 8, texts, spec_of(tiny_tokenizers, "wordpiece"), 4, 8))
    assert [window.pair for window in all_windows] == sorted(window.pair for window in all_windows)
    assert {window.pair for window in all_windows} == set(range(8))
    for i, text in enumerate(texts):
        own = [window for window in all_windows if window.pair == i]
        assert own[0].start == 0 and own[-1].end == len(text)
        assert all(window.start > 0 for window in own[1:]) and all(window.end < len(text) for window in own[:-1])


def test_a_long_question_is_truncated_to_half_of_the_window(tiny_tokenizers):
    tokenizer = tiny_tokenizers["wordpiece"]
    spec = InputSpec(tokenizer, "encoder", 33)
    (short,) = windows(["  Who is it?"], ["God"], spec, 128, 64)
    assert short.input_ids == tokenizer("Who is it?", "God")["input_ids"], "leading spaces of a question are removed"
    long = list(windows(["Who is it? " * 50], ["earth " * 40], spec, 128, 64))
    assert all(sum(window.offsets[:, 0] >= 0) > 0 for window in long) and len(long) > 1
    assert sum(long[0].offsets[:, 0] < 0) == 15 + 3, "15 tokens of the question and three special ones"


def test_an_empty_text_has_one_window_without_tokens(tiny_tokenizers):
    for kind in KINDS:
        (window,) = windows(["Who?"], [""], spec_of(tiny_tokenizers, kind), 4, 8)
        assert window.tokens_of(0, 1) is None and (window.offsets == -1).all()
