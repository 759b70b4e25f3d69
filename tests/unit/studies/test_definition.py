"""The study file: what it may contain, and what is refused with a reason."""

from __future__ import annotations

import pytest

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.studies.contrast import Contrast
from headstart.studies.definition import Study
from headstart.studies.grid import System, is_excluded, points, with_settings


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
    pairs = [(point.context(made), point.compared(made)) for point in points(made)]
    assert pairs == [(("32",), ("full",)), (("32",), ("lora",)), (("all",), ("full",)), (("all",), ("lora",))]


def test_excluded_combinations_do_not_run():
    made = study(exclude=[{"method": "lora", "labels": [32]}, {"baseline": "svm", "labels": None}])
    kept = [point.levels for point in points(made) if not is_excluded(made, point)]
    assert {"labels": "32", "method": "lora"} not in kept and len(kept) == 3
    assert sum(is_excluded(made, point, "svm") for point in points(made)) == 2
    assert not any(is_excluded(made, point, "majority") for point in points(made))


TWICE = {
    "method": {"full": {"finetune.adaptation": "full"}, "lora": {"finetune.adaptation": "lora"}},
    "labels": {"lora": {"finetune.data.train_rows": 3}, "few": {"finetune.data.train_rows": 4}},
}


def test_an_adaptation_is_overridden_for_a_combination_of_levels():
    made = study(overrides=[{"where": {"method": "lora", "labels": [32]}, "adaptation": {"learning_rate": 8e-3}}])
    adapted = {
        (point.levels["labels"], point.levels["method"]): with_settings({"finetune": {}}, point.settings)["finetune"]
        for point in points(made)
    }
    assert adapted["32", "lora"]["adaptation"] == {"name": "lora", "learning_rate": 8e-3}
    assert adapted["all", "lora"]["adaptation"] == "lora" and adapted["32", "full"]["adaptation"] == "full"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"compare": ["size"]}, "compare names 'size'; the axes are: labels, method"),
        ({"axes": {"labels": {"a": 1, "b": 2}}, "compare": []}, "one setting with a list of values"),
        ({"claims": [{"statement": "x", "contrast": "full < lora"}]}, "one > other"),
        ({"claims": [{"statement": "x", "contrast": "full > adapters"}]}, "names 'adapters'; it may name"),
        ({"claims": [{"statement": "x", "contrast": "full > svm", "where": {"labels": 64}}]}, "has no level '64'"),
        (
            {"claims": [{"statement": "x", "contrast": "full > svm", "where": {"method": "full"}}]},
            "the contrast selects the systems",
        ),
        ({"exclude": [{"colour": "red"}]}, "'colour' is not an axis"),
        ({"seeds": 0}, "seeds is 0"),
        ({"looks": [2], "claims": []}, "has no claims to test early; remove looks"),
        ({"overrides": [{"where": {"method": "qlora"}, "adaptation": {"rank": 2}}]}, "method has no level 'qlora'"),
        (
            {"axes": {"labels": {"data.train_rows": [32]}}, "compare": []},
            "write it as pretrain.data.train_rows or finetune.data",
        ),
        ({"compare": ["method", "labels"], "axes": TWICE}, "'lora' occurs twice; every compared level and baseline"),
        ({"baselines": ["svm", "full"]}, "the name 'full' occurs twice"),
        ({"baselines": [{"learning_rate": 1}]}, "has no name"),
        ({"baselines": [{"name": "svm", "C": 10}]}, "svm takes no settings"),
        ({"baselines": ["svm", "scratch", {"name": "scratch", "learning_rate": 1e-3}]}, "'scratch' occurs twice"),
        (
            {"base": {"finetune": {"training": {"checkpoint_store": "s3://b"}}}},
            "base.finetune.training.checkpoint_store is set, but the checkpoints of a study's cells are not uploaded",
        ),
        (
            {"axes": {"store": {"far": {"finetune.training.checkpoint_store": "s3://b"}}}, "compare": []},
            "axes.store.far.finetune.training.checkpoint_store is set",
        ),
        ({"baselines": ["majority"]}, "reference is 'svm'; it may name: base, full, lora, majority"),
    ],
)
def test_invalid_studies_are_refused(sections, message):
    with pytest.raises(RecipeError, match=message):
        study(**sections)


def test_an_axis_that_is_a_list_is_refused_in_a_study_of_probes_too():
    probes = {"question": "Which?", "output": "out", "base": {"probe": {"probes": ["cloze"]}}, "compare": ["size"]}
    with pytest.raises(RecipeError, match=r"axes\.size"):
        config.fill(Study, probes | {"axes": {"size": ["tiny", "mini"]}})


def test_the_key_on_of_execution_is_a_string(tmp_path):
    """YAML 1.1 reads the key `on` as a boolean."""
    path = tmp_path / "study.yaml"
    path.write_text(
        "question: Why?\noutput: out\nbase: {finetune: {adaptation: full, words: {0: no, 1: yes}}}\n"
        "execution: {on: ray, workers: 2}\noverlap: false\nclaims:\n  - statement: >\n      one\n      line\n"
        "    contrast: base > svm\n"
    )
    made = config.load(path, Study)
    assert made.execution.on == "ray" and made.base.finetune["words"] == {0: "no", 1: "yes"} and made.overlap is False
    assert made.claims[0].statement == "one line"


def test_a_contrast_has_two_sides_and_a_metric():
    assert Contrast.parse("minilm/full > svm on mean(f1)") == Contrast(("minilm", "full"), ("svm",), "f1")
    assert Contrast.parse("a>b").metric == "score"


def test_a_side_selects_systems_by_their_levels():
    full, scratch = System(("mini", "full")), System(("mini",), "scratch")
    assert full.has(("full",)) and full.has(("mini", "full")) and not full.has(("lora",))
    assert scratch.has(("scratch",)) and scratch.has(("scratch", "mini")) and not scratch.has(("mini",))
    assert System(()).name == "base" and System(()).has(("base",))


def test_whole_sections_are_set_before_their_keys():
    base = {"finetune": {"data": {"train": "a"}, "seeds": 1}}
    made = with_settings(base, {"finetune.data.train_rows": 32, "finetune.data": {"train": "b"}, "pretrain.seed": 1})
    assert made == {"finetune": {"data": {"train": "b", "train_rows": 32}, "seeds": 1}, "pretrain": {"seed": 1}}
    assert base["finetune"]["data"] == {"train": "a"}, "the base was changed"


def test_a_section_given_by_its_name_alone_takes_settings():
    base = {"finetune": {"adaptation": "lora", "task": "classify", "seeds": 1}, "pretrain": None}
    settings = {"finetune.adaptation.rank": 2, "finetune.task.label": "y", "pretrain.backbone.size": "tiny"}
    assert with_settings(base, settings) == {
        "finetune": {"adaptation": {"name": "lora", "rank": 2}, "task": {"kind": "classify", "label": "y"}, "seeds": 1},
        "pretrain": {"backbone": {"size": "tiny"}},
    }
    with pytest.raises(RecipeError, match="sets a key inside 'seeds', which is a value"):
        with_settings(base, {"finetune.seeds.first": 1})
