"""Typed manifests: they are read and written with the keys of headstart.json."""

from __future__ import annotations

import json

import pytest

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.runs import manifest
from headstart.stages.runs.manifest import FinetuneManifest, PretrainManifest

ADDED = {"format", "kind", "created", "versions", "files", "seal"}
"""Keys that `artifact` adds to every manifest."""
FINETUNE_KEYS = {
    "recipe", "seed", "parents", "machines", "task", "data", "metrics", "validation", "table", "verdicts", "left_out",
    "notes", "comparisons", "cost", "architecture", "trainable_parameters", "steps", "best_step", "pipeline",
    "is_adapter", "usage", "target_cls",
}  # fmt: skip
PRETRAIN_KEYS = {
    "recipe", "seed", "parents", "machines", "data", "progress", "metrics", "parameters", "architecture", "cost",
}  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "model", "keys"),
    [("pretrained", PretrainManifest, PRETRAIN_KEYS), ("tuned", FinetuneManifest, FINETUNE_KEYS)],
)
def test_a_run_writes_the_keys_that_it_always_wrote(way, folder, model, keys):
    values = artifact.verify(way / folder)
    assert values.keys() - ADDED == keys
    typed = manifest.read_any(way / folder)
    assert type(typed) is model
    assert json.loads(json.dumps(typed.to_dict())) == {key: values[key] for key in keys}
    assert model.read(way / folder) == typed


def test_absent_corpora_are_not_written(way):
    values = artifact.read_manifest(way / "pretrained")
    assert "corpora" not in values["data"] and "epochs_of" not in values["progress"]
    assert values["data"]["sources"][0].keys() > {"name"}, "all that is known about a file is kept"


def test_an_older_manifest_loads_with_defaults(tmp_path):
    values = {"kind": "model of finetune", "recipe": {"seed": 0}, "seed": 2, "task": {"labels": []}, "colour": "red"}
    typed = FinetuneManifest.from_dict(values, tmp_path)
    assert (typed.seed, typed.notes, typed.left_out, typed.usage, typed.cost.tokens) == (2, [], {}, None, 0)
    old = PretrainManifest.from_dict({"recipe": {}, "seed": 0, "data": {"train": {"tokens": 5}}}, tmp_path)
    assert old.data.train.tokens == 5 and old.data.corpora == {} and old.progress.epochs_of == {}


def test_a_broken_manifest_is_named(way, tmp_path):
    with pytest.raises(ArtifactError, match=r"headstart\.json has no usable `seed`"):
        FinetuneManifest.from_dict({"recipe": {}, "seed": "two"}, tmp_path)
    with pytest.raises(ArtifactError, match="is a checkpoint of pretrain; a model of finetune is needed"):
        FinetuneManifest.read(way / "pretrained")
    with artifact.staged(tmp_path / "x", "shards"):
        pass
    with pytest.raises(ArtifactError, match="is a shards"):
        manifest.read_any(tmp_path / "x")
