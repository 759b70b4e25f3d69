"""Fine-tuning beyond plain classification: other gold values, adapters of peft's, what is left out and why."""

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
from headstart.stages.finetune.recipe import FinetuneRecipe, methods_of, settings_of
from headstart.tasks import labelled


class LowRank(BaseAdaptation):
    """Two low-rank matrices of peft's beside every query and value, never merged."""

    paper: ClassVar[str] = "Hu et al. 2022, LoRA"

    class Config(AdaptationSettings):
        """A schedule of its own."""

        name: Literal["low_rank"] = "low_rank"
        lr_scheduler_type: str | None = "constant"

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or LowRank.Config()

    def supports(self, task, family):
        return super().supports(task, family) if family == "encoder" else "this toy knows encoders alone"

    def adapt(self, source):
        from peft import LoraConfig, get_peft_model

        model = source.pretrained()
        new = sorted({name.rpartition(".")[0] for name in source.new_parameters()})
        settings = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=new, init_lora_weights="gaussian")
        return get_peft_model(model, settings)


class Untouched(LowRank):
    """Nothing moves."""

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
    """Verses whose capitalised words are names."""
    verses = [line.split()[:12] for line in (way / "text.txt").read_text(encoding="utf-8").splitlines() if line][:90]
    rows = [{"tokens": words, "tags": ["B-NAME" if w[0].isupper() else "O" for w in words]} for words in verses]
    for name, some in (("train", rows[:60]), ("test", rows[60:])):
        text = "\n".join(json.dumps(row) for row in some)
        (way / f"tags-{name}.jsonl").write_text(text, encoding="utf-8")
    return way


def tag_recipe(folder: Path, recipe_of, **sections: Any) -> dict[str, Any]:
    data = {"train": str(folder / "tags-train.jsonl"), "validation": 20, "test": str(folder / "tags-test.jsonl")}
    recipe = recipe_of["finetune"](folder, task={"kind": "tag"}, data=data, **sections)
    recipe["training"]["max_length"] = 8
    return recipe


def test_tags_with_the_usual_company(tagged, recipe_of, tmp_path):
    """The default company does not fit lists of labels as it is: one of it answers word by word, one is left out."""
    recipe = tag_recipe(tagged, recipe_of, output=str(tmp_path / "out"))
    del recipe["compare_with"]
    folder = headstart.finetune(recipe, quiet=True)
    facts = artifact.verify(folder)
    assert set(facts["metrics"]) == {"full", "majority", "scratch"} and set(facts["left_out"]) == {"svm"}
    assert facts["metrics"]["majority"][0]["token_accuracy"] > 0.5
    said = finetune.summary(folder)
    assert "svm is left out: it predicts a label or a number" in said and "words are tagged 'O' unseen" in said
    assert 'pipeline("token-classification"' in (folder / "README.md").read_text(encoding="utf-8")
    found = headstart.evaluate(folder, tagged / "tags-test.jsonl")
    said = facts["metrics"]["full"][0]
    assert {name: found[name] for name in said} == pytest.approx(said)


def test_a_part_of_the_test_rows_is_read_where_asked(tagged, recipe_of, tmp_path):
    asked = recipe_of["finetune"](tagged, output=str(tmp_path / "out"))
    asked["data"]["test_rows"] = 3
    recipe = config.fill(FinetuneRecipe, asked)
    whole, few = (
        finetune.read_data(data, registry.build("tasks", recipe.task)).test
        for data in (recipe.data.model_copy(update={"test_rows": None}), recipe.data)
    )
    assert few == labelled.some(whole, 3) and len(few) == 3 < len(whole)


@pytest.mark.parametrize("name", ["full", "features"])
def test_a_cell_that_was_killed_after_its_training_costs_no_flops_twice(name, tagged, recipe_of, tmp_path):
    asked = recipe_of["finetune"](tagged, output=str(tmp_path / "out"), adaptation=name, compare_with=[])
    recipe = config.fill(FinetuneRecipe, asked)
    task: Any = registry.build("tasks", recipe.task)
    splits = finetune.read_data(recipe.data, task)
    (method, section), *_ = methods_of(recipe)
    first, again = (
        finetune.run_adaptation(recipe, task, splits, method, section, 0, tmp_path / "work", "x", quiet=True)[0].cost
        for _ in range(2)
    )
    assert (first["flops"], first["tokens"]) == (again["flops"], again["tokens"]) and first["flops"] > 0
    assert again["seconds"] > first["seconds"], "what a crash undid was paid all the same"


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
    found, said = headstart.evaluate(folder, data), facts["metrics"]["low_rank"][0]
    assert {name: found[name] for name in said} == pytest.approx(said)
    model, _ = headstart.load(folder)
    assert type(model).__module__.startswith("peft.")


def test_an_adapter_refuses_other_weights_beneath_it(toys, way, recipe_of, tmp_path):
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


def test_where_nothing_moves_the_model_is_measured_as_it_is(toys, way, recipe_of, tmp_path):
    folder = headstart.finetune(
        recipe_of["finetune"](way, output=str(tmp_path / "out"), adaptation="untouched", compare_with=[]), quiet=True
    )
    cell = json.loads((folder / "cells" / "untouched-seed-0" / "result.json").read_text(encoding="utf-8"))
    assert cell["details"]["trainable_parameters"] == cell["details"]["steps"] == 0
    before, _ = headstart.load(way / "pretrained")
    after, _ = headstart.load(folder)
    bodies = [dict(model.base_model.named_parameters()) for model in (before, after)]
    assert all(torch.equal(value, bodies[1][name]) for name, value in bodies[0].items())


def test_what_does_not_fit_is_refused_or_left_out(toys, way, recipe_of, tmp_path, monkeypatch):
    monkeypatch.setattr(LowRank, "supports", lambda *_: "this toy is at rest")
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "out"), adaptation="low_rank")
    with pytest.raises(RecipeError, match=r"'low_rank' does not serve the task 'classify' on .*: this toy is at rest"):
        headstart.finetune(recipe, quiet=True)
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "beside"), compare_with=["majority", "low_rank"])
    folder = headstart.finetune(recipe, quiet=True)
    assert artifact.read_manifest(folder)["left_out"] == {"low_rank": "this toy is at rest"}


def test_a_text_longer_than_the_network_reads_is_refused(way, recipe_of, tmp_path):
    """A tokenizer need not know how much its network reads."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(way / "pretrained", folder)
    described = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    described.pop("model_max_length")
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    for own in ("headstart.json", "recipe.yaml", "inputs.json"):
        (folder / own).unlink()
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "out"), model=str(folder))
    recipe["training"]["max_length"] = 4096
    with pytest.raises(RecipeError, match=r"max_length is 4096.* reads \d+ tokens at most"):
        headstart.finetune(recipe, quiet=True)


def test_an_adaptation_may_set_whatever_training_has(way, recipe_of):
    recipe = config.fill(FinetuneRecipe, recipe_of["finetune"](way))
    found = settings_of(recipe.training, LowRank.Config(learning_rate=0.5))
    assert (found.lr_scheduler_type, found.learning_rate) == ("constant", 0.5)
    assert found.budget == recipe.training.budget


@pytest.mark.parametrize(
    ("compare_with", "said"),
    [
        (["majority", {"name": "features"}, {"name": "features", "layers": "mix"}], "names 'features' twice"),
        ([{"name": "full", "learning_rate": 1e-3}], "has settings for 'full', which is the adaptation itself"),
    ],
)
def test_a_method_stands_in_a_table_once(way, recipe_of, company, said):
    with pytest.raises(RecipeError, match=said):
        config.fill(FinetuneRecipe, recipe_of["finetune"](way, compare_with=company))


def test_a_frozen_body_is_paid_for_once(way, recipe_of, tmp_path):
    """Ten epochs over remembered states cost little more than one."""
    spent = []
    for epochs in (1, 10):
        training = {"budget": f"{epochs} epochs", "max_length": 32, "eval_count": 1, "batch_size": 16}
        settings = {
            "output": str(tmp_path / str(epochs)),
            "adaptation": "features",
            "compare_with": [],
            "training": training,
        }
        folder = headstart.finetune(recipe_of["finetune"](way, **settings), quiet=True)
        spent.append(artifact.read_manifest(folder)["cost"]["flops"])
    assert 0 < spent[0] < spent[1] < 1.5 * spent[0]


@pytest.mark.parametrize("kind", ["modernbert", "bert"])
def test_a_head_of_another_size_gives_way(way, recipe_of, tmp_path, kind):
    """A discriminator tells each token by one number; a classifier of six labels starts anew on its body."""
    pretrain = recipe_of["pretrain"](way, output=str(tmp_path / "discriminator"), objective="replaced_token")
    pretrain["backbone"] = {"family": "encoder", "kind": kind, "size": "tiny"}
    start = headstart.pretrain(pretrain, quiet=True)
    tuned = headstart.finetune(recipe_of["finetune"](way, output=str(tmp_path / "tuned"), model=str(start)), quiet=True)
    assert headstart.load(tuned)[0].config.num_labels == 6
