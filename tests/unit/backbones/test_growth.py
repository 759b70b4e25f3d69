"""Growth of a network: its size, its weights and its function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from headstart.backbones.checkpoint import Checkpoint
from headstart.backbones.decoder import Decoder
from headstart.backbones.encoder import Encoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.backbones.growth import Growth, grow, stack_layers, widen_layers
from headstart.core.data import Vocabulary
from headstart.core.errors import RecipeError

HEADS = {Encoder: "AutoModelForMaskedLM", Decoder: "AutoModelForCausalLM", EncoderDecoder: "AutoModelForSeq2SeqLM"}
LAYOUTS = [
    *[(Encoder, kind) for kind in ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")],
    *[(Decoder, kind) for kind in ("gpt2", "llama", "modernbert-decoder")],
    *[(EncoderDecoder, kind) for kind in ("t5", "bart")],
]


def small(family, kind, head=None) -> transformers.PreTrainedModel:
    special = np.arange(120) < 5
    vocabulary = Vocabulary(120, 0, 2, 3, 4, special=special, starts_word=~special)
    torch.manual_seed(0)
    config = family.Config.model_validate({"kind": kind, "size": "tiny", "max_length": 1024, "dropout": 0.0})
    model = family(config).build(vocabulary, 32, head or HEADS[family])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def inputs(model) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 120, (2, 16), generator=torch.Generator().manual_seed(1))
    both = {"input_ids": ids, "decoder_input_ids": ids}
    return both if model.config.is_encoder_decoder else {"input_ids": ids}


def stacks(model, layers) -> list[torch.nn.ModuleList]:
    return [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == layers]


@pytest.mark.parametrize("layers", [4, 5])
@pytest.mark.parametrize(("family", "kind"), LAYOUTS, ids=lambda value: getattr(value, "__name__", value))
def test_layers_are_stacked_and_other_weights_are_copied(family, kind, layers, tmp_path):
    model = small(family, kind)
    grown = stack_layers(model, layers).eval()
    grown.save_pretrained(str(tmp_path))
    loaded, info = getattr(transformers, HEADS[family]).from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values()) and loaded.config.num_hidden_layers == layers
    with torch.no_grad():
        logits = grown(**inputs(grown)).logits
        assert torch.equal(loaded.eval()(**inputs(grown)).logits, logits)
        assert not torch.allclose(logits, model(**inputs(model)).logits, atol=1e-3), (
            "a deeper network computes another function"
        )
    assert torch.equal(grown.get_input_embeddings().weight, model.get_input_embeddings().weight)
    if kind == "albert":
        return
    actual = stacks(grown, layers)
    assert len(actual) == (2 if family is EncoderDecoder else 1)
    for stack in actual:
        for index in range(2, layers):
            copy, source = stack[index].state_dict(), stack[index % 2].state_dict()
            shared = copy.keys() & source.keys()
            assert len(shared) >= len(source) - 1 and all(torch.equal(copy[key], source[key]) for key in shared)


def test_local_and_global_attention_keep_alternating():
    model = stack_layers(small(Encoder, "modernbert"), 6)
    kinds = model.config.layer_types
    assert len(kinds) == 6 and kinds[:2] * 3 == kinds and len(set(kinds)) == 2


def test_fewer_layers_raise():
    with pytest.raises(RecipeError, match=r"grow\.layers` is 1, but the checkpoint has 2 layers.*cannot shrink"):
        grow(small(Encoder, "bert"), Growth(layers=1))


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("head", ["AutoModelForMaskedLM", "AutoModelForTokenClassification"])
def test_widening_preserves_the_function(kind, times, head, tmp_path):
    model = small(Encoder, kind, head)
    grown = widen_layers(model, 128 * times).eval()
    with torch.no_grad():
        expected, actual = model(**inputs(model)).logits, grown(**inputs(model)).logits
    assert expected.std() > 0.1 and (actual - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (grown.config.hidden_size, grown.config.num_attention_heads) == (128 * times, 2 * times)
    grown.save_pretrained(str(tmp_path))
    loaded = getattr(transformers, head).from_pretrained(str(tmp_path)).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**inputs(model)).logits, actual)


def test_widening_preserves_the_function_of_an_output_layer_of_its_own():
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=64, tie_word_embeddings=False)
    model = transformers.BertForMaskedLM(config).eval()
    ids = torch.arange(5, 21)[None]
    with torch.no_grad():
        expected, actual = model(input_ids=ids).logits, widen_layers(model, 64).eval()(input_ids=ids).logits
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def test_copies_of_units_have_different_gradients():
    """With an equal split their gradients would always be equal, and the added width would be useless."""
    grown = widen_layers(small(Encoder, "bert"), 256)
    torch.nn.functional.cross_entropy(grown(**inputs(grown)).logits.flatten(0, 1), torch.arange(32)).backward()
    dense = grown.base_model.encoder.layer[0].intermediate.dense
    one, other = dense.weight.grad.chunk(2)
    assert torch.equal(*dense.bias.detach().chunk(2)) and not torch.allclose(one, other, rtol=0.05)


def test_grow_in_width_and_depth(tmp_path):
    small(Encoder, "bert").save_pretrained(str(tmp_path))
    config = Checkpoint.Config.model_validate({"path": str(tmp_path), "grow": {"layers": 4, "hidden": 256}})
    special = np.arange(120) < 5
    vocabulary = Vocabulary(120, 0, 2, 3, 4, special=special, starts_word=~special)
    model = Checkpoint(config).build(vocabulary, 32, "AutoModelForMaskedLM")
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 256)


@pytest.mark.parametrize(("kind", "hidden"), [("bert", 200), ("bert", 64), ("modernbert", 256), ("electra", 256)])
def test_invalid_widths_and_layouts_raise(kind, hidden):
    with pytest.raises(
        RecipeError, match=rf"grow\.hidden` is {hidden}, but the checkpoint is a '{kind}' of hidden size 128"
    ):
        grow(small(Encoder, kind), Growth(hidden=hidden))
