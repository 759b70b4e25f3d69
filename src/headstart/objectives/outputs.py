"""The output of the modules that consist of several networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class LossAndLogits(ModelOutput):
    """The output of a module of several networks when it is called like a transformers model."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
