"""`adapt_first`: continued pre-training before fine-tuning, and the checkpoint that the probe chooses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import headstart
from headstart.core import artifact, config
from headstart.core.errors import DataError, RecipeError
from headstart.stages.finetune import adapt_first as stage
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.studies.run.nodes import finetune_node

FILES = {"budget": "6 steps", "seq_length": 32, "batch_tokens": 256, "learning_rate": 1e-3}


def recipe(way: Path, recipe_of, output: Path, texts: Any = None, **sections: Any) -> dict[str, Any]:
    adapt_first = {"texts": texts or [str(way / "text.txt")], **FILES}
    return recipe_of["finetune"](way, output=str(output), adapt_first=adapt_first, **sections)


@pytest.fixture
def preferring(monkeypatch):
    """Replaces the probe by one that prefers the checkpoint at a place in the list."""

    def prefer(place: int) -> None:
        calls = iter(range(100))
        monkeypatch.setattr(stage, "_probe_score", lambda setup: (float(next(calls) == place), "accuracy"))

    return prefer


@pytest.fixture(scope="module")
def adapted(way, recipe_of, tmp_path_factory):
    given = recipe(way, recipe_of, tmp_path_factory.mktemp("adapted") / "out")
    return given, headstart.finetune(given, quiet=True).path


def test_the_start_and_checkpoints_along_the_run_are_scored_by_a_linear_probe(adapted, way, recipe_of, tmp_path):
    _, folder = adapted
    facts = artifact.verify(folder)
    scores = {int(step): score for step, score in facts["adapted"]["scores"].items()}
    assert list(scores) == [0, 2, 4, 6]
    assert facts["adapted"]["step"] == max(scores, key=lambda step: (scores[step], -step))
    assert {int(step) for step in facts["adapted"]["losses"]} == {2, 4, 6}
    probed = headstart.finetune(
        recipe_of["finetune"](way, output=str(tmp_path / "probe"), adaptation="linear_probe"), quiet=True
    )
    assert scores[0] == artifact.read_manifest(probed)["validation"]["linear_probe"][0]["accuracy"]


def test_card_summary_and_cost_say_what_adapting_was(adapted):
    given, folder = adapted
    facts, card = artifact.read_manifest(folder), (folder / "README.md").read_text(encoding="utf-8")
    for text in (card, finetune.summary(folder)):
        assert "pre-trained on 1,536 tokens of text (masked_lm)" in text and "A linear probe" in text
    assert facts["cost"]["tokens"] > facts["adapted"]["cost"]["tokens"] == 1536
    assert facts["cost"]["seconds"] > facts["adapted"]["cost"]["seconds"] > 0
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    headstart.finetune(given, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_where_the_start_is_preferred_the_model_is_that_without_adapting(way, recipe_of, tmp_path, preferring):
    preferring(0)
    folder = headstart.finetune(recipe(way, recipe_of, tmp_path / "out"), quiet=True)
    assert artifact.read_manifest(folder)["adapted"]["step"] == 0
    plain = headstart.finetune(recipe_of["finetune"](way, output=str(tmp_path / "plain")), quiet=True)
    assert (folder / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_an_adapter_on_a_checkpoint_along_the_run_can_be_moved(way, recipe_of, tmp_path, preferring):
    preferring(1)
    given = recipe(way, recipe_of, tmp_path / "out", adaptation="lora")
    folder = headstart.finetune(given, quiet=True).path
    facts = artifact.verify(folder)
    assert facts["adapted"]["step"] == 2
    assert facts["parents"]["model"] == artifact.identity(folder / "adapt_first" / "checkpoint")
    assert facts["parents"]["model"] != artifact.identity(way / "pretrained")
    assert "path/to/this/folder/adapt_first/checkpoint" in (folder / "README.md").read_text(encoding="utf-8")
    reported = facts["metrics"]["lora"][0]["accuracy"]
    shutil.move(folder, tmp_path / "moved")
    assert headstart.evaluate(tmp_path / "moved", way / "test.csv")["accuracy"] == pytest.approx(reported)


def test_an_interrupted_pretraining_is_resumed(adapted, tmp_path, interrupted_at):
    given, uninterrupted = adapted
    interrupted = given | {"output": str(tmp_path / "interrupted")}
    with interrupted_at(3):
        headstart.finetune(interrupted, quiet=True)
    resumed = headstart.finetune(interrupted, quiet=True)
    scores = [artifact.read_manifest(folder)["adapted"]["scores"] for folder in (resumed, uninterrupted)]
    assert scores[0] == scores[1]
    assert (resumed / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


def test_a_decoder_learns_the_texts_of_the_training_rows_and_of_no_others(way, recipe_of, tmp_path):
    decoder = recipe_of["pretrain"](
        way, output=str(tmp_path / "decoder"), objective={"name": "causal_lm"},
        backbone={"family": "decoder", "kind": "gpt2", "size": "tiny"},
    )  # fmt: skip
    given = recipe(way, recipe_of, tmp_path / "out", "train", model=str(headstart.pretrain(decoder, quiet=True).path))
    folder = headstart.finetune(given, quiet=True).path
    assert artifact.read_manifest(folder)["adapted"]["objective"] == "causal_lm"
    lines = (folder / "adapt_first" / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    setup = finetune.open_setup(config.fill(FinetuneRecipe, given))
    assert [json.loads(line)["text"] for line in lines] == list(dict.fromkeys(setup.splits.train.columns["text"]))
    assert len(lines) <= 40, "20 of the 60 rows are for validation"


def test_runs_share_a_folder_and_its_cost_is_counted_once(way, recipe_of, tmp_path):
    facts = []
    for name, seed in (("a", 0), ("b", 1)):
        given = recipe(way, recipe_of, tmp_path / name, seed=seed)
        given["adapt_first"]["folder"] = str(tmp_path / "shared")
        facts.append(artifact.read_manifest(headstart.finetune(given, quiet=True)))
    assert [fact["adapted"]["is_counted"] for fact in facts] == [True, False]
    assert facts[0]["cost"]["tokens"] - facts[1]["cost"]["tokens"] == 1536


def test_what_cannot_be_adapted_is_refused(way, recipe_of, tmp_path):
    (tmp_path / "one.txt").write_text("a single text", encoding="utf-8")
    with pytest.raises(RecipeError, match="has 1 document"):
        headstart.finetune(recipe(way, recipe_of, tmp_path / "b", str(tmp_path / "one.txt")), quiet=True)
    with pytest.raises(DataError, match=r"there is no file .*none\.txt"):
        headstart.finetune(recipe(way, recipe_of, tmp_path / "c", str(tmp_path / "none.txt")), quiet=True)
    with pytest.raises(RecipeError, match="budget"):
        config.fill(FinetuneRecipe, recipe_of["finetune"](way, adapt_first={"texts": "train", "budget": "5"}))
    with pytest.raises(RecipeError, match="does not record its pre-training"):
        config.fill(FinetuneRecipe, recipe_of["finetune"](way, adapt_first={"texts": "train"}, forgetting=True))


def test_a_plan_includes_the_pretraining(adapted, way, recipe_of, tmp_path):
    given, _ = adapted
    planned = headstart.plan(given | {"output": str(tmp_path / "out")})
    assert planned["size"]["tokens to adapt to"] == 1536
    plain = headstart.plan(recipe_of["finetune"](way, output=str(tmp_path / "plain")))
    assert planned["forecast"]["tokens"] == plain["forecast"]["tokens"] + 1536


def test_a_cell_is_addressed_by_the_content_of_the_texts(way, recipe_of, tmp_path):
    def address(path: Path, **settings: Any) -> str:
        given = recipe_of["finetune"](way, adapt_first={"texts": [str(path)], **settings})
        return finetune_node(config.to_dict(config.fill(FinetuneRecipe, given))).id

    for name, text in (("a/x.txt", "one\n\ntwo"), ("b/x.txt", "one\n\ntwo"), ("c/x.txt", "one\n\nthree")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    first, moved, other = (address(tmp_path / name / "x.txt") for name in "abc")
    assert first == moved == address(tmp_path / "a" / "x.txt", folder=str(tmp_path / "shared"))
    assert len({first, other, address(tmp_path / "a" / "x.txt", budget="1 min")}) == 3
    assert "adapt_first" not in config.to_dict(config.fill(FinetuneRecipe, recipe_of["finetune"](way)))
