"""What a study file may say, and what is refused with a reason."""

from __future__ import annotations

import pytest

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Study
from headstart.studies.grid import System, is_left_out, points, with_settings


def study(**sections):
    base = {"finetune": {"adaptation": "full"}}
    axes = {
        "labels": {"finetune.data.train_rows": [32, None]},
        "method": {"full": {"finetune.adaptation": "full"}, "lora": {"finetune.adaptation": "lora"}},
    }
    return config.fill(
        Study, {"question": "Why?", "output": "out", "base": base, "axes": axes, "compare": ["method"], **sections}
    )


def test_a_list_of_values_is_an_axis():
    assert study().axes["labels"] == {"32": {"finetune.data.train_rows": 32}, "all": {"finetune.data.train_rows": None}}


def test_points_are_every_combination_in_the_order_of_the_file():
    made = study()
    found = [(point.context(made), point.compared(made)) for point in points(made)]
    assert found == [(("32",), ("full",)), (("32",), ("lora",)), (("all",), ("full",)), (("all",), ("lora",))]


def test_what_is_left_out_is_left_out():
    made = study(exclude=[{"method": "lora", "labels": [32]}, {"baseline": "svm", "labels": None}])
    kept = [point.levels for point in points(made) if not is_left_out(made, point)]
    assert {"labels": "32", "method": "lora"} not in kept and len(kept) == 3
    assert sum(is_left_out(made, point, "svm") for point in points(made)) == 2
    assert not any(is_left_out(made, point, "majority") for point in points(made))


TWICE = {
    "method": {"full": {"finetune.adaptation": "full"}, "lora": {"finetune.adaptation": "lora"}},
    "labels": {"lora": {"finetune.data.train_rows": 3}, "few": {"finetune.data.train_rows": 4}},
}


def test_an_adaptation_is_tuned_where_levels_meet():
    made = study(overrides=[{"where": {"method": "lora", "labels": [32]}, "adaptation": {"learning_rate": 8e-3}}])
    found = {
        (point.levels["labels"], point.levels["method"]): with_settings({"finetune": {}}, point.settings)["finetune"]
        for point in points(made)
    }
    assert found["32", "lora"]["adaptation"] == {"name": "lora", "learning_rate": 8e-3}
    assert found["all", "lora"]["adaptation"] == "lora" and found["32", "full"]["adaptation"] == "full"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"compare": ["size"]}, "compare names 'size'; the axes are: labels, method"),
        ({"axes": {"labels": {"a": 1, "b": 2}}, "compare": []}, "one setting with a list of values"),
        ({"claims": [{"statement": "x", "contrast": "full < lora"}]}, "one > other"),
        ({"claims": [{"statement": "x", "contrast": "full > adapters"}]}, "names 'adapters'; it may name"),
        ({"claims": [{"statement": "x", "contrast": "full > svm", "where": {"labels": 64}}]}, "has no level '64'"),
        (
            {"claims": [{"statement": "x", "contrast": "full > svm", "where": {"method": "full"}}]},
            "said by its contrast",
        ),
        ({"exclude": [{"colour": "red"}]}, "'colour' is no axis"),
        ({"seeds": 0}, "seeds is 0"),
        ({"overrides": [{"where": {"method": "qlora"}, "adaptation": {"rank": 2}}]}, "method has no level 'qlora'"),
        (
            {"axes": {"labels": {"data.train_rows": [32]}}, "compare": []},
            "write it as pretrain.data.train_rows or finetune.data",
        ),
        ({"compare": ["method", "labels"], "axes": TWICE}, "'lora' stands twice; every compared level and baseline"),
        ({"baselines": ["svm", "full"]}, "the name 'full' stands twice"),
        ({"baselines": [{"learning_rate": 1}]}, "has no name"),
        ({"baselines": [{"name": "svm", "C": 10}]}, "svm takes no settings"),
        ({"baselines": ["svm", "scratch", {"name": "scratch", "learning_rate": 1e-3}]}, "'scratch' stands twice"),
        ({"baselines": ["majority"]}, "reference is 'svm'; it may name: base, full, lora, majority"),
    ],
)
def test_faults_are_named(sections, said):
    with pytest.raises(RecipeError, match=said):
        study(**sections)


def test_a_file_may_say_where_it_runs(tmp_path):
    """YAML 1.1 reads the key `on` as a truth value."""
    path = tmp_path / "study.yaml"
    path.write_text(
        "question: Why?\noutput: out\nbase: {finetune: {adaptation: full, words: {0: no, 1: yes}}}\n"
        "execution: {on: ray, workers: 2}\noverlap: false\nclaims:\n  - statement: >\n      one\n      line\n"
        "    contrast: base > svm\n"
    )
    made = config.load(path, Study)
    assert made.execution.on == "ray" and made.base.finetune["words"] == {0: "no", 1: "yes"} and made.overlap is False
    assert made.claims[0].statement == "one line"


def test_a_contrast_names_two_sides_and_a_metric():
    assert Contrast.parse("minilm/full > svm on mean(f1)") == Contrast(("minilm", "full"), ("svm",), "f1")
    assert Contrast.parse("a>b").metric == "score"


def test_a_side_picks_systems_by_their_levels():
    full, scratch = System(("mini", "full")), System(("mini",), "scratch")
    assert full.has(("full",)) and full.has(("mini", "full")) and not full.has(("lora",))
    assert scratch.has(("scratch",)) and scratch.has(("scratch", "mini")) and not scratch.has(("mini",))
    assert System(()).name == "base" and System(()).has(("base",))


def test_settings_go_into_sections_whole_ones_first():
    base = {"finetune": {"data": {"train": "a"}, "seeds": 1}}
    made = with_settings(base, {"finetune.data.train_rows": 32, "finetune.data": {"train": "b"}, "pretrain.seed": 1})
    assert made == {"finetune": {"data": {"train": "b", "train_rows": 32}, "seeds": 1}, "pretrain": {"seed": 1}}
    assert base["finetune"]["data"] == {"train": "a"}, "the base was changed"
