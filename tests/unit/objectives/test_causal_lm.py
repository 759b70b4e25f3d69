"""The causal LM objective: predicted tokens and the end of a text."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import OPTConfig, OPTForCausalLM, PreTrainedModel

import headstart
from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder import Encoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.chunked import head_logits

SIZE = 500


def synthetic_vocabulary() -> Vocabulary:
    special = np.arange(SIZE) < 5
    return Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=4, special=special, starts_word=np.ones(SIZE, dtype=bool))


def test_rows_start_with_cls_and_do_not_end_with_sep():
    shape = CausalLM().row_shape(128)
    assert (shape.length, shape.add_cls, shape.add_sep, shape.separate_documents) == (128, True, False, True)


def test_every_token_except_the_first_is_predicted_including_sep():
    row = np.asarray([[2, 10, 11, 3, 12, 1, 13]])  # 1 is the unknown token
    batch = CausalLM().corrupt(Rows(row, [Sample(0, 0)]), synthetic_vocabulary(), 0)
    assert (batch["input_ids"].numpy() == row).all()
    assert batch["labels"].tolist() == [[-100, 10, 11, 3, 12, -100, 13]]
    assert CausalLM().weight(batch) == 5
    assert CausalLM().tokens(batch) == 7
    assert CausalLM().as_inputs(batch).keys() == {"input_ids", "labels"}


def test_first_token_is_not_predicted_even_if_it_is_not_special():
    batch = CausalLM().corrupt(Rows(np.asarray([[10, 11, 12]]), [Sample(0, 0)]), synthetic_vocabulary(), 0)
    assert batch["labels"].tolist() == [[-100, 11, 12]]


def plain_decoder(kind: str) -> PreTrainedModel:
    """A decoder of ours, or one of a checkpoint whose head calls a part of the body."""
    torch.manual_seed(0)
    if kind == "modernbert-decoder":
        return Decoder(Decoder.Config(size="tiny")).build(synthetic_vocabulary(), 32, "AutoModelForCausalLM").eval()
    sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = OPTConfig(vocab_size=SIZE, max_position_embeddings=64, word_embed_proj_dim=16, **sizes)
    return OPTForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["modernbert-decoder", "opt"])
def test_loss_equals_that_of_the_plain_model(kind):
    model = plain_decoder(kind)
    ids = np.random.default_rng(0).integers(1, SIZE, size=(4, 32))
    ids[:, 0] = 2
    batch = CausalLM(chunk=10).corrupt(Rows(ids, [Sample(0, row) for row in range(4)]), synthetic_vocabulary(), 0)
    with torch.no_grad():
        ours = CausalLM(chunk=10).loss(model, batch).item() / CausalLM().weight(batch)
        theirs = model(**CausalLM().as_inputs(batch)).loss.item()
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_collator_keeps_the_final_sep_and_does_not_predict_padding(verses, tiny_tokenizer):
    examples = [{"input_ids": tiny_tokenizer(text)["input_ids"]} for text in verses[:6]]
    batch = CausalLM().collator(tiny_tokenizer)(examples)
    special = vocabulary_of(tiny_tokenizer).special
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        assert batch["attention_mask"][row].sum() == length
        assert batch["labels"][row, length - 1] == tiny_tokenizer.sep_token_id
        assert (batch["labels"][row, length:] == -100).all()
        assert (batch["labels"][row] != -100).sum() == (~special[example["input_ids"]]).sum() + 1


def test_invalid_settings_raise():
    with pytest.raises(ValidationError):
        CausalLM(chunk=0)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta-v2", "albert"])
def test_an_encoder_reads_left_to_right_and_predicts_the_next_token(kind):
    objective, vocabulary = CausalLM(family="encoder", chunk=10), synthetic_vocabulary()
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config(kind=kind, size="tiny", max_length=32))
    module = objective.assemble(lambda auto_class: encoder.build(vocabulary, 32, auto_class)).eval()
    ids = np.random.default_rng(0).integers(5, SIZE, size=(3, 16))
    ids[:, 0], ids[:, 6] = 2, 3
    batch = objective.corrupt(Rows(ids, [Sample(0, row) for row in range(3)]), vocabulary, 0)
    assert objective.weight(batch) == 3 * 14, "neither [CLS] nor [SEP] is predicted"
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][:, 9:] = 20
    with torch.no_grad():
        states, labels, weights = objective.predictions(module, batch)
        others, _, _ = objective.predictions(module, changed)
        logits = head_logits(module.network, states)
        loss = objective.loss(module, batch).item()
    assert torch.allclose(states[:, :9], others[:, :9], atol=1e-5)
    assert not torch.allclose(states[:, 9:], others[:, 9:], atol=1e-3)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    assert loss == pytest.approx((losses * (batch["input_ids"][:, 1:] >= 5)).sum().item(), rel=1e-5)
    assert (labels[weights > 0] == batch["input_ids"][:, 1:][weights > 0]).all()


def test_the_side_of_the_padding_does_not_matter_to_an_encoder(verses, tiny_tokenizer):
    objective = CausalLM(family="encoder")
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config(kind="modernbert", size="tiny", max_length=64))
    module = objective.assemble(lambda auto_class: encoder.build(vocabulary_of(tiny_tokenizer), 64, auto_class)).eval()
    examples = [{"input_ids": tiny_tokenizer(text, truncation=True, max_length=60)["input_ids"]} for text in verses[:6]]
    losses = []
    for side in ("right", "left"):
        tokenizer = copy.deepcopy(tiny_tokenizer)
        tokenizer.padding_side = side
        with torch.no_grad():
            losses.append(module(**objective.collator(tokenizer)(examples)).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_an_encoder_takes_a_causal_detour_before_masked_lm(way, recipe_of, tmp_path):
    """A checkpoint of masked LM is continued with causal attention, and that one with masked LM again."""

    def pretrain(output, path, **objective):
        backbone = {"family": "checkpoint", "path": str(path)}
        recipe = recipe_of["pretrain"](way, backbone=backbone, objective=objective, output=str(tmp_path / output))
        del recipe["tokenizer"]
        return headstart.pretrain(recipe, quiet=True)

    with pytest.raises(RecipeError, match=r"Set `objective\.family: encoder`"):
        pretrain("refused", way / "pretrained", name="causal_lm")
    pretrain("causal", way / "pretrained", name="causal_lm", family="encoder")
    pretrain("masked", tmp_path / "causal", name="masked_lm")
    folders = way / "pretrained", tmp_path / "causal", tmp_path / "masked"
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert configs[0] == configs[1] == configs[2], "it stays the same encoder"
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    assert weights[0].keys() == weights[1].keys() == weights[2].keys()
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert 0 < (weights[1][name] - weights[2][name]).abs().max() < 0.02, "the second phase starts from the first"
