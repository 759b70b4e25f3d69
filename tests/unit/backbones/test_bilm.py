"""The biLM: directions, character input, mixture of layers and FLOPs."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSequenceClassification

from headstart.backbones.bilm_model import BiLMConfig, BiLMModel, ScalarMix
from headstart.backbones.characters import character_table
from headstart.backbones.lstm import BiLM
from headstart.core.data import Examples, Vocabulary
from headstart.core.errors import ArtifactError
from headstart.core.vocabulary import vocabulary_of
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder
from headstart.training.compilation import compile_layers

SIZE, LENGTH, WIDTH, CELLS = 300, 24, 64, 256
INPUTS = ("subword", "characters")
SPECIAL = np.arange(SIZE) < 5
# Ids 10 and 11 have the same spelling, unlike in any tokenizer; all others differ.
TOKENS = [f"token{number - (number == 11)}" for number in range(SIZE)]
VOCABULARY = Vocabulary(SIZE, 0, 2, 3, 4, special=SPECIAL, starts_word=~SPECIAL, tokens=TOKENS)


def build(kind="subword", auto_class="AutoModelForPreTraining", seed=0, **settings):
    torch.manual_seed(seed)
    return BiLM(BiLM.Config(size="tiny", input=kind, **settings)).build(VOCABULARY, LENGTH, auto_class).eval()


@pytest.fixture(scope="module")
def models():
    return {kind: build(kind) for kind in INPUTS}


def random_ids(rows=2, length=LENGTH, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(5, SIZE, size=(rows, length)))


@given(kind=st.sampled_from(INPUTS), index=st.integers(0, LENGTH - 1), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_directions_do_not_see_the_tokens_they_predict(models, kind, index, seed):
    """A changed token changes the forward logits from its position on, and the backward logits up to it."""
    ids = random_ids(seed=seed)
    changed = ids.clone()
    changed[:, index] = 5 + (ids[:, index] - 4) % (SIZE - 5)
    with torch.no_grad():
        before, after = (models[kind](one).logits for one in (ids, changed))
    differs = (before != after).any(-1)
    reached = torch.stack([torch.arange(LENGTH) >= index, torch.arange(LENGTH) <= index], -1)
    assert not differs.any(0)[~reached].any()
    # Max pooling can hide a change of characters.
    assert kind == "characters" or differs.all(0)[reached].all()


@pytest.mark.parametrize("side", ["right", "left"])
def test_concat_pooling_reads_the_last_states_the_maximum_and_the_mean(side):
    model = build(auto_class="AutoModelForSequenceClassification", pooling="concat", dropout=0.0)
    assert model.classifier.in_features == 3 * model.config.hidden_size
    ids, short = random_ids(), 15
    real = slice(0, short) if side == "right" else slice(LENGTH - short, LENGTH)
    padded, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    padded[:, real], mask[:, real] = ids[:, :short], 1
    with torch.no_grad():
        states = model.bilm(ids[:, :short]).last_hidden_state
        ahead, back = states.chunk(2, -1)
        read = torch.cat([ahead[:, -1], back[:, 0], states.amax(1), states.mean(1)], -1)
        torch.testing.assert_close(model(padded, attention_mask=mask).logits, model.classifier(read))


def test_weight_drop_zeroes_recurrent_weights_in_training_only():
    model = build(dropout=0.0, weight_drop=0.5)
    plain = build(dropout=0.0)
    ids = random_ids()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain(ids).logits), "no weight is dropped in evaluation"
        first, second = (model.train()(ids).logits for _ in range(2))
    assert not torch.equal(first, second)
    model(ids).logits.sum().backward()
    recurrent = model.bilm.layers[0].ahead.weight_hh_l0
    assert recurrent.grad is not None and (recurrent != 0).all()
    # A dropped weight gets no gradient in this pass.
    assert 0.4 < (recurrent.grad == 0).float().mean() < 0.6
    assert (model.bilm.layers[0].ahead.weight_ih_l0.grad != 0).float().mean() > 0.9
    assert torch.equal(model.eval()(ids).logits, plain(ids).logits)


def test_recipes_from_before_pooling_and_weight_drop_keep_their_hash():
    assert not {"pooling", "weight_drop"} & BiLM.Config().model_dump().keys()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", INPUTS)
def test_padding_does_not_change_the_output(models, kind, side):
    ids, short = random_ids(), 15
    real = slice(0, short) if side == "right" else slice(LENGTH - short, LENGTH)
    padded, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    padded[:, real], mask[:, real] = ids[:, :short], 1
    with torch.no_grad():
        actual = models[kind](padded, attention_mask=mask).logits[:, real]
        expected = models[kind](ids[:, :short]).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_tokens_with_the_same_spelling_have_the_same_states(models):
    ids = random_ids()
    ids[:, 7] = 10
    other = ids.clone()
    other[:, 7] = 11
    with torch.no_grad():
        by_characters, by_subwords = (
            (models[kind](ids).logits, models[kind](other).logits) for kind in ("characters", "subword")
        )
    assert torch.equal(*by_characters)
    assert not torch.equal(*by_subwords)


def test_character_table_contains_start_end_and_every_byte():
    table = character_table(["a", "##é", "x" * 60])
    assert table.shape == (3, 50), "ELMo's limit"
    assert table[0].tolist() == [1, ord("a") + 3, 2, *[0] * 47]
    assert table[1, :6].tolist() == [1, ord("#") + 3, ord("#") + 3, 0xC3 + 3, 0xA9 + 3, 2]
    assert table[2, -1] == 2 and (table[2, 1:-1] == ord("x") + 3).all()
    assert character_table(["a"]).shape == (1, 7), "the widest filter fits"


def test_every_token_of_a_tokenizer_has_a_distinct_spelling(tiny_tokenizers):
    for tokenizer in tiny_tokenizers.values():
        vocabulary = vocabulary_of(tokenizer)
        assert len(vocabulary.tokens) == len(tokenizer)
        assert len(character_table(vocabulary.tokens).unique(dim=0)) == len(tokenizer)


def test_character_input_needs_the_spelling_of_tokens():
    bare = Vocabulary(SIZE, 0, 2, 3, 4, special=SPECIAL, starts_word=~SPECIAL)
    with pytest.raises(
        ArtifactError, match=r"has 300 ids, but the spelling of 0 tokens.*needs the spelling of every id"
    ):
        BiLM(BiLM.Config(size="tiny", input="characters")).build(bare, LENGTH, "AutoModel")


@pytest.mark.parametrize("kind", INPUTS)
def test_checkpoint_is_one_file_and_gives_the_same_states(models, kind, tmp_path):
    model = models[kind]
    model.save_pretrained(str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["model.safetensors"]
    again, info = AutoModelForPreTraining.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert torch.equal(again.eval()(random_ids()).logits, model(random_ids()).logits)
    body, info = AutoModel.from_pretrained(str(tmp_path), output_loading_info=True)
    assert sorted(info["missing_keys"]) == ["mix.scale", "mix.weights"], "the mixture is learned on a task"
    with torch.no_grad():
        output = body.eval()(random_ids(), output_hidden_states=True)
    torch.testing.assert_close(output.last_hidden_state, torch.stack(output.hidden_states).mean(0))


def test_another_process_loads_the_folder(models, tmp_path, tiny_tokenizer):
    models["characters"].save_pretrained(str(tmp_path))
    tiny_tokenizer.save_pretrained(str(tmp_path))
    script = (
        "import sys; from headstart.tasks.source import require_checkpoint, family_of; import transformers\n"
        "folder = str(require_checkpoint(sys.argv[1])); config = transformers.AutoConfig.from_pretrained(folder)\n"
        "model = transformers.AutoModelForPreTraining.from_pretrained(folder)\n"
        "tokenizer = transformers.AutoTokenizer.from_pretrained(folder)\n"
        "print(family_of(config), type(model).__name__, len(tokenizer))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bilm", "BiLMForPreTraining", str(len(tiny_tokenizer))]
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "headstart_bilm"


def test_reinitialized_network_keeps_the_character_table(models, tmp_path):
    models["characters"].save_pretrained(str(tmp_path))
    task = Classify(Classify.Config())
    task.fit_labels(Examples({}, ["a", "b"]))
    source = CheckpointFolder(tmp_path, task, seed=0)
    fresh, old = source.fresh(), models["characters"]
    assert torch.equal(fresh.bilm.tokens.table, old.bilm.tokens.table)
    assert fresh.bilm.tokens.table.any()
    assert not torch.equal(fresh.bilm.tokens.output.weight, old.bilm.tokens.output.weight)
    assert source.new_parameters() == {name for name, _ in fresh.named_parameters()}


def test_mixture_is_a_weighted_mean_times_a_scale():
    mix = ScalarMix(3)
    assert mix.layer_weights().tolist() == pytest.approx([1 / 3] * 3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([1.0, -2.0, 0.5]))
        mix.scale.fill_(2.0)
    layers = torch.randn(3, 2, 5, 8)
    assert mix.layer_weights().sum().item() == pytest.approx(1.0)
    expected = 2 * (torch.tensor([1.0, -2.0, 0.5]).softmax(0)[:, None, None, None] * layers).sum(0)
    torch.testing.assert_close(mix(list(layers)), expected)


def test_first_layer_of_the_mixture_is_the_token_embedding_twice():
    body = build(auto_class="AutoModel")
    with torch.no_grad():
        layers = body(random_ids(), output_hidden_states=True).hidden_states
    assert [layer.shape for layer in layers] == [(2, LENGTH, 128)] * 3
    assert torch.equal(layers[0][..., :64], layers[0][..., 64:])


def test_classification_trains_the_mixture_and_ignores_padding():
    model = build(auto_class="AutoModelForSequenceClassification")
    assert type(model) in AutoModelForSequenceClassification._model_mapping.values()
    ids, mask = random_ids(), torch.ones(2, LENGTH, dtype=torch.long)
    mask[:, 9:] = 0
    logits = model(ids, attention_mask=mask, labels=torch.tensor([0, 1]))
    torch.testing.assert_close(model(ids[:, :9]).logits, logits.logits, atol=1e-5, rtol=1e-5)
    logits.loss.backward()
    assert model.bilm.mix.weights.grad.abs().sum() > 0 and model.bilm.mix.scale.grad.abs() > 0


def test_elmo_has_the_published_number_of_parameters():
    """93.6 million, by AllenNLP's page on the original model: 4096 cells over 512, two layers, 2048 filters."""
    with torch.device("meta"):
        elmo = BiLMModel(BiLMConfig(input="characters", tie_word_embeddings=False), mixes=False)
    assert sum(parameter.numel() for parameter in elmo.parameters()) == pytest.approx(93.6e6, rel=0.001)


def test_named_size_determines_layers_and_width():
    with torch.device("meta"):
        model = BiLM(BiLM.Config(size="base")).build(VOCABULARY, LENGTH, "AutoModel")
    assert len(model.layers) == 12
    assert model.config.hidden_size == 768
    weights = sum(parameter.numel() for parameter in model.layers.parameters() if parameter.dim() > 1)
    assert weights == 12 * 18 * 768**2, "one and a half times a Transformer's 12 · H² a layer"


def test_output_layer_is_tied_with_subwords_only(models):
    assert models["subword"].head.weight is models["subword"].bilm.tokens.weight
    assert "head.weight" in dict(models["characters"].named_parameters())
    for model in models.values():
        for rate in (module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)):
            assert rate == 0.1


def test_flops_of_the_layers_are_counted():
    """By hand: one product per token and matrix in the forward pass, two in the backward pass."""
    model = build(dropout=0.0)
    ids = random_ids(rows=3)
    by_layers = 2 * 2 * (4 * CELLS * 2 * WIDTH + CELLS * WIDTH)
    by_hand = 2 * 3 * LENGTH * (by_layers + 2 * WIDTH * SIZE)
    with FlopCounterMode(display=False) as counter:
        logits = model(ids).logits
        forward = counter.get_total_flops()
        logits.sum().backward()
    assert forward == by_hand
    # The first token of a row has no previous state that needs a gradient.
    assert counter.get_total_flops() == pytest.approx(3 * by_hand, rel=0.02)


def test_flops_of_the_fused_gpu_kernel_are_counted():
    """Checks the formula on the meta device; running the kernel needs a GPU."""
    length, rows = 7, 5
    shapes = [(4 * CELLS, WIDTH), (4 * CELLS, WIDTH), (4 * CELLS,), (4 * CELLS,), (WIDTH, CELLS)]
    with torch.device("meta"):
        inputs, weights = torch.empty(length, rows, WIDTH), [torch.empty(shape) for shape in shapes]
        state, cells = torch.empty(1, rows, WIDTH), torch.empty(1, rows, CELLS)
        with FlopCounterMode(display=False) as counter:
            torch.ops.aten._cudnn_rnn(
                inputs, weights, 4, None, state, cells, 2, CELLS, WIDTH, 1, False, 0.0, True, False, [], None
            )
    assert counter.get_total_flops() == 2 * length * rows * (4 * CELLS * 2 * WIDTH + CELLS * WIDTH)


@pytest.mark.parametrize("kind", INPUTS)
def test_runs_in_bf16(kind):
    model, ids = build(kind), random_ids()
    exact = model(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        output = model(ids, labels=ids)
    assert output.logits.dtype == torch.bfloat16
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert output.loss.item() == pytest.approx(exact.item(), rel=0.01)


@pytest.mark.slow
def test_compiled_layers_give_the_same_loss():
    model, ids = build(), random_ids()
    plain = model(ids, labels=ids).loss
    assert compile_layers(model) == 2
    compiled = model(ids, labels=ids).loss
    compiled.backward()
    assert compiled.item() == pytest.approx(plain.item(), rel=1e-5)
    assert all(parameter.grad is not None for parameter in model.parameters())
