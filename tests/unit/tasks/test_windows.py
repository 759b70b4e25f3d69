"""Windows over long texts: nothing is lost, neighbours overlap, and places are exact in any script."""

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


def reading_of(tokenizers, kind, max_length=24) -> InputSpec:
    return InputSpec(tokenizers[kind], "encoder", max_length)


def places_of(tokenizer, text) -> tuple[list[int], list[tuple[int, int]]]:
    """All tokens of a text, and where each stands once the blanks before it are left out."""
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = [(end - len(text[start:end].lstrip()), end) for start, end in whole["offset_mapping"]]
    return whole["input_ids"], list(map(or_blank, places))


def or_blank(place) -> tuple[int, int] | None:
    """Tokenizers do not agree on where a blank stands, and it is no part of an answer."""
    return tuple(place) if place[0] < place[1] else None


def of_text(window):
    """The window's tokens of the second text, with their places."""
    held = window.offsets[:, 0] >= 0
    return np.array(window.input_ids)[held].tolist(), list(map(or_blank, window.offsets[held].tolist()))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, stride=st.integers(0, 12))
def test_windows_cover_every_token_and_share_the_stride(tiny_tokenizers, kind, text, stride):
    reading = reading_of(tiny_tokenizers, kind)
    found = list(windows(["Who made it?"], [text], reading, stride, 6))
    ids, places = of_text(found[0])
    for before, window in pairwise(found):
        more, where = of_text(window)
        shared = min(stride, (24 - 3 - 6) // 2)
        assert of_text(before)[0][-shared:] == more[:shared] or not shared
        assert len(more) > shared, "a window that adds nothing"
        ids, places = ids + more[shared:], places + where[shared:]
    assert (ids, places) == places_of(tiny_tokenizers[kind], text)
    assert all(len(window.input_ids) <= 24 and window.pair == 0 for window in found)
    assert found[0].begins == 0 and found[-1].ends == len(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, ends=st.tuples(st.integers(0, 400), st.integers(1, 12)))
def test_a_stretch_of_characters_is_found_again_from_its_window(tiny_tokenizers, kind, text, ends):
    """Its tokens are all those, and only those, that hold one of its characters; some window has them all."""
    start = ends[0] % len(text) if text else 0
    end = start + len(text[start : start + ends[1]].rstrip())
    start = end - len(text[start:end].lstrip())
    reading = reading_of(tiny_tokenizers, kind, 40)
    _, whole = places_of(tiny_tokenizers[kind], text)
    wanted = [place for place in whole if place and place[1] > start and place[0] < end]
    found = list(windows(["Who?"], [text], reading, 15, 5))
    held = [(window, place) for window in found if (place := window.tokens_of(start, end)) is not None]
    if not wanted or len(whole) - whole[::-1].index(wanted[-1]) - whole.index(wanted[0]) > 15:
        return
    assert held
    for window, (first, last) in held:
        assert list(filter(None, map(or_blank, window.offsets[first : last + 1].tolist()))) == wanted


def test_pairs_keep_their_numbers_across_chunks(tiny_tokenizers, monkeypatch):
    monkeypatch.setattr("headstart.tasks.windows._TOGETHER", 3)
    texts = ["word " * (8 * (number % 4 + 1)) for number in range(8)]
    found = list(windows(["Who?"] * 8, texts, reading_of(tiny_tokenizers, "wordpiece"), 4, 8))
    assert [window.pair for window in found] == sorted(window.pair for window in found)
    assert {window.pair for window in found} == set(range(8))
    for number, text in enumerate(texts):
        own = [window for window in found if window.pair == number]
        assert own[0].begins == 0 and own[-1].ends == len(text)
        assert all(window.begins > 0 for window in own[1:]) and all(window.ends < len(text) for window in own[:-1])


def test_a_long_question_is_cut_and_leaves_half_of_the_room(tiny_tokenizers):
    tokenizer = tiny_tokenizers["wordpiece"]
    reading = InputSpec(tokenizer, "encoder", 33)
    (short,) = windows(["  Who is it?"], ["God"], reading, 128, 64)
    assert short.input_ids == tokenizer("Who is it?", "God")["input_ids"], "blanks before a question are no tokens"
    long = list(windows(["Who is it? " * 50], ["earth " * 40], reading, 128, 64))
    assert all(sum(window.offsets[:, 0] >= 0) > 0 for window in long) and len(long) > 1
    assert sum(long[0].offsets[:, 0] < 0) == 15 + 3, "15 tokens of the question and three special ones"


def test_an_empty_text_has_one_window_without_tokens(tiny_tokenizers):
    for kind in KINDS:
        (window,) = windows(["Who?"], [""], reading_of(tiny_tokenizers, kind), 4, 8)
        assert window.tokens_of(0, 1) is None and (window.offsets == -1).all()
