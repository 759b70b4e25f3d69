"""A classifier starts from the position and the pooler that pre-training on sentence pairs has trained."""

from __future__ import annotations

import json

import pytest
import torch

from headstart.backbones.encoder import Encoder
from headstart.core.data import Examples
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives import NextSentence, SentenceOrder
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder

KINDS = ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")
PAIRS = Examples(
    {"first": ["In the beginning", "And God said"], "second": ["was the word of the Lord", "let there be"]},
    ["yes", "no"], "pairs",
)  # fmt: skip


def checkpoint(folder, kind, tokenizer, objective):
    """Save the networks of an objective, with a tokenizer, and return the module that it trains."""
    torch.manual_seed(1)
    backbone = Encoder(Encoder.Config(kind=kind, size="tiny", dropout=0.0, max_length=64))

    def make(auto_class, part="", scale=1.0, **changes):
        return backbone.build(vocabulary_of(tokenizer), 32, auto_class, scale, **changes)

    module = objective.assemble(make).eval()
    for name, network in objective.parts(module).items():
        network.save_pretrained(str(folder / name))
    tokenizer.save_pretrained(str(folder))
    return module


def opened(folder, tokenizer):
    task = Classify(Classify.Config(text=["first", "second"]))
    task.fit_labels(PAIRS)
    source = CheckpointFolder(folder, task, seed=0)
    model, spec = source.pretrained().eval(), source.input_spec(32)
    return model, task.collate(task.encode(PAIRS, spec), spec)


def output_layer(model):
    return next(m for m in reversed(list(model.modules())) if isinstance(m, torch.nn.Linear) and m.out_features == 2)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_output_layer_of_pretraining_a_classifier_repeats_its_predictions(kind, tiny_tokenizer, tmp_path):
    objective = NextSentence()
    module = checkpoint(tmp_path, kind, tiny_tokenizer, objective)
    model, batch = opened(tmp_path, tiny_tokenizer)
    own = output_layer(module if module.head is None else module.head)
    with torch.no_grad():
        output_layer(model).weight.copy_(own.weight)
        output_layer(model).bias.copy_(own.bias)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
        logits = model(**inputs).logits
        masked = {"positions": torch.zeros(2, 1, dtype=torch.int64), "weights": torch.ones(2, 1)}
        pairs = {**batch, **masked, "token_type_ids": batch.get("token_type_ids", torch.zeros_like(batch["input_ids"]))}
        expected = objective.predict(module, pairs).sentence_logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("masked_lm", "pooling"), [(True, "cls"), (False, "mean")])
def test_modernbert_reads_what_was_trained(masked_lm, pooling, tiny_tokenizer, tmp_path):
    checkpoint(tmp_path, "modernbert", tiny_tokenizer, SentenceOrder(masked_lm=masked_lm))
    assert json.loads((tmp_path / "config.json").read_text())["classifier_pooling"] == pooling
    assert opened(tmp_path, tiny_tokenizer)[0].config.classifier_pooling == pooling


def test_a_checkpoint_of_an_earlier_version_keeps_its_pooling(tiny_tokenizer, tmp_path):
    """Its config has the mean, and its sentence head names no pooler."""
    module = checkpoint(tmp_path, "modernbert", tiny_tokenizer, NextSentence())
    for path, values in (
        ("config.json", {"classifier_pooling": "mean"}),
        ("sentence_head/config.json", {"pooler": ""}),
    ):
        saved = json.loads((tmp_path / path).read_text())
        (tmp_path / path).write_text(json.dumps({**saved, **values}))
    model, _ = opened(tmp_path, tiny_tokenizer)
    assert model.config.classifier_pooling == "mean"
    assert torch.equal(model.head.dense.weight, module.network.head.dense.weight), "that of masked LM"
