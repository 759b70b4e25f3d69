"""The registration of the biLM's networks with transformers.

Importing this module registers the model type "headstart_bilm" with transformers' auto classes, and the FLOPs of its
GPU kernels with torch's FLOP counter. Stages import it when a checkpoint has this type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from headstart.backbones.bilm_heads import (
    BiLMForPreTraining,
    BiLMForSequenceClassification,
    BiLMForTokenClassification,
)
from headstart.backbones.bilm_model import BiLMConfig, BiLMModel


def rnn_flops(inputs: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any) -> int:
    """Return the FLOPs of cuDNN's fused LSTM: one product per token and matrix. On a CPU, torch counts them itself."""
    return 2 * math.prod(inputs[:-1]) * sum(math.prod(shape) for shape in weights if len(shape) > 1)


def rnn_backward_flops(inputs: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any) -> int:
    """Return the FLOPs of the backward pass: one product for the gradient of the states, one for the weights."""
    return 2 * rnn_flops(inputs, weights)


for operation, formula in (
    (torch.ops.aten._cudnn_rnn, rnn_flops),
    (torch.ops.aten._cudnn_rnn_backward, rnn_backward_flops),
):
    if operation not in flop_registry:
        register_flop_formula(operation)(formula)

AutoConfig.register(BiLMConfig.model_type, BiLMConfig)
AutoModel.register(BiLMConfig, BiLMModel)
AutoModelForPreTraining.register(BiLMConfig, BiLMForPreTraining)
AutoModelForSequenceClassification.register(BiLMConfig, BiLMForSequenceClassification)
AutoModelForTokenClassification.register(BiLMConfig, BiLMForTokenClassification)
