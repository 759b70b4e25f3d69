"""Where networks come from: a folder that is right, or an error that says what to do."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from headstart.core.data import Examples
from headstart.core.errors import ArtifactError
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder, require_checkpoint


@pytest.fixture
def task() -> Classify:
    task = Classify(Classify.Config())
    task.fit_labels(Examples({}, ["a", "b", "c"]))
    return task


@pytest.fixture
def broken(tmp_path, checkpoint):
    """A copy of a good folder, to be harmed."""
    shutil.copytree(checkpoint("bert"), tmp_path / "m")
    return tmp_path / "m"


def refused(folder, task) -> str:
    with pytest.raises(ArtifactError) as caught:
        source = CheckpointFolder(folder, task, 0)
        source.tokenizer()
        source.pretrained()
    return str(caught.value)


def test_a_missing_folder(tmp_path):
    with pytest.raises(ArtifactError, match=r"there is no such folder.*headstart pretrain"):
        require_checkpoint(tmp_path / "none")
    with pytest.raises(ArtifactError, match="no such folder"):
        require_checkpoint("bert-base-uncased")


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(ArtifactError, match=r"has no config\.json"):
        require_checkpoint(tmp_path)


def test_an_unfinished_run(tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: 0\n")
    with pytest.raises(ArtifactError, match=r"not finished.*again"):
        require_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"model_type": "nonsense"}', "{}"])
def test_a_config_that_cannot_be_read(broken, task, content):
    (broken / "config.json").write_text(content)
    assert "config.json" in refused(broken, task)


def test_missing_and_torn_weights(broken, task):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "weights" in refused(broken, task)
    weights.unlink()
    assert "weights" in refused(broken, task)


def test_a_missing_and_a_torn_tokenizer(broken, task):
    (broken / "tokenizer.json").write_text('{"version": ')
    assert "no tokenizer" in refused(broken, task)


def test_another_family_is_refused(broken, task):
    (broken / "config.json").write_text(json.dumps({"model_type": "vit"}))
    assert "no language model" in refused(broken, task) and "This task takes: encoder" in refused(broken, task)


def test_a_network_without_the_head_is_refused(broken, task, monkeypatch):
    monkeypatch.setattr(Classify, "head", "AutoModelForMultipleChoice")
    (broken / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "'gpt2', for which transformers has no AutoModelForMultipleChoice" in refused(broken, task)


def test_a_tokenizer_without_padding_gets_it_and_the_config_knows(broken, task):
    described = json.loads((broken / "tokenizer_config.json").read_text()) | {"pad_token": None, "eos_token": "[SEP]"}
    (broken / "tokenizer_config.json").write_text(json.dumps(described))
    config = json.loads((broken / "config.json").read_text()) | {"pad_token_id": None}
    (broken / "config.json").write_text(json.dumps(config))
    source = CheckpointFolder(broken, task, 0)
    assert source.reading(32).pad == source.tokenizer().sep_token_id == source.pretrained().config.pad_token_id


def test_where_the_config_has_another_padding_the_tokenizer_s_counts(broken, task):
    config = json.loads((broken / "config.json").read_text()) | {"pad_token_id": 7}
    (broken / "config.json").write_text(json.dumps(config))
    source = CheckpointFolder(broken, task, 0)
    assert source.reading(32).pad == source.pretrained().config.pad_token_id != 7


def test_pretrained_takes_the_body_and_draws_the_head_from_the_seed(checkpoint, task):
    from transformers import AutoModel

    body = AutoModel.from_pretrained(str(checkpoint("bert")), add_pooling_layer=False).state_dict()
    first, same, other = (CheckpointFolder(checkpoint("bert"), task, seed) for seed in (0, 0, 1))
    models = [source.pretrained() for source in (first, same, other)]
    assert all(torch.equal(models[0].base_model.state_dict()[name], value) for name, value in body.items())
    heads = [model.classifier.weight for model in models]
    assert heads[0].shape[0] == 3 and torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    new = first.new_parameters()
    assert {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight"} <= new
    assert not any(name.startswith("bert.encoder") for name in new)


def test_fresh_is_new_throughout_and_the_same_for_a_seed(checkpoint, task):
    source = CheckpointFolder(checkpoint("modernbert"), task, 4)
    trained, fresh, again = source.pretrained(), source.fresh(), source.fresh()
    assert [p.shape for p in trained.parameters()] == [p.shape for p in fresh.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(trained.base_model.parameters()), next(fresh.base_model.parameters())), (
        "nothing of the checkpoint should be left"
    )
    assert source.new_parameters() == {name for name, _ in fresh.named_parameters()}
