"""Renamed keys are refused in recipes, translated in artifacts, and hashed under their old names."""

from __future__ import annotations

from typing import get_args

import pytest

from headstart.core import config, registry, renames
from headstart.core.errors import RecipeError
from headstart.corpus.read.sources import SourceConfig
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.studies.definition import Claim, Study
from headstart.studies.run.expand import build

OLD = {
    "output": "x",
    "company": ["svm"],
    "data": {"train": "a", "validation": "b", "test": "c", "labels": 60},
    "training": {"evaluations": 2, "patience": 1, "compile": False, "save_minutes": 5.0},
    "adaptation": {"name": "as_is"},
}
NEW = {
    "output": "x",
    "compare_with": ["svm"],
    "data": {"train": "a", "validation": "b", "test": "c", "train_rows": 60},
    "training": {
        "eval_count": 2, "early_stopping_patience": 1, "torch_compile": False, "save_interval_minutes": 5.0,
    },
    "adaptation": {"name": "zero_shot"},
}  # fmt: skip
ADDRESSES = [
    "baseline-7713f2138b639aa11ff1",
    "finetune-0ed6118d25442ce2460b",
    "finetune-e36503c4174087f4f376",
    "prepare-ad09a15783b2c2496139",
    "pretrain-6e36fe51fece47126d4d",
]
"""Addresses of the cells of the study below, computed before the keys were renamed."""


def test_a_saved_recipe_is_translated_both_ways():
    assert renames.upgrade(OLD) == NEW
    assert renames.original(NEW) == OLD
    assert list(renames.upgrade(OLD)) == list(NEW), "the order of keys stays"
    assert renames.upgrade({"claims": [{"says": "x"}], "tuned": []}) == {
        "claims": [{"statement": "x"}],
        "overrides": [],
    }
    assert renames.upgrade(NEW) == NEW and OLD["company"] == ["svm"]


def section_of(annotation):
    """Return the section that a field holds, which may be optional."""
    return next(part for part in (annotation, *get_args(annotation)) if hasattr(part, "model_fields"))


SECTIONS = {"": [Study, FinetuneRecipe], "claims": [Claim], "sources": [SourceConfig]} | {
    name: [section_of(model.model_fields[name].annotation) for model in models]
    for name, models in {
        "data": [FinetuneRecipe], "training": [FinetuneRecipe, PretrainRecipe], "tokenizer": [PretrainRecipe],
    }.items()
}  # fmt: skip
"""The classes that own the renamed keys, by the path of the section."""


def owners(path: str, key: str):
    """Return the classes whose key was renamed: those above, or the entries of the registry that have it."""
    groups = {"objective": "objectives", "objectives": "objectives", "task": "tasks"}
    group = groups.get(path.rpartition(".")[2], "adaptations")
    if path in SECTIONS and group == "adaptations":
        return SECTIONS[path]
    entries = (registry.resolve(group, name).Config for name in registry.names(group))
    return [entry for entry in entries if key in entry.model_fields]


@pytest.mark.parametrize(("old", "new"), renames.KEYS.items())
def test_an_old_key_is_refused_with_its_new_name(old, new):
    path, _, key = new.rpartition(".")
    found = [owner for owner in owners(path, key) if key in owner.model_fields]
    assert found, "the new name is a key of a section at that path"
    for owner in found:
        assert registry.suggest(old.rpartition(".")[2], owner.model_fields) == f"; it was renamed to {key!r}."


def test_the_message_names_the_new_key():
    raw = {"output": "x", "model": "m", "task": "classify", "adaptation": "as_is", **{"data": OLD["data"]}}
    with pytest.raises(RecipeError) as error:
        config.fill(FinetuneRecipe, {**raw, "company": []})
    message = str(error.value)
    assert "company is not a known key; it was renamed to 'compare_with'." in message
    assert "data.labels is not a known key; it was renamed to 'train_rows'." in message
    assert "adaptations has no 'as_is'; it was renamed to 'zero_shot'." in message


def test_cells_computed_before_the_renames_keep_their_addresses():
    pretrain = {
        "corpus": {"files": ["absent.txt"]}, "tokenizer": {"vocab_size": 600},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"}, "objective": {"name": "masked_lm"},
        "training": {"budget": "6 steps", "seq_length": 32, "eval_count": 1, "torch_compile": False},
    }  # fmt: skip
    finetune = {
        "task": {"kind": "classify"},
        "data": {"train": "a.csv", "validation": "b.csv", "test": "c.csv", "train_rows": 60},
        "training": {"budget": "3 steps", "eval_count": 2, "early_stopping_patience": 1},
    }
    study = {
        "question": "q", "output": "x", "seeds": 1, "reference": "full", "compare": ["method"],
        "baselines": ["majority"], "overlap": False, "base": {"pretrain": pretrain, "finetune": finetune},
        "axes": {"method": {"full": {"finetune.adaptation": "full"}, "none": {"finetune.adaptation": "zero_shot"}}},
    }  # fmt: skip
    assert sorted(build(config.fill(Study, study)).nodes) == ADDRESSES
