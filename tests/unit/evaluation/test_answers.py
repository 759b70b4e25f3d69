"""SQuAD's two metrics, compared with a plain reimplementation of the official scripts on a thousand mixed answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core.errors import DataError
from headstart.core.randomness import generator
from headstart.evaluation.answers import normalized, squad_exact_match, squad_f1
from headstart.evaluation.comparison import compare_runs

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
ANSWERS = (
    """
the Denver Broncos|October 1973|$12|nearly $12|a|The|an|U.S.|6½ sacks|São Paulo|"first oil shock"|Theatre de l'Odéon
an apple a day|AN APPLE|1,000,000|1000000|twenty-one|twenty one|Mr. & Mrs. Smith|—|...|北京|the the the|an-other|x-the-y
42|42.0|  padded   with blanks |Ångström|straße|STRASSE|tab\tbed|a_b|100%|¿Qué?|to be or not to be|the king of the hill
king of hills|Hill, the|of|co-operation (UN)|α-helix|the α helix|No answer|O'Neill|ONeill
""".strip()
    .replace("\n", "|")
    .split("|")
)


def reference(prediction: str, answers: list[str]) -> tuple[float, float]:
    """Exact match and F1 of one question, as in evaluate-v1.1.py, and evaluate-v2.0.py where there is no answer."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in PUNCTUATION)
        pieces, current = [], ""
        for character in kept + " ":
            # A word ends where no letter, digit or _ follows.
            is_word = character.isalnum() or character == "_"
            if is_word == (bool(current) and (current[-1].isalnum() or current[-1] == "_")):
                current += character
            else:
                pieces.append(current)
                current = character
        pieces.append(current)
        return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()

    predicted = words(prediction)
    if not answers:
        return (1.0, 1.0) if not predicted else (0.0, 0.0)
    best_exact = best_f1 = 0.0
    for answer in answers:
        expected = words(answer)
        left, same = list(expected), 0
        for word in predicted:
            if word in left:
                left.remove(word)
                same += 1
        if " ".join(expected) == " ".join(predicted):
            best_exact = 1.0
        if same:
            precision, recall = same / len(predicted), same / len(expected)
            best_f1 = max(best_f1, 2 * precision * recall / (precision + recall))
    return best_exact, best_f1


def mixed(count: int) -> tuple[list[dict], list[str]]:
    """Questions with zero to four answers, and predictions that are correct, nearly correct, cut, joined or wrong."""
    gold, predicted = [], []
    for number in range(count):
        rng = generator(0, 0, number, "mixed answers")
        texts = [ANSWERS[i] for i in rng.integers(len(ANSWERS), size=rng.integers(5))]
        base = texts[0] if texts and rng.random() < 0.7 else ANSWERS[rng.integers(len(ANSWERS))]
        other = ANSWERS[rng.integers(len(ANSWERS))]
        changes = [
            base, base.upper(), f"The {base}.", base[: len(base) // 2], f"{base} {other}", f"“{base}”", other, "",
            " ".join(reversed(base.split())), base.replace(" ", "-"),
        ]  # fmt: skip
        gold.append({"text": texts, "answer_start": [0] * len(texts)})
        predicted.append(changes[rng.integers(len(changes))])
    return gold, predicted


def test_a_thousand_mixed_answers_score_as_in_the_official_scripts():
    gold, predicted = mixed(1000)
    expected = [reference(text, answers["text"]) for text, answers in zip(predicted, gold, strict=True)]
    for answers, text, (exact, f1) in zip(gold, predicted, expected, strict=True):
        assert squad_exact_match([answers], [text]) == exact, (answers, text)
        assert squad_f1([answers], [text]) == pytest.approx(f1, abs=1e-12), (answers, text)
    means = np.mean(expected, axis=0)
    assert 0.2 < means[0] < means[1] < 0.8, "the mixture shows little if hardly any, or nearly all, are correct"
    assert (squad_exact_match(gold, predicted), squad_f1(gold, predicted)) == pytest.approx(means)


def test_values_that_are_known():
    gold = [{"text": ["Saint Bernadette Soubirous"]}, {"text": ["in the 1870s", "1870"]}, {"text": []}, {"text": []}]
    predicted = ["Bernadette Soubirous", "1870!", "", "something"]
    assert squad_exact_match(gold, predicted) == 2 / 4
    assert squad_f1(gold, predicted) == pytest.approx((0.8 + 1 + 1 + 0) / 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  End.", "end"), ("a.m.", "am"), ("an-other", "another"), ("“the”", "“ ”"), ("Theatre", "theatre"), ("", "")],
)
def test_normalization(text, expected):
    assert normalized(text) == expected


@given(st.text(max_size=40))
def test_an_answer_equals_itself(text):
    assert squad_exact_match([{"text": [text]}], [text]) == 1.0
    assert squad_f1([{"text": [text]}], [text]) == float(bool(normalized(text)))
    assert normalized(normalized(text)) == normalized(text)


def test_the_number_of_predictions_must_match():
    with pytest.raises(DataError, match="2 gold values and 1 predictions"):
        squad_f1([{"text": ["a"]}, {"text": ["b"]}], ["a"])


def test_two_systems_are_compared_by_their_sums():
    gold, predicted = mixed(400)
    result = compare_runs(gold, {0: predicted}, {0: ["nothing"] * 400}, "squad_f1", samples=500)
    assert result.difference == pytest.approx(squad_f1(gold, predicted) - squad_f1(gold, ["nothing"] * 400))
    assert result.low < result.difference < result.high and result.p_over_examples < 0.01
