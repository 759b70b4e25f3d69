"""The table of a fine-tuning run, and the sentences about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.evaluation.cost import PriceTag
from headstart.evaluation.forgetting import Forgetting
from headstart.stages.finetune import table as comparison
from headstart.stages.finetune.result import MethodDetails, MethodResult

GOLD = ["a", "b"] * 50


def cell(method: str, seed: int, wrong: int, trained: int | None = None, kwh: float | None = 0.5) -> MethodResult:
    """A run that has the first `wrong` rows wrong."""
    flipped = {"a": "b", "b": "a"}
    predictions = [flipped[label] if i < wrong else label for i, label in enumerate(GOLD)]
    details = MethodDetails(trainable_parameters=trained)
    score = {"accuracy": 1 - wrong / 100}
    return MethodResult(
        method, seed, predictions, score, details=details, cost=PriceTag(seconds=10.0 * (seed + 1), kwh=kwh)
    )


def make_table(seeds: int) -> list[comparison.MethodRow]:
    cells = {
        "majority": [cell("majority", seed, 50, kwh=None) for seed in range(seeds)],
        "full": [cell("full", seed, 10 + seed, 1234) for seed in range(seeds)],
        "twin": [cell("twin", seed, 10 + seed, 1234) for seed in range(seeds)],
        "near": [cell("near", seed, 12 + seed, 99) for seed in range(seeds)],
        "better": [cell("better", seed, 0, 99) for seed in range(seeds)],
    }
    return comparison.rows(cells, "full", GOLD, "accuracy")


@pytest.fixture
def table():
    return make_table(3)


def by_method(table, lines):
    methods = [row.method for row in table if row.lead]
    return dict(zip(methods, lines, strict=False))


def test_each_method_is_a_row_with_its_mean_over_seeds(table):
    by_name = {row.method: row for row in table}
    assert by_name["full"].score.mean == pytest.approx(0.89) and by_name["full"].score.seeds == 3
    assert by_name["full"].lead is None and by_name["full"].trainable == 1234
    assert by_name["majority"].trainable is None and by_name["majority"].kwh is None
    assert by_name["full"].seconds == pytest.approx(20.0) and by_name["full"].kwh == pytest.approx(0.5)


def test_the_chosen_method_is_compared_with_each_of_the_others(table):
    leads = {row.method: row.lead for row in table if row.lead}
    assert set(leads) == {"majority", "twin", "near", "better"}
    assert leads["majority"].difference == pytest.approx(0.39) and leads["majority"].p_over_examples < 0.01
    assert leads["better"].difference == pytest.approx(-0.11) and leads["twin"].difference == 0


def test_three_seeds_decide_nothing_and_the_sentences_say_so(table):
    lines = comparison.sentences(table, "accuracy", "full")
    assert len(lines) == 5
    by_name = by_method(table, lines)
    assert by_name["majority"].startswith("full is ahead of majority by 39.0 points of accuracy (+")
    assert by_name["majority"].endswith("), undecided (p = 0.250; 3 seeds can never reach 0.05).")
    assert by_name["better"].startswith("full is behind better by 11.0 points of accuracy (")
    assert by_name["twin"] == "full and twin have equal accuracy (+0.0 to +0.0 points)."
    assert lines[4] == ("Undecided: 3 seeds can never reach p ≤ 0.05 (smallest possible p is 0.25); run at least 6.")
    assert not any("beats" in line or "loses to" in line for line in lines)


def test_six_seeds_that_agree_decide():
    table = make_table(6)
    lines = comparison.sentences(table, "accuracy", "full")
    assert len(lines) == 4
    by_name = by_method(table, lines)
    assert by_name["majority"].startswith("full beats majority by 37.5 points of accuracy (+")
    assert by_name["majority"].endswith("p = 0.031).")
    assert by_name["better"].startswith("full loses to better by 12.5 points")
    assert by_name["near"].startswith("full beats near by 2.0 points")


def test_an_undecided_lead_says_what_may_reverse_it():
    cells = {
        "full": [cell("full", seed, 20) for seed in range(6)],
        "two_rows": [cell("two_rows", seed, 22) for seed in range(6)],
        "unsteady": [cell("unsteady", seed, 30 if seed % 2 else 15) for seed in range(6)],
    }
    lines = comparison.sentences(comparison.rows(cells, "full", GOLD, "accuracy"), "accuracy", "full")
    assert lines[0].startswith("full is ahead of two_rows by 2.0 points of accuracy (")
    assert lines[0].endswith("undecided (p = 0.500; other test examples may reverse it).")
    assert lines[1].endswith("other seeds may reverse it).") and len(lines) == 2


def test_one_seed_decides_nothing():
    cells = {"full": [cell("full", 0, 10)], "other": [cell("other", 0, 11)]}
    lines = comparison.sentences(comparison.rows(cells, "full", GOLD, "accuracy"), "accuracy", "full")
    assert lines[0].endswith("undecided (p = 1.000; 1 seed can never reach 0.05).")


def test_the_table_in_markdown(table):
    lines = comparison.markdown(table, "accuracy", "full").splitlines()
    assert len(lines) == 7 and all(line.count("|") == lines[0].count("|") for line in lines)
    assert "accuracy × 100" in lines[0] and "full leads by | p | decided |" in lines[0]
    full = next(line for line in lines if line.startswith("| full"))
    assert "89.0" in full and "1,234" in full and "20.0" in full
    assert all("| 0.250 | no |" in line for line in lines if line.startswith(("| majority", "| better")))
    decided = comparison.markdown(make_table(6), "accuracy", "full").splitlines()
    assert "| 0.031 | yes |" in decided[2]


def test_a_method_s_name_cannot_break_the_table():
    cells = {"full": [cell("full", 0, 10)], "a|b`c\nd": [cell("other", 0, 11)]}
    lines = comparison.markdown(comparison.rows(cells, "full", GOLD, "accuracy"), "accuracy", "full").splitlines()
    assert len(lines) == 4 and lines[3].startswith(r"| a\|b\`c d |")


def test_one_seed_has_no_interval():
    table = comparison.rows({"full": [cell("full", 0, 10)]}, "full", GOLD, "accuracy")
    assert "| – |" in comparison.markdown(table, "accuracy", "full")


def test_a_seed_no_better_than_the_majority_class_is_named():
    cells = {
        "majority": [cell("majority", seed, 50) for seed in range(3)],
        "full": [cell("full", 0, 10, 1234), cell("full", 1, 50, 1234), cell("full", 2, 60, 1234)],
        "near": [cell("near", seed, 49, 99) for seed in range(3)],
        "svm": [cell("svm", seed, 70) for seed in range(3)],
    }
    table = comparison.rows(cells, "full", GOLD, "accuracy")
    assert {row.method: row.failed for row in table} == {"majority": (), "full": (1, 2), "near": (), "svm": ()}
    lines = comparison.markdown(table, "accuracy", "full").splitlines()
    assert lines[0].endswith("| failed seeds |") and lines[3].endswith("| 1, 2 |")
    last = comparison.sentences(table, "accuracy", "full")[-1]
    assert last == "full failed with seeds 1, 2: its accuracy is no better than the majority class's."


def test_a_tagger_below_each_word_s_most_frequent_tag_has_not_failed():
    gold = [["O", "O", "B"], ["O", "I", "I"]] * 20
    words = MethodResult("majority", 0, gold, {"token_accuracy": 1.0}, details=MethodDetails(chosen={"answer": "O"}))
    better = [["O", "O", "B"], ["O", "O", "O"]] * 20
    trained = MethodDetails(trainable_parameters=9)
    learned = MethodResult("full", 0, better, {"token_accuracy": 4 / 6}, details=trained)
    nothing = MethodResult("lora", 0, [["O"] * 3] * 40, {"token_accuracy": 3 / 6}, details=trained)
    cells = {"majority": [words], "full": [learned], "lora": [nothing]}
    table = comparison.rows(cells, "full", gold, "token_accuracy")
    assert [row.failed for row in table] == [(), (), (0,)]


def test_what_trains_nothing_cannot_fail():
    cells = {"majority": [cell("majority", 0, 50)], "zero_shot": [cell("zero_shot", 0, 60, 0)]}
    assert [row.failed for row in comparison.rows(cells, "zero_shot", GOLD, "accuracy")] == [(), ()]


def test_without_the_majority_class_no_seed_is_called_failed():
    table = comparison.rows({"full": [cell("full", 0, 90, 1234)]}, "full", GOLD, "accuracy")
    assert table[0].failed == () and "failed" not in comparison.markdown(table, "accuracy", "full")


def test_forgetting_is_the_mean_rise_of_the_pre_training_loss():
    runs = []
    for seed, after in enumerate((2.5, 3.1)):
        details = MethodDetails(trainable_parameters=1234, forgetting=Forgetting("pre-training loss", 2.0, after))
        runs.append(replace(cell("full", seed, 10), details=details))
    table = comparison.rows({"majority": [cell("majority", 0, 50)], "full": runs}, "full", GOLD, "accuracy")
    assert table[0].forgetting is None and table[1].forgetting.change == pytest.approx(0.8)
    lines = comparison.markdown(table, "accuracy", "full").splitlines()
    assert (
        lines[0].endswith("| change of pre-training loss |")
        and lines[2].endswith("| – |")
        and lines[3].endswith("| +0.800 |")
    )


def test_where_lower_is_better_the_lower_leads():
    def run(method: str, nats: float) -> MethodResult:
        texts = [{"nats": nats + 0.1 * (i % 3), "tokens": 1, "bytes": 4} for i in range(40)]
        return MethodResult(method, 0, texts, {"perplexity": 2.7**nats})

    table = comparison.rows(
        {"full": [run("full", 1.0)], "zero_shot": [run("zero_shot", 2.0)]}, "full", [None] * 40, "perplexity"
    )
    lead = table[1].lead
    assert lead.difference > 0 and lead.low <= lead.difference <= lead.high
    assert "| +" in comparison.markdown(table, "perplexity", "full")
    assert f"| {2.7:.3f} |" in comparison.markdown(table, "perplexity", "full"), "perplexities have three decimals"
    assert comparison.sentences(table, "perplexity", "full")[0].startswith("full is ahead of zero_shot by ")


def test_a_baseline_that_reads_whole_texts_is_marked_if_texts_were_truncated():
    cells = {name: [cell(name, 0, 10, None if name != "full" else 9)] for name in ("majority", "svm", "full")}
    table = comparison.rows(cells, "full", GOLD, "accuracy")
    assert "| svm |" in comparison.markdown(table, "accuracy", "full")
    text = comparison.markdown(table, "accuracy", "full", truncated=True)
    assert "| svm (reads whole texts) |" in text and "| majority |" in text and "| full |" in text
