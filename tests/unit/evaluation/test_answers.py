"""SQuAD's two metrics: held against a plain re-telling of the official scripts, on a thousand mixed answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core.errors import DataError
from headstart.core.randomness import generator
from headstart.evaluation.answers import normalised, squad_exact_match, squad_f1
from headstart.evaluation.significance import paired_bootstrap

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


def retold(prediction: str, answers: list[str]) -> tuple[float, float]:
    """Exact match and F1 of one question, step by step: evaluate-v1.1.py, and evaluate-v2.0.py where there is none."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in PUNCTUATION)
        pieces, current = [], ""
        for character in kept + " ":
            # An article ends where a letter, a digit or a _ does not go on.
            is_word = character.isalnum() or character == "_"
            if is_word == (bool(current) and (current[-1].isalnum() or current[-1] == "_")):
                current += character
            else:
                pieces.append(current)
                current = character
        pieces.append(current)
        return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()

    found = words(prediction)
    if not answers:
        return (1.0, 1.0) if not found else (0.0, 0.0)
    best_exact = best_f1 = 0.0
    for answer in answers:
        wanted = words(answer)
        left, same = list(wanted), 0
        for word in found:
            if word in left:
                left.remove(word)
                same += 1
        if " ".join(wanted) == " ".join(found):
            best_exact = 1.0
        if same:
            precision, recall = same / len(found), same / len(wanted)
            best_f1 = max(best_f1, 2 * precision * recall / (precision + recall))
    return best_exact, best_f1


def mixed(count: int) -> tuple[list[dict], list[str]]:
    """Questions with none to four answers, and predictions that are right, nearly right, cut, joined or wrong."""
    gold, predicted = [], []
    for number in range(count):
        chance = generator(0, 0, number, "mixed answers")
        texts = [ANSWERS[i] for i in chance.integers(len(ANSWERS), size=chance.integers(5))]
        base = texts[0] if texts and chance.random() < 0.7 else ANSWERS[chance.integers(len(ANSWERS))]
        other = ANSWERS[chance.integers(len(ANSWERS))]
        changes = [
            base, base.upper(), f"The {base}.", base[: len(base) // 2], f"{base} {other}", f"“{base}”", other, "",
            " ".join(reversed(base.split())), base.replace(" ", "-"),
        ]  # fmt: skip
        gold.append({"text": texts, "answer_start": [0] * len(texts)})
        predicted.append(changes[chance.integers(len(changes))])
    return gold, predicted


def test_a_thousand_mixed_answers_score_as_the_official_scripts_score_them():
    gold, predicted = mixed(1000)
    expected = [retold(text, answers["text"]) for text, answers in zip(predicted, gold, strict=True)]
    for answers, text, (exact, f1) in zip(gold, predicted, expected, strict=True):
        assert squad_exact_match([answers], [text]) == exact, (answers, text)
        assert squad_f1([answers], [text]) == pytest.approx(f1, abs=1e-12), (answers, text)
    means = np.mean(expected, axis=0)
    assert 0.2 < means[0] < means[1] < 0.8, "the mixture tells nothing if hardly any, or nearly all, are right"
    assert (squad_exact_match(gold, predicted), squad_f1(gold, predicted)) == pytest.approx(means)


def test_values_that_are_known():
    gold = [{"text": ["Saint Bernadette Soubirous"]}, {"text": ["in the 1870s", "1870"]}, {"text": []}, {"text": []}]
    found = ["Bernadette Soubirous", "1870!", "", "something"]
    assert squad_exact_match(gold, found) == 2 / 4
    assert squad_f1(gold, found) == pytest.approx((0.8 + 1 + 1 + 0) / 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  End.", "end"), ("a.m.", "am"), ("an-other", "another"), ("“the”", "“ ”"), ("Theatre", "theatre"), ("", "")],
)
def test_normalisation(text, expected):
    assert normalised(text) == expected


@given(st.text(max_size=40))
def test_an_answer_is_right_against_itself_in_any_case(text):
    assert squad_exact_match([{"text": [text]}], [text]) == 1.0
    assert squad_f1([{"text": [text]}], [text]) == float(bool(normalised(text)))
    assert normalised(normalised(text)) == normalised(text)


def test_as_many_predictions_as_questions():
    with pytest.raises(DataError, match="2 gold values and 1 predictions"):
        squad_f1([{"text": ["a"]}, {"text": ["b"]}], ["a"])


def test_two_systems_are_compared_by_their_sums():
    gold, predicted = mixed(400)
    found = paired_bootstrap(gold, [predicted], [["nothing"] * 400], "squad_f1", samples=500)
    assert found.difference == pytest.approx(squad_f1(gold, predicted) - squad_f1(gold, ["nothing"] * 400))
    assert found.low < found.difference < found.high and found.p_value < 0.01
