"""A graph is declared for as many tokens as the network has positions for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from headstart.stages.export.tracing import trace

SIZES = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 24,
}  # fmt: skip


class Exporter:
    """Returns the shapes that it was to export with."""

    def export(self, network: torch.nn.Module, inputs: dict[str, torch.Tensor], config: Any) -> Any:
        return config.dynamic_shapes


@pytest.mark.parametrize(("kind", "longest"), [("bert", 24), ("roberta", 22)])
def test_the_longest_row_of_a_graph_is_that_of_the_network(kind, longest):
    network = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES))
    ids = torch.full((3, 8), 7)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    source: Any = SimpleNamespace(traced_inputs=lambda: inputs, network=lambda is_whole: network)
    shapes = trace(Exporter(), SimpleNamespace, source)
    assert shapes.keys() == inputs.keys()
    assert {dims[1].max for dims in shapes.values()} == {longest}
