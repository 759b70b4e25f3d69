"""Fine-tuning frames the texts of an encoder-decoder as its pre-training did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import headstart
from headstart.core import artifact, config
from headstart.core.data import InputSpec
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.setup import open_setup
from headstart.stages.runs.manifest import FinetuneManifest

OBJECTIVES = {
    "t5": {"name": "span_corruption"},
    "bart": {"name": "denoising", "noise": ["infill"]},
}
SEQ2SEQ = {"kind": "seq2seq", "source": "text", "target": "label", "max_target": 8}


@pytest.fixture(scope="module")
def pretrained(way, recipe_of, tmp_path_factory) -> dict[str, Path]:
    """A checkpoint of each layout, pre-trained for a few steps."""
    root = tmp_path_factory.mktemp("framing")
    folders = {}
    for kind, objective in OBJECTIVES.items():
        raw = recipe_of["pretrain"](
            way, output=str(root / kind), objective=objective,
            backbone={"family": "encoder-decoder", "kind": kind, "size": "tiny"},
        )  # fmt: skip
        headstart.pretrain(raw, quiet=True)
        folders[kind] = root / kind
    return folders


def recipe(way: Path, recipe_of: Any, model: Path, output: Path, **sections: Any) -> dict[str, Any]:
    return recipe_of["finetune"](way, model=str(model), output=str(output), **{"task": SEQ2SEQ, **sections})


def opened(raw: dict[str, Any]) -> tuple[list[int], list[int], InputSpec]:
    """Return the ids that the encoder reads and that the decoder learns to write, for the first training row."""
    setup = open_setup(config.fill(FinetuneRecipe, raw))
    feature, *_ = setup.task.encode(setup.splits.train.take([0]), setup.spec, training=True)
    return feature["input_ids"], feature["labels"], setup.spec


@pytest.mark.parametrize(("kind", "has_cls"), [("t5", False), ("bart", True)])
def test_sources_are_framed_as_in_pretraining_and_targets_never_start_with_cls(
    way, recipe_of, pretrained, tmp_path, kind, has_cls
):
    source, target, spec = opened(recipe(way, recipe_of, pretrained[kind], tmp_path / "out"))
    cls, sep = spec.tokenizer.cls_token_id, spec.tokenizer.sep_token_id
    assert (source[0] == cls) is has_cls and source[-1] == sep
    assert cls not in target and target[-1] == sep and len(target) > 1
    plain = AutoTokenizer.from_pretrained(str(pretrained[kind]))("a text")["input_ids"]
    assert (plain[0] == cls) is has_cls and plain[-1] == sep, "other libraries read the checkpoint in the same way"


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_pairs_end_with_sep_each(way, recipe_of, pretrained, tmp_path, kind):
    _, _, spec = opened(recipe(way, recipe_of, pretrained[kind], tmp_path / "out"))
    ids = spec.tokenizer("one text", "and another")["input_ids"]
    assert ids.count(spec.tokenizer.sep_token_id) == 2 and ids[-1] == spec.tokenizer.sep_token_id


def test_language_modeling_starts_from_an_empty_source_without_cls(way, recipe_of, pretrained, tmp_path):
    raw = recipe(
        way, recipe_of, pretrained["t5"], tmp_path / "out", task={"kind": "language_model"}, adaptation="zero_shot",
        compare_with=[],
    )  # fmt: skip
    source, _, spec = opened(raw)
    assert source == [spec.tokenizer.sep_token_id]


def test_a_checkpoint_whose_tokenizer_adds_cls_is_framed_by_its_objective(way, recipe_of, pretrained, tmp_path):
    """Earlier versions saved the tokenizer of a T5 with the template `[CLS] … [SEP]`."""
    older = tmp_path / "older"
    shutil.copytree(pretrained["t5"], older)
    saved = json.loads((older / "tokenizer.json").read_text())
    template = json.loads((pretrained["bart"] / "tokenizer.json").read_text())["post_processor"]
    (older / "tokenizer.json").write_text(json.dumps({**saved, "post_processor": template}))
    assert AutoTokenizer.from_pretrained(str(older))("a")["input_ids"][0] == saved_id(saved, "[CLS]")
    source, _, spec = opened(recipe(way, recipe_of, older, tmp_path / "out"))
    assert source[0] != spec.tokenizer.cls_token_id


def saved_id(tokenizer: dict[str, Any], token: str) -> int:
    return int(next(entry["id"] for entry in tokenizer["added_tokens"] if entry["content"] == token))


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_finished_model_and_one_that_continues_it_keep_the_framing(way, recipe_of, pretrained, tmp_path, kind):
    output = tmp_path / "out"
    headstart.finetune(recipe(way, recipe_of, pretrained[kind], output), quiet=True)
    before = opened(recipe(way, recipe_of, pretrained[kind], tmp_path / "new"))
    after = opened(recipe(way, recipe_of, output, tmp_path / "continued"))
    assert before[:2] == after[:2]
    finished = Finetuned(output, FinetuneManifest.read(output))
    assert finished.spec.tokenizer("a text")["input_ids"] == before[2].tokenizer("a text")["input_ids"]


def test_a_model_of_an_earlier_version_is_continued_as_it_was_trained(way, recipe_of, pretrained, tmp_path):
    """Its manifest has no `target_cls`, and its decoder writes [CLS] first."""
    output = tmp_path / "out"
    headstart.finetune(recipe(way, recipe_of, pretrained["bart"], output), quiet=True)
    manifest = json.loads((output / artifact.MANIFEST).read_text())
    manifest.pop("target_cls")
    (output / artifact.MANIFEST).write_text(json.dumps(manifest))
    _, target, spec = opened(recipe(way, recipe_of, output, tmp_path / "continued"))
    assert target[0] == spec.tokenizer.cls_token_id
