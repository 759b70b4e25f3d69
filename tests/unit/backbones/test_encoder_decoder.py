"""The encoder-decoder backbone: two layouts with named sizes, with and without shared layers."""

from __future__ import annotations

import copy
from typing import get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSeq2SeqLM

from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.backbones.sizes import SIZES
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError
from headstart.training.checkpoint import CheckpointStore, Progress, TrainState
from headstart.training.module import LossModule
from headstart.training.sharding import require_untied

KINDS = get_args(EncoderDecoder.Config.model_fields["kind"].annotation)


def build(size, kind, vocab=300, seq_length=32, auto_class="AutoModelForSeq2SeqLM", scale=1.0, **settings):
    known = Vocabulary(vocab, 0, 2, 3, 4, special=np.arange(vocab) < 5, starts_word=np.ones(vocab, dtype=bool))
    config = EncoderDecoder.Config(kind=kind, size=size, **settings)
    return EncoderDecoder(config).build(known, seq_length, auto_class, scale)


def build_without_weights(*arguments, **settings):
    """Build on the meta device, so that a large model needs neither memory nor time."""
    with torch.device("meta"):
        return build(*arguments, **settings)


def weight(model):
    return sum(parameter.numel() for parameter in model.parameters())


def texts(rows=2, length=12):
    return torch.randint(5, 300, (rows, length)), torch.randint(5, 300, (rows, length // 2))


def logits(model, inputs, outputs):
    with torch.no_grad():
        return model.eval()(input_ids=inputs, decoder_input_ids=outputs, use_cache=False).logits


def test_the_two_kinds():
    assert set(KINDS) == {"t5", "bart"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reads_rows_up_to_max_length(kind):
    torch.manual_seed(0)
    model = build("tiny", kind, seq_length=64, max_length=64)
    assert type(model) in AutoModelForSeq2SeqLM._model_mapping.values()
    actual = logits(model, *texts(length=64))
    assert actual.shape == (2, 32, 300)
    assert actual.isfinite().all()
    with pytest.raises(
        RecipeError, match=r"seq_length` is 65, but `backbone\.max_length` is 64.*raise `backbone\.max_length`"
    ):
        build("tiny", kind, seq_length=65, max_length=64)


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_is_bidirectional_and_decoder_causal(kind):
    torch.manual_seed(0)
    model = build("tiny", kind)
    inputs, outputs = texts(rows=1)
    for column in (0, -1):
        changed = inputs.clone()
        changed[0, column] = 304 - inputs[0, column]
        assert not torch.allclose(logits(model, inputs, outputs)[0, 3], logits(model, changed, outputs)[0, 3])
    changed = outputs.clone()
    changed[0, 3] = 304 - outputs[0, 3]
    before, after = logits(model, inputs, outputs)[0], logits(model, inputs, changed)[0]
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3:], after[3:])


@pytest.mark.parametrize(("kind", "start"), [("t5", 0), ("bart", 3)])
def test_special_ids_and_dropout_reach_the_network(kind, start):
    model = build("tiny", kind, dropout=0.25)
    config = model.config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert config.decoder_start_token_id == model.generation_config.decoder_start_token_id == start
    assert model.generation_config.forced_eos_token_id is None
    assert config.vocab_size == 300
    inputs, outputs = texts()
    silent = build("tiny", kind, dropout=0.0).train()
    with torch.no_grad():
        noisy = [model.train()(input_ids=inputs, decoder_input_ids=outputs).logits for _ in range(2)]
        quiet = [silent(input_ids=inputs, decoder_input_ids=outputs).logits for _ in range(2)]
    assert not torch.equal(*noisy)
    assert torch.equal(*quiet)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["mini", "base"])
def test_encoder_and_decoder_have_the_layers_of_the_size(kind, size):
    for scale in (1.0, 0.5):
        model, expected = build_without_weights(size, kind, scale=scale), SIZES[size].scaled(scale)
        stacks = [model.get_encoder(), model.get_decoder()]
        assert [len(getattr(stack, "block", None) or stack.layers) for stack in stacks] == [expected.layers] * 2
        assert (model.config.hidden_size, model.config.num_attention_heads) == (expected.hidden, expected.heads)
        embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
        assert embeddings == {id(stack.embed_tokens.weight) for stack in stacks}, "input and output embeddings are tied"


@pytest.mark.parametrize(("kind", "size", "published"), [("t5", "base", 220e6), ("bart", "6-768-12", 139e6)])
def test_published_numbers_of_parameters(kind, size, published):
    """T5 base: 220M (Raffel et al. 2020); BART base, of six layers a side: 139M as released."""
    vocab = {"t5": 32128, "bart": 50265}[kind]
    model = build_without_weights(size, kind, vocab=vocab, max_length=1024)
    assert weight(model) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_other_heads_can_be_built_tied_or_not(kind):
    for tie in (False, True):
        for auto_class in ("AutoModel", "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"):
            assert weight(build_without_weights("tiny", kind, auto_class=auto_class, tie=tie))
    build_without_weights("tiny", "t5", auto_class="AutoModelForTokenClassification", tie=True)


@pytest.mark.parametrize("kind", KINDS)
def test_tied_layers_have_parameters_once(kind):
    """A tied decoder layer adds only its cross-attention: 4 H² and a norm instead of 16 H²."""
    tied, free = (build_without_weights("base", kind, vocab=300, tie=tie) for tie in (True, False))
    hidden = 768
    assert weight(free) - weight(tied) == pytest.approx(12 * 12 * hidden**2, rel=0.01)


def step(model, batch, rate=0.1):
    model(**batch).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
            parameter.grad = None


@pytest.mark.parametrize("kind", KINDS)
def test_tied_layers_stay_tied_through_training_and_get_both_gradients(kind):
    torch.manual_seed(0)
    model = build("tiny", kind, tie=True, dropout=0.0)
    free = build("tiny", kind, dropout=0.0)
    free.load_state_dict(model.state_dict())
    inputs, labels = texts()
    batch = {"input_ids": inputs, "labels": labels}
    model(**batch).loss.backward()
    free(**batch).loss.backward()
    gradients = {name: parameter.grad for name, parameter in free.named_parameters()}
    both = dict(model.named_parameters(remove_duplicate=False))
    shared = [names for names in _names_by_tensor(both) if len(names) == 2 and "embed_tokens" not in names[0]]
    assert len(shared) >= 8
    for one, other in shared:
        assert ("encoder" in one) != ("encoder" in other)
        expected = gradients[one] + gradients[other]
        assert torch.allclose(both[one].grad, expected, atol=1e-5 * float(expected.abs().max()) + 1e-8)
    step(model, batch)
    moved = copy.deepcopy(model).state_dict()
    for one, other in shared:
        assert torch.equal(moved[one], moved[other])
        assert not torch.equal(moved[one], free.state_dict()[one]) or not gradients[one].abs().max()


def _names_by_tensor(named):
    groups: dict[int, list[str]] = {}
    for name, tensor in named.items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


@pytest.mark.parametrize("kind", KINDS)
def test_tied_model_loads_in_plain_transformers(kind, tmp_path):
    torch.manual_seed(0)
    model = build("tiny", kind, tie=True)
    inputs, outputs = texts()
    step(model, {"input_ids": inputs, "labels": outputs})
    model.save_pretrained(tmp_path)
    again, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert torch.equal(logits(again, inputs, outputs), logits(model, inputs, outputs))
    assert weight(again) > weight(model), "the loaded model is untied: two sets of layers with equal weights"


@pytest.mark.parametrize("kind", KINDS)
def test_tied_model_is_restored_tied(kind, tmp_path):
    class Loss:
        def loss(self, model, batch):
            return model(**batch).loss

    def made(seed):
        torch.manual_seed(seed)
        module = LossModule(build("tiny", kind, tie=True, dropout=0.0), Loss())
        return module, torch.optim.AdamW(module.parameters(), lr=1e-2)

    def advance(module, optimizer):
        module(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    inputs, labels = texts()
    batch = {"input_ids": inputs, "labels": labels}
    module, optimizer = made(0)
    advance(module, optimizer)
    store = CheckpointStore(tmp_path, "run", keep=1)
    store.save(TrainState(module, optimizer, Progress(step=1)))
    other, its = made(1)
    assert store.restore(other, its).progress.step == 1
    assert weight(other) == weight(module)
    for _ in range(2):
        advance(module, optimizer)
        advance(other, its)
    for (name, one), (_, two) in zip(module.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, two), name


def test_unknown_size_or_kind_raises():
    with pytest.raises(ValidationError, match=r"one of tiny, mini, small, medium, base, large, 3-768-12"):
        EncoderDecoder.Config(size="huge")
    with pytest.raises(ValidationError, match=r"'t5' or 'bart'"):
        EncoderDecoder.Config(kind="bert")


@pytest.mark.parametrize("kind", KINDS)
def test_sharding_tied_layers_raises(kind):
    """Shared embeddings are sharded once; tied layers would silently be separated."""
    require_untied(build("tiny", kind), "fsdp")
    message = r"training\.parallel` is fsdp, but layers .* share weights.*backbone\.tie` to false"
    with pytest.raises(RecipeError, match=message):
        require_untied(build("tiny", kind, tie=True), "fsdp")
