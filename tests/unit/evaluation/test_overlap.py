"""The overlap baseline: the choice or sentence that shares most words with the question."""

from __future__ import annotations

import pytest

from headstart.core.data import Examples
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.overlap import overlap, sentences

CHOICES = Examples(
    {
        "question": ["What do bees make out of nectar?", "Which planet is the largest planet?"],
        "choices": [["a loud noise", "honey out of nectar"], ["the largest planet, Jupiter", "Mars", "a comet"]],
    },
    [1, 0],
)
KING = "It was cold. The king was crowned in Rheims! All cheered."
QUESTIONS = Examples(
    {
        "question": ["Where was the king crowned?", "When did it rain?"],
        "context": [KING, "It did rain on Monday. Then came snow."],
    },
    [{"text": ["Rheims"]}, {"text": ["Monday"]}],
)
TEXTS = Examples({"source": ["One is here. Two is there."]}, ["One is here."])


def run(rows, metric):
    return overlap(rows, rows, rows, metric=metric, seed=0)


def test_the_choice_that_shares_most_is_taken():
    assert run(CHOICES, "accuracy").predictions == [1, 0]


def test_the_sentence_that_shares_most_is_the_answer():
    result = run(QUESTIONS, "squad_f1")
    assert result.predictions == ["The king was crowned in Rheims!", "It did rain on Monday."]
    assert result.chosen == {"question": "question", "answers": "context"}


def test_an_empty_text_has_no_answer():
    rows = Examples({"q": ["Who?", "What is that?"], "c": ["", "A long story about nothing at all."]}, [{}, {}])
    assert run(rows, "squad_f1").predictions == ["", "A long story about nothing at all."]


@pytest.mark.parametrize("metric", ["bleu", "accuracy", "squad_f1", "spearman"])
def test_other_rows_are_refused_with_a_reason(metric):
    with pytest.raises(NotApplicable, match=r"^it .*, and "):
        run(TEXTS, metric)


def test_labels_that_are_not_indices_of_choices_are_refused():
    with pytest.raises(NotApplicable, match="labels are not integers"):
        run(Examples(CHOICES.columns, ["right", "wrong"]), "accuracy")


def test_sentences():
    assert sentences(" One. Two?  Three!\nFour ") == ["One.", "Two?", "Three!", "Four"]
    assert sentences("3.5 per cent") == ["3.5 per cent"] and sentences("  ") == []
