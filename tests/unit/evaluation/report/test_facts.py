"""What the page of errors reports."""

from __future__ import annotations

import pytest

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.report.against import compare_models
from headstart.evaluation.report.facts import evaluate_rows
from headstart.evaluation.report.predicted import MOST_ROWS, Predicted
from headstart.evaluation.report.rows import LONGEST_TEXT, score_rows, text_of


def labeled(gold, predicted, probability=None, texts=None, **more) -> Predicted:
    """Two classes, a and b; `probability` is that of the predicted class."""
    rows = Examples({"text": texts or [f"text {i}" for i in range(len(gold))]}, gold, "rows")
    scores = [
        {label: p, ("b" if label == "a" else "a"): 1 - p}
        for label, p in zip(predicted, probability or [], strict=False)
    ]
    return Predicted(rows, ["accuracy", "f1"], predicted, scores, **more)


def test_the_surest_errors_come_first():
    gold, predicted = ["a", "a", "b", "b", "a"], ["a", "b", "a", "b", "b"]
    facts = evaluate_rows(labeled(gold, predicted, [0.9, 0.6, 0.99, 0.8, 0.7]), "m", "d")
    assert facts.errors == 3 and facts.worst_by == "confidence"
    assert [(row.row, row.gold, row.predicted, row.score) for row in facts.worst] == [
        (3, "b", "a", 0.99), (5, "a", "b", 0.7), (2, "a", "b", 0.6),
    ]  # fmt: skip
    assert facts.metrics["accuracy"].value == 0.4 and facts.calibration.accuracy == 0.4


def test_at_most_fifty_errors_with_short_texts():
    facts = evaluate_rows(labeled(["a"] * 80, ["b"] * 80, texts=["x" * 2000] * 80), "m", "d")
    assert len(facts.worst) == MOST_ROWS and facts.errors == 80
    assert all(len(row.text) <= LONGEST_TEXT and row.text.endswith("…") for row in facts.worst)
    assert facts.calibration is None and facts.label_errors is None, "no probabilities"


def test_wrong_labels_are_found_by_all_seeds_together():
    gold = ["a"] * 10 + ["b"] * 10
    a = [0.9] * 9 + [0.1] + [0.1] * 10
    one = [{"a": p, "b": 1 - p} for p in a]
    # The second model is sure of the given label of row 10, so that the mean is undecided.
    two = [{"a": 0.9 if i == 9 else p, "b": 0.1 if i == 9 else 1 - p} for i, p in enumerate(a)]
    predicted = ["a" if p > 0.5 else "b" for p in a]
    rows = Examples({"text": ["t"] * 20}, gold, "rows")
    alone = evaluate_rows(Predicted(rows, ["accuracy"], predicted, one), "m", "d").label_errors
    both = evaluate_rows(Predicted(rows, ["accuracy"], predicted, one, [one, two]), "m", "d").label_errors
    assert (alone.models, [row.row for row in alone.rows]) == (1, [10])
    assert (both.models, both.found) == (2, 0)


def test_scores_by_length_and_by_column():
    gold, predicted = ["a"] * 8, ["a", "a", "a", "a", "b", "b", "b", "b"]
    texts = ["x" * n for n in range(1, 9)]
    facts = evaluate_rows(labeled(gold, predicted, texts=texts), "m", "d", ("source", ["web"] * 6 + ["mail"] * 2))
    assert [(part.name, part.score.value) for part in facts.by_length.slices] == [
        ("1 to 2", 1.0), ("3 to 4", 1.0), ("5 to 6", 0.0), ("7 to 8", 0.0),
    ]  # fmt: skip
    assert [(part.name, part.rows, part.score.value) for part in facts.by_column.slices] == [
        ("web", 6, pytest.approx(4 / 6)), ("mail", 2, 0.0),
    ]  # fmt: skip


def test_numbers_have_residuals_and_no_classes():
    rows = Examples({"text": ["one", "two", "three"]}, [1.0, 2.0, 3.0], "rows")
    facts = evaluate_rows(Predicted(rows, ["spearman", "pearson"], [1.5, 2.0, 1.0]), "m", "d")
    assert facts.residuals.mean == pytest.approx(-0.5)
    assert facts.residuals.absolute.value == pytest.approx(2.5 / 3)
    assert facts.residuals.root_mean_square == pytest.approx((4.25 / 3) ** 0.5)
    assert sum(facts.residuals.histogram.values()) == 3
    assert [(row.row, row.score) for row in facts.worst] == [(3, -2.0), (1, 0.5), (2, 0.0)]
    assert facts.matrix is None and facts.classes == [] and facts.errors is None


def test_tags_have_a_row_per_tag_and_the_worst_sentences():
    rows = Examples(
        {"words": [["Rome", "is", "old"], ["I", "see", "Paris"]]}, [["B", "O", "O"], ["O", "O", "B"]], "rows"
    )
    facts = evaluate_rows(Predicted(rows, ["token_accuracy"], [["B", "O", "O"], ["B", "O", "O"]]), "m", "d")
    assert {item.label: (item.support, item.recall.value) for item in facts.classes} == {"O": (4, 0.75), "B": (2, 0.5)}
    assert [(row.row, row.gold, row.text) for row in facts.worst] == [(2, "I O, Paris B", "I see Paris")]
    assert facts.errors == 1 and facts.worst[0].score == pytest.approx(1 / 3)


def test_of_tags_the_wrong_ones_are_shown_with_their_words():
    rows = Examples({"tokens": [["In", "Eden", "Adam"]]}, [["O", "B-LOC", "B-PER"]], "rows")
    facts = evaluate_rows(Predicted(rows, ["seqeval_f1"], [["O", "O", "B-LOC"]]), "m", "d")
    assert [(row.gold, row.predicted) for row in facts.worst] == [("Eden B-LOC, Adam B-PER", "Eden O, Adam B-LOC")]


def test_answers_are_ordered_by_their_score():
    gold = [{"text": ["red"]}, {"text": ["the blue sky"]}, {"text": []}]
    rows = Examples({"question": ["q1", "q2", "q3"], "context": ["c"] * 3}, gold, "rows")
    facts = evaluate_rows(Predicted(rows, ["squad_f1"], ["red", "blue", "no"]), "m", "d")
    assert [(row.row, row.gold) for row in facts.worst] == [(3, "(no answer)"), (2, "the blue sky")]
    assert facts.worst[0].text == "question: q3\ncontext: c"


def test_a_text_without_gold_values():
    predictions = [{"nats": 3.0, "tokens": 3, "bytes": 9}, {"nats": 9.0, "tokens": 3, "bytes": 9}]
    rows = Examples({"text": ["easy", "hard words"]}, [None, None], "rows")
    facts = evaluate_rows(Predicted(rows, ["bits_per_byte", "perplexity"], predictions), "m", "d")
    assert [row.row for row in facts.worst] == [2, 1]


def test_the_text_of_a_row_is_cut_by_column_and_can_be_written():
    rows = Examples({"a": ["x" * 900], "b": ["\ud800"]}, ["l"], "rows")
    first, second = text_of(rows, 0).split("\n")
    assert len(first) <= LONGEST_TEXT // 2 and first.startswith("a: xxx") and second == "b: ?"


def test_the_score_of_each_row():
    assert score_rows("rouge1", ["a b", "c"], ["a b", "d"]).tolist() == [1.0, 0.0]


def test_two_models_on_the_same_rows():
    gold = ["a"] * 100
    first = ["b"] * 30 + ["a"] * 70
    second = ["a"] * 28 + ["b"] * 22 + ["a"] * 50
    against = compare_models(labeled(gold, first), labeled(gold, second), "other")
    assert (against.value, against.other) == (0.7, 0.78) and against.lead.value == pytest.approx(-0.08)
    assert (against.better, against.worse, against.equal) == (20, 28, 52)
    assert len(against.rows) == 48 and not against.rows[0].is_better and against.rows[-1].is_better
    assert not against.is_decided and against.lead.low < -0.08 < against.lead.high


def test_a_large_difference_is_decided_and_both_sides_are_shown():
    gold = ["a"] * 200
    against = compare_models(labeled(gold, ["a"] * 190 + ["b"] * 10), labeled(gold, ["b"] * 100 + ["a"] * 100), "other")
    assert against.is_decided and against.p_value < 0.01
    assert (against.better, against.worse) == (100, 10)
    assert [row.is_better for row in against.rows] == [False] * 10 + [True] * 40


def test_models_of_different_tasks_are_not_compared():
    with pytest.raises(DataError, match="the gold values that other reads"):
        compare_models(labeled(["a"], ["a"]), labeled(["b"], ["b"]), "other")


def test_numbers_on_another_scale_are_compared_by_rank():
    """Cosines against grades of 0 to 5: the order is right, apart from the last two."""
    rows = Examples({"text": ["a", "b", "c", "d"]}, [0.0, 2.0, 4.0, 5.0], "rows")
    facts = evaluate_rows(Predicted(rows, ["spearman"], [-0.1, 0.3, 0.9, 0.8], same_scale=False), "m", "d")
    assert facts.residuals.absolute.value == pytest.approx(0.125) and facts.residuals.mean == pytest.approx(0)
    assert {row.row for row in facts.worst[:2]} == {3, 4} and facts.worst_by == "error of the rank"
