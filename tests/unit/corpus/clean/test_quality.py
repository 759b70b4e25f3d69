"""Each quality rule against values computed by hand."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.core.errors import RecipeError
from headstart.corpus.clean.c4 import C4
from headstart.corpus.clean.fineweb import FineWeb
from headstart.corpus.clean.gopher import Gopher
from headstart.corpus.clean.quality import Quality, QualityConfig
from headstart.corpus.clean.repetition import Repetition, repeated_fractions
from headstart.corpus.parts.shingles import words_of

POEM = "The rose is red, the violet's blue...\n- The honey's sweet #1\nAnd so are you…\n\nAnd so are you…"
# words: 7 + 5 + 4 + 4 = 20; characters 37 + 1 + 22 + 1 + 15 + 2 + 15 = 93; blanks 6+1+4+1+3+2+3 = 20


def measured(text: str, **families: object) -> dict[str, float]:
    config = QualityConfig.model_validate({"gopher": None, "repetition": None, "fineweb": None, **families})
    return {name: float(values[0]) for name, values in Quality(config).measure(pa.array([text])).items()}


def test_gopher_by_hand() -> None:
    assert measured(POEM, gopher=Gopher()) == pytest.approx(
        {
            "words": 20,
            "mean word length": (len(POEM) - 20) / 20,
            "hashes per word": 1 / 20,
            "ellipses per word": 3 / 20,
            "share of lines with a bullet": 1 / 4,
            "share of lines with an ellipsis": 3 / 4,
            "share of words with a letter": 18 / 20,
            "stop words": 2,
        }
    )


def test_fineweb_by_hand() -> None:
    lines = POEM.replace("\n\n", "\n").split("\n")
    assert measured(POEM, fineweb=FineWeb()) == pytest.approx(
        {
            "share of lines with an end": 3 / 4,
            "share of characters in repeated lines": 15 / sum(map(len, lines)),
            "share of short lines": 3 / 4,
        }
    )


def test_repetition_of_lines_and_paragraphs_by_hand() -> None:
    values = measured("one two\none two\nthree\n\none two\none two\nthree", repetition=Repetition())
    assert values["share of repeated lines"] == pytest.approx(4 / 6)
    assert values["share of characters in repeated lines"] == pytest.approx((38 - 12) / 38)
    assert values["share of repeated paragraphs"] == pytest.approx(1 / 2)
    assert values["share of characters in repeated paragraphs"] == pytest.approx(1 / 2)


def test_ngrams_by_hand() -> None:
    # "a b" occurs three times, with 2 characters each; the words have 2 + 2 + 2 + 1 + 1 = 8.
    values = measured("a b c a b d a b", repetition=Repetition())
    assert values["top 2-gram"] == pytest.approx(6 / 8)
    assert values["top 3-gram"] == values["5-grams"] == 0
    values = measured("x1 x2 x3 x4 x5 y x1 x2 x3 x4 x5 z", repetition=Repetition())
    assert values["5-grams"] == pytest.approx(20 / 22) and values["6-grams"] == 0
    assert values["top 4-gram"] == pytest.approx(16 / 22)


def brute_force(text: str, n: int) -> tuple[float, float]:
    words = text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    counts = Counter(grams)
    total = sum(map(len, words))
    repeated = {gram for gram, count in counts.items() if count > 1}
    top = max(((count, sum(map(len, gram))) for gram, count in counts.items() if count > 1), default=(0, 0))
    covered = {i + k for i, gram in enumerate(grams) if gram in repeated for k in range(n)}
    return top[0] * top[1] / total, sum(len(words[i]) for i in covered) / total


def test_ngrams_against_brute_force() -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choice(["a", "bb", "ccc", "dddd"][: 2 + k % 3]) for _ in range(2 + 7 * k)) for k in range(25)]
    values = repeated_fractions(words_of(pa.array(texts)), [2, 3, 4], [5, 6, 7, 8, 9, 10])
    for i, text in enumerate(texts):
        for n in range(2, 11):
            top, covered = brute_force(text, n)
            if n <= 4:
                assert values[f"top {n}-gram"][i] == pytest.approx(top), (n, text)
            else:
                assert values[f"{n}-grams"][i] == pytest.approx(covered), (n, text)


def test_c4_removes_lines_and_drops_pages() -> None:
    quality = Quality(QualityConfig(gopher=None, repetition=None, fineweb=None, c4=C4()))
    good = "This first line has enough words.\nSo has this second line here.\nAnd a third one ends it."
    texts = [
        f"Menu\n{good}\nThis line has no end at all\nPlease enable Javascript to see this page.\n"
        "See our privacy policy, it says much.",
        f"{good}\nLorem ipsum dolor sit amet, and so on.",
        f"{good}\nfunction() {{ return true and nothing else. }} it ends so.",
        "One sentence is all that there is.",
    ]
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    output = quality.apply(table)
    assert output.table["text"][0].as_py() == good
    assert output.verdict.to_pylist() == [None, "c4.lorem_ipsum", "c4.curly_bracket", "c4.sentences"]


PROSE = (
    "The harbour lay quiet when Maria came down the stairs. Two boats had gone out before dawn, and their lamps were "
    "still to be seen near the headland. She counted the nets that hung along the wall, found one torn, and sat down "
    "to mend it. Nobody spoke. A dog slept beside the barrels. By noon the wind would turn, her uncle had said, and "
    "then there might be fish enough for everyone. She thought of the letter in her pocket, which she had read so "
    "often that its folds had become soft as cloth. It came from the city, where her sister worked with a printer."
)


def test_each_rule_drops_its_example() -> None:
    words = dict.fromkeys(PROSE.replace(".", "").replace(",", "").split())
    pairs = [f"{word} {other}" for word, other in zip(words, reversed(words), strict=True)]
    cases = {
        "gopher.few_words": "The cat sat with the dog.",
        "gopher.many_words": "the and word other " * 30_000,
        "gopher.short_words": "a b to of " * 20,
        "gopher.long_words": "the and " + "extraordinarily-long-compound-words " * 60,
        "gopher.hashes": PROSE + " #tag" * 20,
        "gopher.ellipses": PROSE + " well..." * 20,
        "gopher.bullets": "\n".join(f"- {word}, quite another thing" for word in words),
        "gopher.ellipsis_lines": "\n".join(f"{sentence}…" for sentence in PROSE.split(".") if sentence),
        "gopher.letters": PROSE + " 12 345 6789" * 12,
        "gopher.stop_words": "Der Hund ging gestern langsam über die Straße " * 10,
        "repetition.lines": "\n".join([*PROSE.split(". "), *["and the same words again"] * 8]),
        "repetition.top_2_gram": PROSE + " buy now" * 60,
        "fineweb.line_ends": "\n".join(pairs),
        "fineweb.short_lines": "\n".join(f"{pair}." for pair in pairs),
        "kept": PROSE,
    }
    table = pa.table({"text": pa.array(list(cases.values()), pa.large_string())})
    verdict = Quality(QualityConfig()).apply(table).verdict.to_pylist()
    assert dict(zip(cases, verdict, strict=True)) == {rule: None if rule == "kept" else rule for rule in cases}


def test_a_source_may_turn_off_a_rule() -> None:
    quality = Quality(QualityConfig(), {"poems": ["gopher.few_words"]})
    table = pa.table(
        {
            "text": pa.array(
                ["The lady and the cat had to be there.", "The lady and the cat had to go."], pa.large_string()
            ),
            "source": ["poems", "web"],
        }
    )
    assert quality.apply(table).verdict.to_pylist() == [None, "gopher.few_words"]
    with pytest.raises(RecipeError, match=r"did you mean 'gopher.few_words'"):
        Quality(QualityConfig(), {"poems": ["gopher.few_word"]})


def test_an_empty_batch_gives_no_values() -> None:
    table = pa.table({"text": pa.array([], pa.large_string())})
    assert len(Quality(QualityConfig()).apply(table).verdict) == 0
    assert np.size(repeated_fractions(words_of(table["text"]), [2], [5])["5-grams"]) == 0
