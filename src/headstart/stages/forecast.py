"""What a model costs per token, from its own parameters."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from headstart.evaluation.cost import training_flops


def flops_per_token(
    model: PreTrainedModel, row_length: int, predictions_per_token: float, passes: float = 3.0
) -> float:
    """Return the floating-point operations per token of training (passes=3) or inference (passes=1).

    Embedding tables are looked up, not multiplied; the output layer, tied or not, is counted for the
    share of tokens that are predicted. ALBERT's one layer is run as often as the config says.
    """
    config = model.config
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    body = sum(p.numel() for p in model.base_model.parameters() if id(p) not in embeddings)
    if config.model_type == "albert":
        body *= config.num_hidden_layers
    inside = {id(p) for p in model.base_model.parameters()}
    head = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    output = model.get_output_embeddings()
    if output is not None and id(output.weight) in inside:
        head += output.weight.numel()
    return training_flops(
        body, 1.0, layers=config.num_hidden_layers, hidden=config.hidden_size, row_length=row_length,
        head_parameters=head, predictions=predictions_per_token, passes=passes,
    )  # fmt: skip
