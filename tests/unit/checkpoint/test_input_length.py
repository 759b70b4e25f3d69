"""The longest row of a network: one more token has no position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from headstart.adaptation.pooled_network import PooledConfig
from headstart.checkpoint.input_length import learned_positions, max_positions

ROWS = 24
"""Rows of the position table of every network below, as its config has them."""
SIZES = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": ROWS,
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": 40, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "bart": {**SEQ2SEQ, "max_position_embeddings": ROWS},
    "esm": {**SIZES, "pad_token_id": 1},
    "layoutlmv3": {**SIZES, "coordinate_size": 4, "shape_size": 4, "visual_embed": False},
    "led": {**SEQ2SEQ, "max_encoder_position_embeddings": ROWS, "attention_window": 8},
    "longformer": {**SIZES, "attention_window": 8},
    "openai-gpt": {"vocab_size": 40, "n_positions": ROWS, "n_embd": 24, "n_layer": 1, "n_head": 2},
    "opt": {**SIZES, "ffn_dim": 24, "word_embed_proj_dim": 24},
    "xmod": {**SIZES, "default_language": "en_XX"},
}
AFTER_PADDING_AT_1 = (
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "longformer", "luke", "mpnet", "roberta",
    "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
ALL_ROWS = ("bert", "electra", "nystromformer", "openai-gpt", "opt", "bart", "led")
"""The tables of the last ones but GPT have two rows that their configs do not count."""


def network_of(kind: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SETTINGS.get(kind, SIZES) | changes))
    return AutoModel.from_config(config).eval()


def read(network: PreTrainedModel, tokens: int) -> None:
    ids = torch.full((1, tokens), 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if network.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, :4]
    with torch.no_grad():
        network(**inputs)


@pytest.mark.parametrize(("kind", "longest"), [
    *((kind, ROWS - 2) for kind in AFTER_PADDING_AT_1),
    *((kind, ROWS - 1) for kind in ("lilt", "markuplm")),
    *((kind, ROWS) for kind in ALL_ROWS),
])  # fmt: skip
def test_the_longest_row_is_read_and_a_longer_one_is_not(kind, longest):
    network = network_of(kind)
    assert max_positions(network.config) == longest
    # I-BERT's table is no embedding of torch.
    assert learned_positions(network) == (None if kind == "ibert" else longest)
    read(network, longest)
    if kind not in ("longformer", "led"):  # these pad a row to whole windows, beyond the table too
        with pytest.raises((IndexError, RuntimeError)):
            read(network, longest + 1)


def test_the_padding_id_is_that_of_the_config():
    network = network_of("roberta", pad_token_id=5)
    assert max_positions(network.config) == ROWS - 6
    read(network, ROWS - 6)


def test_computed_positions_have_a_maximum_in_the_config_only():
    rotary, relative = network_of("gpt_neox"), network_of("deberta-v2", position_biased_input=False)
    for network in (rotary, relative):
        assert (max_positions(network.config), learned_positions(network)) == (ROWS, None)
        read(network, ROWS + 1)
    assert max_positions(AutoConfig.for_model("t5")) is None
    assert max_positions(AutoConfig.for_model("xlnet")) is None


def test_a_wrapper_reads_what_its_network_reads():
    config = PooledConfig(network=network_of("roberta").config.to_dict())
    assert max_positions(config) == ROWS - 2
