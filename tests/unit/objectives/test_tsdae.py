"""TSDAE: deleted words, the loss against sentence-transformers, and the vector as the only path to the decoder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, T5Config, T5ForConditionalGeneration

import headstart
from headstart.backbones.encoder import Encoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.tsdae import TSDAE
from headstart.objectives.tsdae_network import _WithCrossAttention

SIZE, PAD, CLS, SEP = 500, 0, 2, 3
KINDS = ("bert", "modernbert", "deberta-v2", "albert")


def synthetic_vocabulary() -> Vocabulary:
    """Return a vocabulary in which every third token continues a word."""
    special = np.arange(SIZE) < 5
    starts = special | (np.arange(SIZE) % 3 != 0)
    return Vocabulary(SIZE, pad=PAD, cls=CLS, sep=SEP, mask=4, special=special, starts_word=starts)


def synthetic_rows(count: int, length: int, filled: int) -> Rows:
    """Return rows with `filled` different ordinary tokens between [CLS] and [SEP], then padding."""
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(np.arange(5, SIZE))[:length] for _ in range(count)])
    ids[:, 0], ids[:, filled + 1], ids[:, filled + 2 :] = CLS, SEP, PAD
    return Rows(ids, [Sample(0, index) for index in range(count)])


def assembled(kind: str, tokenizer, **settings):
    objective = TSDAE(**settings)
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config(kind=kind, size="tiny", max_length=64))

    def make(auto_class, part="", scale=1.0, **changes):
        return encoder.build(vocabulary_of(tokenizer), 64, auto_class, scale, **changes)

    return objective, objective.assemble(make).eval()


def rows_of(texts, tokenizer) -> Rows:
    ids = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="np")["input_ids"]
    return Rows(ids.astype(np.int64), [Sample(0, index) for index in range(len(texts))])


def test_whole_words_are_deleted_at_the_rate():
    vocabulary, rows = synthetic_vocabulary(), synthetic_rows(400, 64, 60)
    batch = TSDAE().corrupt(rows, vocabulary, seed=0)
    words = kept_words = 0
    for row, ids in enumerate(rows.ids):
        ids = ids[ids != PAD]
        kept = batch["input_ids"][row][batch["attention_mask"][row] == 1].tolist()
        starts = np.flatnonzero(vocabulary.word_starts(ids) | vocabulary.special[ids])
        all_words = [tuple(word.tolist()) for word in np.split(ids, starts[1:])]
        joined: list[int] = []
        for word in all_words:
            if kept[len(joined) : len(joined) + len(word)] == list(word):
                joined += word
                kept_words += 1
        assert joined == kept, "the rest is a sequence of whole words in their order"
        assert kept[0] == CLS and kept[-1] == SEP
        words += len(all_words)
        kept_words, words = kept_words - 2, words - 2  # [CLS] and [SEP] do not count
    assert kept_words / words == pytest.approx(0.4, abs=0.02)
    assert (batch["input_ids"][batch["attention_mask"] == 0] == PAD).all()


def test_one_word_is_always_kept_and_the_whole_sentence_predicted():
    vocabulary, rows = synthetic_vocabulary(), synthetic_rows(100, 8, 2)
    batch = TSDAE(rate=0.99).corrupt(rows, vocabulary, seed=0)
    assert (batch["attention_mask"].sum(1) >= 3).all()
    assert (batch["decoder_input_ids"].numpy() == rows.ids[:, :-1]).all()
    assert (batch["labels"].numpy() == rows.ids[:, 1:]).all()
    assert batch["weights"].tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * 100


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_loss_and_gradients_equal_those_of_sentence_transformers(pooling, checkpoint, verses, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="the reference; install headstart[search]")
    from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = checkpoint("bert")
    transformer = Transformer(str(folder), max_seq_length=32)
    width = transformer.get_embedding_dimension()
    model = library.SentenceTransformer(modules=[transformer, Pooling(width, pooling)], device="cpu")
    reference = DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True).eval()

    tokenizer = model.tokenizer
    objective = TSDAE(pooling=pooling)
    module = objective.assemble(lambda auto_class: AutoModelForMaskedLM.from_pretrained(str(folder))).eval()
    layers = reference.decoder.bert.encoder.layer
    with torch.no_grad():
        for layer, block in zip(layers, module.cross_attention.blocks, strict=True):
            # Large random queries and keys show that they have no effect.
            layer.crossattention.self.query.weight.normal_()
            layer.crossattention.self.key.weight.normal_()
            cross = layer.crossattention
            pairs = (
                (block.value, cross.self.value),
                (block.out, cross.output.dense),
                (block.norm, cross.output.LayerNorm),
            )
            for own, other in pairs:
                other.weight.normal_(std=0.2)
                other.bias.normal_(std=0.2)
                own.load_state_dict(other.state_dict())

    rows = rows_of([verse for verse in verses if len(verse.split()) > 5][:6], tokenizer)
    batch = objective.corrupt(rows, vocabulary_of(tokenizer), seed=0)
    damaged = {name: batch[name] for name in ("input_ids", "attention_mask")}
    target = {
        "input_ids": torch.from_numpy(rows.ids),
        "attention_mask": torch.from_numpy(rows.ids != tokenizer.pad_token_id).long(),
    }
    expected = reference([damaged, target], None)
    loss = objective.loss(module, batch) / objective.weight(batch)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)

    expected.backward()
    loss.backward()
    theirs = dict(reference.decoder.named_parameters())
    compared = 0
    for name, parameter in module.network.named_parameters():
        if theirs[name].grad is not None:
            assert torch.allclose(parameter.grad, theirs[name].grad, atol=1e-5), name
            compared += 1
    assert compared > 20
    for layer, block in zip(layers, module.cross_attention.blocks, strict=True):
        assert torch.allclose(block.value.weight.grad, layer.crossattention.self.value.weight.grad, atol=1e-5)
        assert layer.crossattention.self.query.weight.grad.abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_sentence_vector_reaches_the_decoder(kind, tiny_tokenizer, verses):
    objective, module = assembled(kind, tiny_tokenizer, pooling="cls")
    batch = objective.corrupt(rows_of(verses[:4], tiny_tokenizer), vocabulary_of(tiny_tokenizer), seed=0)
    states = []

    def keep(_, __, output):
        output[0].retain_grad()
        states.append(output[0])

    handle = module.network.base_model.register_forward_hook(keep)
    states_of_decoder, _, _ = objective.predictions(module, batch)
    handle.remove()
    states_of_decoder.square().sum().backward()
    gradient = states[0].grad
    assert (gradient[:, 0].abs().sum(1) > 0).all(), "the decoder reads the vector of [CLS]"
    assert (gradient[:, 1:] == 0).all(), "and no other state of the encoder"


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_sees_only_what_is_on_the_left(kind, tiny_tokenizer, verses):
    objective, module = assembled(kind, tiny_tokenizer)
    ids = torch.from_numpy(rows_of(verses[:2], tiny_tokenizer).ids[:, :12].copy())
    vectors = torch.randn(2, module.network.config.hidden_size)
    changed = ids.clone()
    changed[:, 8:] = 20
    with torch.no_grad():
        first, second = (objective.decode(module, vectors, tokens) for tokens in (ids, changed))
        other = objective.decode(module, vectors + 1, ids)
    assert torch.allclose(first[:, :8], second[:, :8], atol=1e-5)
    assert not torch.allclose(first[:, 8:], second[:, 8:], atol=1e-3)
    assert not torch.allclose(first, other, atol=1e-3), "the vector has an effect"
    assert not [part for part in module.modules() if isinstance(part, _WithCrossAttention)]


def test_a_compiled_layer_attends_to_the_vector(tiny_tokenizer, verses):
    objective, module = assembled("bert", tiny_tokenizer)
    batch = objective.corrupt(rows_of(verses[:4], tiny_tokenizer), vocabulary_of(tiny_tokenizer), seed=0)
    with torch.no_grad():
        plain = objective.loss(module, batch).item()
        for layer in module.network.base_model.encoder.layer:
            layer.compile(backend="eager")
        compiled = [objective.loss(module, batch).item() for _ in range(2)]
    assert compiled == pytest.approx([plain] * 2, rel=1e-5)


def test_the_config_names_the_trained_pooling(tiny_tokenizer):
    for pooling in ("mean", "cls"):
        _, module = assembled("modernbert", tiny_tokenizer, pooling=pooling)
        assert module.network.config.classifier_pooling == pooling


def test_a_network_without_self_attention_is_refused():
    config = T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(RecipeError, match="no self-attention in a network of the type 't5'"):
        TSDAE().assemble(lambda auto_class: T5ForConditionalGeneration(config))


def test_it_continues_a_checkpoint_and_then_itself(way, recipe_of, tmp_path):
    """Continued pre-training starts from the cross-attention of the last run; other families are refused."""

    def pretrain(output, **backbone):
        training = {"budget": "4 steps", "seq_length": 32, "batch_tokens": 256, "eval_count": 1}
        sections = {"objective": {"name": "tsdae"}, "training": training, "output": str(tmp_path / output)}
        recipe = recipe_of["pretrain"](way, backbone=backbone, **sections)
        if "path" in backbone:
            del recipe["tokenizer"]
        return headstart.pretrain(recipe, quiet=True)

    pretrain("first", family="checkpoint", path=str(way / "pretrained"))
    pretrain("second", family="checkpoint", path=str(tmp_path / "first"))
    manifest = json.loads((tmp_path / "second" / "headstart.json").read_text())
    assert 0 < manifest["metrics"]["validation"]["loss"] < 20
    first, second = (load_file(tmp_path / run / "cross_attention" / "model.safetensors") for run in ("first", "second"))
    name = "blocks.0.value.weight"
    assert 0 < (first[name] - second[name]).abs().max() < 0.02, "loaded and trained further, not drawn again"
    with pytest.raises(RecipeError, match=r"'tsdae' does not train the family 'decoder'"):
        pretrain("third", family="decoder", size="tiny")
