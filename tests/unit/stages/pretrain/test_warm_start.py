"""Embeddings that start from co-occurrence counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headstart
from headstart.core import artifact
from headstart.core.errors import RecipeError


def recipe(way, recipe_of, output, **changes):
    base = recipe_of["pretrain"](way, output=str(output))
    base["corpus"] = {**base["corpus"], "prepared": str(way / "warm")}
    base["training"] = {**base["training"], "budget": "2 steps", "batch_tokens": 256, "learning_rate": 1e-9}
    return {**base, **changes}


@pytest.mark.parametrize(
    ("objective", "backbone"),
    [
        ({"name": "masked_lm"}, {"family": "encoder", "size": "tiny"}),
        ({"name": "replaced_token"}, {"family": "encoder", "kind": "electra", "size": "tiny"}),
        ({"name": "span_boundary"}, {"family": "encoder", "size": "tiny"}),
        ({"name": "next_sentence"}, {"family": "encoder", "size": "tiny"}),
        ({"name": "sentence_order"}, {"family": "encoder", "size": "tiny"}),
        ({"name": "span_corruption"}, {"family": "encoder-decoder", "size": "tiny"}),
        ({"name": "denoising"}, {"family": "encoder-decoder", "kind": "bart", "size": "tiny"}),
        ({"name": "causal_lm"}, {"family": "decoder", "size": "tiny"}),
        ({"name": "permuted_lm"}, {"family": "xlnet", "size": "tiny"}),
    ],
)
def test_embeddings_start_at_the_counted_vectors(way, recipe_of, tmp_path, objective, backbone):
    settings = {"objective": objective, "backbone": backbone, "warm_start": {"window": 3}}
    folder = headstart.pretrain(recipe(way, recipe_of, tmp_path / "out", **settings), quiet=True)
    model, _ = headstart.load(folder)
    table = model.get_input_embeddings().weight.detach()
    folders = [path for path in (way / "warm").glob("vectors-*") if artifact.is_complete(path)]
    tables = [torch.from_numpy(np.load(path / "vectors.npy")) for path in folders]
    vectors = next(counted for counted in tables if counted.shape[1] == table.shape[1])
    known = vectors.norm(dim=1) > 0
    assert known.sum() > 100
    similarity = torch.nn.functional.cosine_similarity(table[: len(vectors)][known], vectors[known])
    assert similarity.min() > 0.999


def test_the_first_loss_is_near_the_unigram_entropy(way, recipe_of, tmp_path):
    folder = headstart.pretrain(recipe(way, recipe_of, tmp_path / "out", warm_start={}), quiet=True)
    facts = artifact.read_manifest(folder)["metrics"]
    assert facts["validation"]["loss"] == pytest.approx(facts["unigram_entropy"], abs=0.25)


def test_a_student_that_starts_from_its_teacher_is_refused(way, recipe_of, tmp_path):
    given = recipe(way, recipe_of, tmp_path / "out", warm_start={})
    given["objective"] = {"name": "distillation", "teacher": str(way / "pretrained")}
    with pytest.raises(RecipeError, match=r"objective\.teacher has trained token embeddings.*initialize to false"):
        headstart.pretrain(given, quiet=True)


def test_a_checkpoint_is_refused(way, recipe_of, tmp_path):
    first = headstart.pretrain(recipe(way, recipe_of, tmp_path / "first"), quiet=True)
    continued = recipe(way, recipe_of, tmp_path / "continued", warm_start={})
    continued["backbone"] = {"family": "checkpoint", "path": str(first)}
    with pytest.raises(RecipeError, match="has trained token embeddings"):
        headstart.pretrain(continued, quiet=True)
