"""A network whose weights are computed late has the bits of one that is built whole, and takes no memory before."""

from __future__ import annotations

import pytest
import torch
import transformers

from headstart.training.deferred import NotDeferrable, compute, deferred, is_deferred

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
NETWORKS = {
    "AutoModelForMaskedLM": [
        transformers.BertConfig(**SMALL), transformers.RobertaConfig(**SMALL), transformers.DebertaV2Config(**SMALL),
        transformers.ModernBertConfig(**SMALL, pad_token_id=0), transformers.ElectraConfig(**SMALL),
    ],
    "AutoModelForCausalLM": [
        transformers.LlamaConfig(**SMALL), transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2),
    ],
    "AutoModelForSeq2SeqLM": [
        transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2),
        transformers.BartConfig(
            vocab_size=50, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
        ),
    ],
}  # fmt: skip


def build(auto_class, config):
    torch.manual_seed(3)
    return getattr(transformers, auto_class).from_config(config)


@pytest.mark.parametrize(
    ("auto_class", "config"),
    [
        pytest.param(name, config, id=config.model_type)
        for name, configs in NETWORKS.items()
        for config in configs
    ],
)  # fmt: skip
def test_weights_computed_late_are_those_of_the_whole_network(auto_class, config):
    whole = build(auto_class, config)
    next_number = torch.rand(())
    with deferred():
        late = build(auto_class, config)
    assert torch.equal(torch.rand(()), next_number), "what is drawn afterwards differs"
    assert all(parameter.device.type == "meta" for parameter in late.parameters()) and is_deferred(late)
    matrices = [parameter for parameter in late.parameters() if parameter.dim() == 2]
    held = [m for m in matrices if m.deferred.starts[m.untyped_storage()._cdata] is not None]
    assert len(held) < len(matrices) / 4, "weights that were only allocated are held"
    # As for sharding: each layer, here in another order than they were initialized in, then the rest.
    for layer in [layer for stack in late.modules() if isinstance(stack, torch.nn.ModuleList) for layer in stack][::-1]:
        compute(layer, torch.device("cpu"))
    compute(late, torch.device("cpu"))
    assert not is_deferred(late)
    expected = whole.state_dict()
    assert late.state_dict().keys() == expected.keys()
    for name, value in late.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert len(list(late.parameters())) == len(list(whole.parameters())), "weights are no longer tied"
    assert dict(late.named_buffers()).keys() == dict(whole.named_buffers()).keys()


def test_an_initialization_that_reads_weights_is_refused():
    class Normalized(torch.nn.Linear):
        def reset_parameters(self):
            torch.nn.init.orthogonal_(self.weight)

    with pytest.raises(NotDeferrable), deferred():
        Normalized(4, 4)
    assert torch.nn.Linear(4, 4).weight.device.type == "cpu"
