"""Fine-tuning beyond plain classification: tags, peft adapters, methods that are left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

import headstart
from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core import artifact, config, registry
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.cell import MethodRequest, run_method
from headstart.stages.finetune.data import read_data
from headstart.stages.finetune.recipe import FinetuneRecipe, settings_of
from headstart.stages.finetune.setup import open_setup
from headstart.tasks import labelled


class LowRank(BaseAdaptation):
    """peft's LoRA on every query and value, never merged."""

    paper: ClassVar[str] = "Hu et al. 2022, LoRA"

    class Config(AdaptationSettings):
        """A schedule of its own."""

        name: Literal["low_rank"] = "low_rank"
        lr_scheduler_type: str | None = "constant"

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or LowRank.Config()

    def supports(self, task, family):
        return super().supports(task, family) if family == "encoder" else "this toy supports only encoders"

    def adapt(self, source):
        from peft import LoraConfig, get_peft_model

        model = source.pretrained()
        new = sorted({name.rpartition(".")[0] for name in source.new_parameters()})
        settings = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=new, init_lora_weights="gaussian")
        return get_peft_model(model, settings)


class Untouched(LowRank):
    """Trains nothing."""

    class Config(AdaptationSettings):
        """Nothing to set."""

        name: Literal["untouched"] = "untouched"

    def adapt(self, source):
        return source.pretrained().requires_grad_(False)


@pytest.fixture
def toys(monkeypatch):
    for name, kind in (("low_rank", LowRank), ("untouched", Untouched)):
        monkeypatch.setitem(registry.TABLES["adaptations"], name, f"{__name__}:{kind.__name__}")


@pytest.fixture(scope="module")
def tagged(way) -> Path:
    """Verses whose capitalized words are tagged as names."""
    verses = [line.split()[:12] for line in (way / "text.txt").read_text(encoding="utf-8").splitlines() if line][:90]
    rows = [{"tokens": words, "tags": ["B-NAME" if w[0].isupper() else "O" for w in words]} for words in verses]
    for name, split in (("train", rows[:60]), ("test", rows[60:])):
        text = "\n".join(json.dumps(row) for row in split)
        (way / f"tags-{name}.jsonl").write_text(text, encoding="utf-8")
    return way


def tag_recipe(folder: Path, recipe_of, **sections: Any) -> dict[str, Any]:
    data = {"train": str(folder / "tags-train.jsonl"), "validation": 20, "test": str(folder / "tags-test.jsonl")}
    recipe = recipe_of["finetune"](folder, task={"kind": "tag"}, data=data, **sections)
    recipe["training"]["max_length"] = 8
    return recipe


def test_tags_with_the_default_baselines(tagged, recipe_of, tmp_path):
    """Of the default baselines, majority predicts tags word by word and the SVM is left out."""
    recipe = tag_recipe(tagged, recipe_of, output=str(tmp_path / "out"))
    del recipe["compare_with"]
    folder = headstart.finetune(recipe, quiet=True)
    facts = artifact.verify(folder)
    assert set(facts["metrics"]) == {"full", "majority", "scratch"} and set(facts["left_out"]) == {"svm"}
    assert facts["metrics"]["majority"][0]["token_accuracy"] > 0.5
    summary = finetune.summary(folder)
    assert "svm is left out: it predicts a label or a number" in summary
    assert "words get the most common tag, 'O'" in summary
    assert 'pipeline("token-classification"' in (folder / "README.md").read_text(encoding="utf-8")
    scores, reported = headstart.evaluate(folder, tagged / "tags-test.jsonl"), facts["metrics"]["full"][0]
    assert {name: scores[name] for name in reported} == pytest.approx(reported)


def test_test_rows_limits_the_test_rows(tagged, recipe_of, tmp_path):
    raw = recipe_of["finetune"](tagged, output=str(tmp_path / "out"))
    raw["data"]["test_rows"] = 3
    recipe = config.fill(FinetuneRecipe, raw)
    all_rows, few = (
        read_data(data, registry.build("tasks", recipe.task)).test
        for data in (recipe.data.model_copy(update={"test_rows": None}), recipe.data)
    )
    assert few == labelled.fixed_subset(all_rows, 3) and len(few) == 3 < len(all_rows)


@pytest.mark.parametrize("name", ["full", "features"])
def test_a_cell_killed_after_its_training_counts_its_flops_once(name, tagged, recipe_of, tmp_path):
    raw = recipe_of["finetune"](tagged, output=str(tmp_path / "out"), adaptation=name, compare_with=[])
    recipe = config.fill(FinetuneRecipe, raw)
    setup = open_setup(recipe)
    request = MethodRequest(setup, setup.chosen, recipe.adaptation, 0, tmp_path / "work", "x", quiet=True)
    first, again = (run_method(request).cost for _ in range(2))
    assert (first.flops, first.tokens) == (again.flops, again.tokens) and first.flops > 0
    assert again.seconds > first.seconds, "the time of the killed attempt is part of the cost"


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_an_adapter_is_saved_alone_and_loads_on_its_checkpoint(toys, kind, tagged, recipe_of, tmp_path):
    make = recipe_of["finetune"] if kind == "classify" else lambda folder, **more: tag_recipe(folder, recipe_of, **more)
    recipe = make(tagged, output=str(tmp_path / "out"), adaptation="low_rank", compare_with=[])
    folder = headstart.finetune(recipe, quiet=True)
    assert (folder / "adapter_config.json").is_file() and (folder / "adapter_model.safetensors").is_file()
    assert not (folder / "config.json").exists() and not (folder / "model.safetensors").exists()
    assert (folder / "tokenizer.json").is_file() and "headstart.load" in (folder / "README.md").read_text()
    facts = artifact.verify(folder)
    cell = json.loads((folder / "cells" / "low_rank-seed-0" / "result.json").read_text(encoding="utf-8"))
    assert 0 < cell["details"]["trainable_parameters"] < cell["details"]["parameters"] / 5
    data = tagged / ("test.csv" if kind == "classify" else "tags-test.jsonl")
    scores, reported = headstart.evaluate(folder, data), facts["metrics"]["low_rank"][0]
    assert {name: scores[name] for name in reported} == pytest.approx(reported)
    model, _ = headstart.load(folder)
    assert type(model).__module__.startswith("peft.")


def test_an_adapter_refuses_the_weights_of_another_checkpoint(toys, way, recipe_of, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(way / "pretrained", base)
    recipe = recipe_of["finetune"](
        way, output=str(tmp_path / "out"), model=str(base), adaptation="low_rank", compare_with=[]
    )
    folder = headstart.finetune(recipe, quiet=True)
    shutil.rmtree(base)
    with pytest.raises(ArtifactError, match="no such folder"):
        headstart.load(folder)
    shutil.copytree(way / "tuned", base)
    with pytest.raises(ArtifactError, match="is not the checkpoint that the adapter"):
        headstart.load(folder)


def test_a_method_that_trains_nothing_evaluates_the_checkpoint(toys, way, recipe_of, tmp_path):
    folder = headstart.finetune(
        recipe_of["finetune"](way, output=str(tmp_path / "out"), adaptation="untouched", compare_with=[]), quiet=True
    )
    cell = json.loads((folder / "cells" / "untouched-seed-0" / "result.json").read_text(encoding="utf-8"))
    assert cell["details"]["trainable_parameters"] == cell["details"]["steps"] == 0
    before, _ = headstart.load(way / "pretrained")
    after, _ = headstart.load(folder)
    bodies = [dict(model.base_model.named_parameters()) for model in (before, after)]
    assert all(torch.equal(value, bodies[1][name]) for name, value in bodies[0].items())


def test_a_linear_probe_is_trained_although_no_step_is_made(way, recipe_of, tmp_path):
    """A study would count all its seeds as one run otherwise, and its card would say that nothing was trained."""
    folder = headstart.finetune(
        recipe_of["finetune"](way, output=str(tmp_path / "out"), adaptation="linear_probe", compare_with=[]), quiet=True
    )
    cell = json.loads((folder / "cells" / "linear_probe-seed-0" / "result.json").read_text(encoding="utf-8"))
    model, _ = headstart.load(folder)
    head = sum(parameter.numel() for parameter in model.classifier.parameters())
    assert cell["details"]["trainable_parameters"] == head > 0 and cell["details"]["steps"] == 0
    assert "Nothing was trained" not in (folder / "README.md").read_text(encoding="utf-8")


def test_a_method_that_is_not_applicable_is_refused_or_left_out(toys, way, recipe_of, tmp_path, monkeypatch):
    monkeypatch.setattr(LowRank, "supports", lambda *_: "this toy supports nothing")
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "out"), adaptation="low_rank")
    with pytest.raises(RecipeError, match=r"'low_rank' cannot be used for the task 'classify' on .*: this toy supp"):
        headstart.finetune(recipe, quiet=True)
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "beside"), compare_with=["majority", "low_rank"])
    folder = headstart.finetune(recipe, quiet=True)
    assert artifact.read_manifest(folder)["left_out"] == {"low_rank": "this toy supports nothing"}


def test_a_text_longer_than_the_network_reads_is_refused(way, recipe_of, tmp_path):
    """The limit of the network holds even if the tokenizer does not know it."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(way / "pretrained", folder)
    described = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    described.pop("model_max_length")
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    for own in ("headstart.json", "recipe.yaml", "inputs.json"):
        (folder / own).unlink()
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "out"), model=str(folder))
    recipe["training"]["max_length"] = 4096
    with pytest.raises(RecipeError, match=r"max_length is 4096.* reads at most \d+ tokens"):
        headstart.finetune(recipe, quiet=True)


def test_an_adaptation_can_override_every_training_setting(way, recipe_of):
    recipe = config.fill(FinetuneRecipe, recipe_of["finetune"](way))
    settings = settings_of(recipe.training, LowRank.Config(learning_rate=0.5))
    assert (settings.lr_scheduler_type, settings.learning_rate) == ("constant", 0.5)
    assert settings.budget == recipe.training.budget


@pytest.mark.parametrize(
    ("compare_with", "message"),
    [
        (["majority", {"name": "features"}, {"name": "features", "layers": "mix"}], "'features' is listed twice"),
        ([{"name": "full", "learning_rate": 1e-3}], "has settings for 'full', which is the adaptation itself"),
    ],
)
def test_a_method_can_be_compared_only_once(way, recipe_of, compare_with, message):
    with pytest.raises(RecipeError, match=message):
        config.fill(FinetuneRecipe, recipe_of["finetune"](way, compare_with=compare_with))


def test_a_frozen_body_computes_each_text_once(way, recipe_of, tmp_path):
    """Ten epochs over cached states cost little more than one."""
    flops = []
    for epochs in (1, 10):
        training = {"budget": f"{epochs} epochs", "max_length": 32, "eval_count": 1, "batch_size": 16}
        settings = {
            "output": str(tmp_path / str(epochs)),
            "adaptation": "features",
            "compare_with": [],
            "training": training,
        }
        folder = headstart.finetune(recipe_of["finetune"](way, **settings), quiet=True)
        flops.append(artifact.read_manifest(folder)["cost"]["flops"])
    assert 0 < flops[0] < flops[1] < 1.5 * flops[0]


@pytest.mark.parametrize("kind", ["modernbert", "bert"])
def test_a_head_of_another_size_is_replaced(way, recipe_of, tmp_path, kind):
    """A discriminator has one output per token; a classifier of six labels gets a new head on its body."""
    pretrain = recipe_of["pretrain"](way, output=str(tmp_path / "discriminator"), objective="replaced_token")
    pretrain["backbone"] = {"family": "encoder", "kind": kind, "size": "tiny"}
    start = headstart.pretrain(pretrain, quiet=True)
    tuned = headstart.finetune(recipe_of["finetune"](way, output=str(tmp_path / "tuned"), model=str(start)), quiet=True)
    assert headstart.load(tuned)[0].config.num_labels == 6


def test_learned_layer_weights_are_in_the_manifest_the_card_and_the_summary(way, recipe_of, tmp_path):
    raw = recipe_of["finetune"](way, output=str(tmp_path / "out"), adaptation={"name": "features", "layers": "mix"})
    headstart.finetune(raw, quiet=True)
    mixture = json.loads((tmp_path / "out" / "headstart.json").read_text())["mixture"]
    assert len(mixture["weights"]) == 3 and sum(mixture["weights"]) == pytest.approx(1, abs=1e-3)
    text = f"{mixture['weights'][0]:.3f}, {mixture['weights'][1]:.3f}"
    assert f"layer weights: {text}" in finetune.summary(tmp_path / "out")
    assert text in (tmp_path / "out" / "README.md").read_text()
