"""The network that distillation trains."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


class Student(torch.nn.Module):
    """A masked-LM model, with a learned projection of its hidden states if its width is not the teacher's."""

    def __init__(self, model: PreTrainedModel, teacher_width: int | None) -> None:
        """Add a projection unless `teacher_width` is None."""
        super().__init__()
        self.model = model
        self.projection = None if teacher_width is None else torch.nn.Linear(model.config.hidden_size, teacher_width)

    def project(self, states: torch.Tensor) -> torch.Tensor:
        """Return hidden states in the teacher's width, shape (rows, length, teacher_width)."""
        return states if self.projection is None else self.projection(states)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Any:
        """Run the model without the teacher, for scripts that train it on labels."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
