"""Continued pre-training: from a checkpoint, on text of a new domain, with new words in the vocabulary."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GPT2Config,
    PreTrainedTokenizerFast,
)

import headstart
from headstart.core import artifact, config
from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.jsonl import read_jsonl

TERMS = ["cardiomyopathy", "immunoglobulin", "thrombocytopenia", "bradycardia", "angioplasty"]


@pytest.fixture(scope="module")
def domain(way, tmp_path_factory):
    """The same text with words of another domain in it."""
    folder = tmp_path_factory.mktemp("domain")
    verses = (way / "text.txt").read_text(encoding="utf-8").split("\n\n")
    lines = [f"{verse} The {TERMS[n % 5]} of {TERMS[n % 3]}." for n, verse in enumerate(verses)]
    (folder / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    return folder


def recipe(domain, recipe_of, output, path, training=(), **sections):
    base = recipe_of["pretrain"](domain, output=str(output), backbone={"family": "checkpoint", "path": str(path)})
    base["corpus"] = {**base["corpus"], "prepared": str(domain / "shared")}
    base["training"] = {**base["training"], "learning_rate": 1e-3, "logging_steps": 1, **dict(training)}
    return base | {"tokenizer": {}} | sections


def first_loss(folder):
    return next(line["loss"] for line in read_jsonl(folder / "logs" / "metrics.jsonl") if "loss" in line)


@pytest.fixture(scope="module")
def trained(way, recipe_of, tmp_path_factory):
    """A checkpoint that has learned something, so that starting from it makes a difference."""
    given = recipe_of["pretrain"](way, output=str(tmp_path_factory.mktemp("trained") / "out"))
    given["training"] = {**given["training"], "budget": "200 steps", "learning_rate": 3e-3, "batch_tokens": 512}
    return headstart.pretrain(given, quiet=True).path


@pytest.fixture(scope="module")
def extended(domain, recipe_of, trained, tmp_path_factory):
    given = recipe(domain, recipe_of, tmp_path_factory.mktemp("run") / "out", trained, tokenizer={"extend": 40})
    return given, headstart.pretrain(given, quiet=True).path


def test_training_continues_from_the_checkpoint(domain, recipe_of, way, trained, tmp_path):
    """The first loss is that of the checkpoint, far below that of a new network on the same text."""
    given = recipe(way, recipe_of, tmp_path / "on", trained, training={"budget": "2 steps"})
    continued = headstart.pretrain(
        given | {"corpus": {"files": [str(way / "text.txt")], "validation": 0.1}}, quiet=True
    )
    new = first_loss(trained)
    assert first_loss(continued) < new - 0.5
    recorded = artifact.read_manifest(trained)["metrics"]["validation"]["loss"]
    assert first_loss(continued) == pytest.approx(recorded, abs=0.4)
    facts = artifact.read_manifest(continued)
    assert facts["parents"]["checkpoint"] == artifact.identity(trained)
    assert facts["parents"]["tokenizer"] == artifact.identity(trained)
    assert f"continued from `{trained}`" in (continued / "README.md").read_text(encoding="utf-8")
    vocabularies = [AutoTokenizer.from_pretrained(str(folder)).get_vocab() for folder in (continued, trained)]
    assert vocabularies[0] == vocabularies[1]


def test_the_vocabulary_grows_and_the_artifact_is_plain(extended, trained, domain):
    _, folder = extended
    before, after = (AutoTokenizer.from_pretrained(str(path)) for path in (trained, folder))
    model = AutoModelForMaskedLM.from_pretrained(str(folder))
    assert len(after) == len(before) + 40 == model.config.vocab_size == model.get_input_embeddings().num_embeddings
    text = (domain / "text.txt").read_text(encoding="utf-8")[:20_000]
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for tokenizer in (before, after)]
    assert lengths[1] < 0.9 * lengths[0]
    assert len(after.tokenize("cardiomyopathy")) == 1 < len(before.tokenize("cardiomyopathy"))
    filled = model(**after("the cardiomyopathy of [MASK].", return_tensors="pt")).logits
    assert filled.shape[-1] == len(after) and torch.isfinite(filled).all()


def test_a_resumed_run_equals_an_uninterrupted_one(extended, tmp_path, interrupted_at):
    given, uninterrupted = extended
    interrupted = given | {"output": str(tmp_path / "interrupted")}
    with interrupted_at(3):
        headstart.pretrain(interrupted, quiet=True)
    resumed = headstart.pretrain(interrupted, quiet=True)
    assert (resumed / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


def test_plan_evaluate_and_finetune_work_on_it(extended, domain, way, recipe_of, tmp_path):
    given, folder = extended
    planned = headstart.plan(given)
    assert planned["size"]["parameters"] == artifact.read_manifest(folder)["parameters"]
    assert headstart.evaluate(folder, domain / "text.txt")["rows"] > 100
    tuned = headstart.finetune(recipe_of["finetune"](way, output=str(tmp_path / "t"), model=str(folder)), quiet=True)
    assert artifact.is_complete(tuned)


@pytest.mark.parametrize("growth", [{"layers": 4}, {"hidden": 256}])
def test_a_grown_network_is_far_ahead_of_a_new_one_of_the_same_size(way, recipe_of, trained, tmp_path, growth):
    text = {"corpus": {"files": [str(way / "text.txt")], "validation": 0.1, "prepared": str(tmp_path / "shared")}}
    config = AutoConfig.from_pretrained(str(trained))
    config.update({"num_hidden_layers": 4} if "layers" in growth else {"hidden_size": 256, "num_attention_heads": 4})
    AutoModelForMaskedLM.from_config(config).save_pretrained(str(tmp_path / "new"))
    for path in trained.glob("tokenizer*.json"):
        shutil.copy2(path, tmp_path / "new")
    losses = {}
    for name, path, settings in (("grown", trained, {"grow": growth}), ("new", tmp_path / "new", {})):
        given = recipe(way, recipe_of, tmp_path / f"{name}-run", path, training={"budget": "5 steps"}) | text
        given["backbone"] = {**given["backbone"], **settings}
        losses[name] = artifact.read_manifest(headstart.pretrain(given, quiet=True))["metrics"]["validation"]["loss"]
    model = AutoModelForMaskedLM.from_pretrained(str(tmp_path / "grown-run"))
    assert model.config.num_hidden_layers == growth.get("layers", 2)
    assert model.config.hidden_size == growth.get("hidden", 128)
    recorded = artifact.read_manifest(trained)["metrics"]["validation"]["loss"]
    assert losses["grown"] < losses["new"] - 0.5 and losses["grown"] < recorded + 0.3, (losses, recorded)


def test_a_run_is_tied_to_its_checkpoint(extended, trained, tmp_path):
    given, _ = extended
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("checkpoints", "logs", "prepared", "headstart.json"))
    (copy / "recipe.yaml").unlink()
    moved = given | {"backbone": {"family": "checkpoint", "path": str(copy)}, "output": str(tmp_path / "out")}
    headstart.pretrain(moved, quiet=True)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.3}), encoding="utf-8")
    with pytest.raises(ArtifactError, match="the content of checkpoint and tokenizer has changed since"):
        headstart.pretrain(moved, quiet=True)


def test_a_decoder_whose_tokenizer_has_one_special_token(domain, way, recipe_of, tmp_path):
    """As in GPT-2: the token that ends a text also begins it, and there is no padding token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train([str(way / "text.txt")], trainer)
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=end, eos_token=end, unk_token=end).save_pretrained(
        str(tmp_path / "gpt2")
    )
    small = GPT2Config(vocab_size=512, n_layer=1, n_embd=32, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    AutoModelForCausalLM.from_config(small).save_pretrained(str(tmp_path / "gpt2"))
    given = recipe(domain, recipe_of, tmp_path / "out", tmp_path / "gpt2", objective={"name": "causal_lm"})
    folder = headstart.pretrain(given | {"tokenizer": {"extend": 30}}, quiet=True)
    model, tokenizer = headstart.load(folder)
    assert len(tokenizer) == 530 == model.config.vocab_size, "30 tokens beyond 500, more than the 12 spare rows"
    assert tokenizer.model_max_length == 64


def test_the_keys_of_a_filled_recipe_are_stable(way, recipe_of):
    """Runs, tokenizers and shards are named by a hash of their settings: a new key would change the names."""
    filled = config.to_dict(config.fill(PretrainRecipe, recipe_of["pretrain"](way)))
    assert list(filled) == [
        "seed", "output", "corpus", "tokenizer", "backbone", "objective", "warm_start", "training", "cost",
    ]  # fmt: skip
    assert list(filled["tokenizer"]) == ["kind", "vocab_size", "lowercase", "path", "sample_mb"]
    assert list(filled["corpus"]) == [
        "files", "text", "documents", "validation", "min_characters", "max_reject_share", "prepared",
    ]  # fmt: skip
    assert filled["training"]["seq_length"] == 32 and "extend" not in config.to_yaml(
        config.fill(PretrainRecipe, filled)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": {"name": "causal_lm"}}, r"does not train .*, which is a 'bert' of the family encoder"),
        ({"backbone": {"family": "checkpoint"}}, r"backbone\.path` is missing"),
        ({"backbone": {"family": "checkpoint", "path": "nowhere"}}, r"backbone\.path is 'nowhere', but there is no"),
        ({"backbone": "encoder", "tokenizer": {"extend": 9}}, r"extend is 9, but there is no tokenizer to extend"),
    ],
)
def test_wrong_starts_are_refused(domain, recipe_of, trained, tmp_path, change, words):
    with pytest.raises((RecipeError, ArtifactError), match=words):
        headstart.pretrain(recipe(domain, recipe_of, tmp_path / "x", trained) | change, quiet=True)


def test_another_tokenizer_is_refused(domain, recipe_of, trained, checkpoint, tmp_path):
    given = recipe(domain, recipe_of, tmp_path / "x", trained, tokenizer={"path": str(checkpoint("bert"))})
    with pytest.raises(RecipeError, match=r"the id of .* in the run's tokenizer, but .*Remove tokenizer\.path"):
        headstart.pretrain(given, quiet=True)


def test_text_without_new_words_is_refused(domain, recipe_of, trained, tmp_path):
    words = ("and", "the", "of", "lord")
    lines = [f"{first} {second}" for first in words for second in words]
    (tmp_path / "plain.txt").write_text("\n\n".join(lines * 5), encoding="utf-8")
    given = recipe(domain, recipe_of, tmp_path / "x", trained, tokenizer={"extend": 9})
    with pytest.raises(DataError, match="as a single token"):
        headstart.pretrain(given | {"corpus": {"files": [str(tmp_path / "plain.txt")], "validation": 0.3}}, quiet=True)
