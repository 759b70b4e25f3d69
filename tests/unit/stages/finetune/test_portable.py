"""A fine-tuned folder is used elsewhere: by a pipeline, with plain peft, in another place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError

LONG = " ".join(["the king went up to the house of the lord"] * 200)
"""A text of 2,000 words."""


@pytest.fixture(scope="module")
def plain(way, tmp_path_factory) -> Path:
    """A checkpoint of another tool: its tokenizer knows no maximum length."""
    folder = tmp_path_factory.mktemp("plain") / "checkpoint"
    shutil.copytree(way / "pretrained", folder)
    for own in ("headstart.json", "recipe.yaml", "inputs.json"):
        (folder / own).unlink()
    described = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    described.pop("model_max_length")
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def tuned(way: Path, recipe_of, base: Path | str, output: Path, **sections) -> Path:
    recipe = recipe_of["finetune"](way, output=str(output), model=str(base), compare_with=[], **sections)
    recipe["training"]["max_length"] = 64
    return headstart.finetune(recipe, quiet=True).path


def test_a_pipeline_reads_a_long_text_up_to_the_length_of_training(way, recipe_of, plain, tmp_path):
    from transformers import AutoTokenizer, pipeline

    folder = tuned(way, recipe_of, plain, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 64
    label = pipeline("text-classification", model=str(folder))(LONG, truncation=True)[0]["label"]
    assert label in artifact.read_manifest(folder)["task"]["labels"]
    assert 'model="path/to/this/folder", truncation=True)' in (folder / "README.md").read_text(encoding="utf-8")


def test_the_length_of_an_earlier_task_does_not_limit_the_next(way, recipe_of, plain, tmp_path):
    """The network reads 512 tokens, although the tokenizer of the first task truncates to 64."""
    first = tuned(way, recipe_of, plain, tmp_path / "first")
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "second"), model=str(first), compare_with=[])
    recipe["training"]["max_length"] = 128
    assert headstart.finetune(recipe, quiet=True).path.is_dir()


@pytest.fixture(scope="module")
def adapter(way, recipe_of, plain, tmp_path_factory) -> Path:
    """An adapter whose checkpoint the recipe names relative to the current folder."""
    root = tmp_path_factory.mktemp("adapter")
    shutil.copytree(plain, root / "runs" / "base")
    before = Path.cwd()
    os.chdir(root)
    try:
        return root / tuned(way, recipe_of, "runs/base", Path("runs/tuned"), adaptation={"name": "lora"})
    finally:
        os.chdir(before)


def test_an_adapter_names_its_checkpoint_from_any_current_folder(adapter, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    base = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    assert Path(base).is_absolute() and Path(base) == adapter.parent / "base"
    assert artifact.read_manifest(adapter)["recipe"]["model"] == "runs/base", "the recipe is as it was written"
    headstart.load(adapter)


def test_an_adapter_keeps_its_labels_with_plain_peft(adapter, monkeypatch, tmp_path):
    from peft import AutoPeftModelForSequenceClassification, PeftModel
    from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

    monkeypatch.chdir(tmp_path)
    labels = artifact.read_manifest(adapter)["task"]["labels"]
    assert len(labels) > 2
    config = AutoConfig.from_pretrained(adapter / "network")
    assert list(config.id2label.values()) == labels
    names = {"id2label": config.id2label, "label2id": config.label2id}
    model = AutoPeftModelForSequenceClassification.from_pretrained(adapter, **names)
    assert model.config.id2label == config.id2label
    base = AutoModelForSequenceClassification.from_pretrained(adapter.parent / "base", config=config)
    model = PeftModel.from_pretrained(base, str(adapter))
    assert pipeline("text-classification", model=model, tokenizer=str(adapter), truncation=True)(LONG)[0]["label"] in (
        labels
    )
    model = AutoModelForSequenceClassification.from_pretrained(adapter, config=config)
    assert pipeline("text-classification", model=model, tokenizer=str(adapter), truncation=True)(LONG)[0]["label"] in (
        labels
    )


def test_the_card_of_an_adapter_runs(adapter, monkeypatch):
    monkeypatch.chdir(adapter.parents[1])
    text = (adapter / "README.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) == 2 and "import headstart" not in blocks[1]
    values: dict = {}
    exec(blocks[1].replace("path/to/this/folder", str(adapter)), values)
    assert values["run"]("the king")[0]["label"] in artifact.read_manifest(adapter)["task"]["labels"]


def move(adapter: Path, to: Path, base: str | None = "base") -> Path:
    """Copy the adapter, and its checkpoint if it has a name there, to another place."""
    shutil.copytree(adapter, to / "moved")
    if base is not None:
        shutil.copytree(adapter.parent / "base", to / base)
    return to / "moved"


@pytest.mark.parametrize("base", ["base", "renamed", "moved/runs/base", "runs/base"])
def test_a_moved_adapter_finds_its_checkpoint(adapter, monkeypatch, tmp_path, base):
    folder = move(adapter, tmp_path, base)
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "unrelated" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir("/")
    original = adapter.parent / "base"
    hidden = original.with_name("hidden")
    original.rename(hidden)
    try:
        model, _ = headstart.load(folder)
    finally:
        hidden.rename(original)
    assert model.get_base_model().config.name_or_path == str(tmp_path / base)


def test_a_variable_names_the_checkpoint_of_an_adapter(adapter, monkeypatch, tmp_path):
    folder = move(adapter, tmp_path / "a", None)
    shutil.copytree(adapter.parent / "base", tmp_path / "b" / "base")
    monkeypatch.chdir(tmp_path)
    original = adapter.parent / "base"
    hidden = original.with_name("hidden")
    original.rename(hidden)
    try:
        with pytest.raises(ArtifactError, match=r"runs/base.*no such folder.*HEADSTART_BASE"):
            headstart.load(folder)
        monkeypatch.setenv("HEADSTART_BASE", str(tmp_path / "b" / "base"))
        headstart.load(folder)
        (tmp_path / "b" / "base" / "added.txt").write_text("changed", encoding="utf-8")
        with pytest.raises(ArtifactError, match="is not the checkpoint that the adapter"):
            headstart.load(folder)
    finally:
        hidden.rename(original)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertModel", "pipeline", None])
def test_a_plain_folder_of_any_tool_is_loaded(plain, tmp_path, architecture):
    folder = shutil.copytree(plain, tmp_path / "any")
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    described["architectures"] = None if architecture is None else [architecture]
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    model, tokenizer = headstart.load(folder)
    assert type(model).__name__ == (architecture if str(architecture).startswith("Bert") else "BertModel")
    assert not model.training
    assert tokenizer("a king")["input_ids"]


def test_what_is_no_checkpoint_is_not_loaded(plain, way, tmp_path):
    with pytest.raises(ArtifactError, match="there is no folder"):
        headstart.load(tmp_path / "missing")
    with pytest.raises(ArtifactError, match=r"has no config\.json"):
        headstart.load(tmp_path)
    unfinished = shutil.copytree(way / "pretrained", tmp_path / "unfinished")
    (unfinished / "headstart.json").unlink()
    with pytest.raises(ArtifactError, match="unfinished run"):
        headstart.load(unfinished)
    adapter = shutil.copytree(plain, tmp_path / "adapter")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
    with pytest.raises(ArtifactError, match="is an adapter that Headstart did not train"):
        headstart.load(adapter)
