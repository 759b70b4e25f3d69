"""Loading of checkpoints, and the errors for broken folders."""

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
    """A copy of a valid folder, for tests to damage."""
    shutil.copytree(checkpoint("bert"), tmp_path / "m")
    return tmp_path / "m"


def error_of(folder, task) -> str:
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
    with pytest.raises(ArtifactError, match=r"unfinished run.*Rerun"):
        require_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"model_type": "nonsense"}', "{}"])
def test_a_config_that_cannot_be_read(broken, task, content):
    (broken / "config.json").write_text(content)
    assert "config.json" in error_of(broken, task)


def test_missing_and_truncated_weights(broken, task):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "weights" in error_of(broken, task)
    weights.unlink()
    assert "weights" in error_of(broken, task)


def test_a_truncated_tokenizer(broken, task):
    (broken / "tokenizer.json").write_text('{"version": ')
    assert "cannot be loaded" in error_of(broken, task)


def test_another_family_is_rejected(broken, task):
    (broken / "config.json").write_text(json.dumps({"model_type": "vit"}))
    message = error_of(broken, task)
    assert "not a language model" in message and "This task supports the families encoder" in message


def test_a_network_without_the_head_is_rejected(broken, task, monkeypatch):
    monkeypatch.setattr(Classify, "head", "AutoModelForMultipleChoice")
    (broken / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "'gpt2', for which transformers has no AutoModelForMultipleChoice" in error_of(broken, task)


def test_tokenizer_and_config_get_a_missing_padding_token(broken, task):
    settings = json.loads((broken / "tokenizer_config.json").read_text()) | {"pad_token": None, "eos_token": "[SEP]"}
    (broken / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((broken / "config.json").read_text()) | {"pad_token_id": None}
    (broken / "config.json").write_text(json.dumps(config))
    source = CheckpointFolder(broken, task, 0)
    assert source.input_spec(32).pad == source.tokenizer().sep_token_id == source.pretrained().config.pad_token_id


def test_the_tokenizers_padding_overrides_that_of_the_config(broken, task):
    config = json.loads((broken / "config.json").read_text()) | {"pad_token_id": 7}
    (broken / "config.json").write_text(json.dumps(config))
    source = CheckpointFolder(broken, task, 0)
    assert source.input_spec(32).pad == source.pretrained().config.pad_token_id != 7


def test_pretrained_loads_the_body_and_initializes_the_head_with_the_seed(checkpoint, task):
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


def test_fresh_initializes_all_weights_with_the_seed(checkpoint, task):
    source = CheckpointFolder(checkpoint("modernbert"), task, 4)
    trained, fresh, again = source.pretrained(), source.fresh(), source.fresh()
    assert [p.shape for p in trained.parameters()] == [p.shape for p in fresh.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(trained.base_model.parameters()), next(fresh.base_model.parameters())), (
        "no weights of the checkpoint should be left"
    )
    assert source.new_parameters() == {name for name, _ in fresh.named_parameters()}
