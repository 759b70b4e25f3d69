"""transformers' Trainer as its example scripts set it up, a chunk of steps at a time."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

_WARM_UP = 3


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """The same packed rows that our loop reads, as lists of ids."""

    def __init__(self, ids: np.ndarray[Any, Any]) -> None:
        """Hold the rows."""
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.ids[index].tolist()}


class _Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def samples_per_second(
    model: PreTrainedModel, data: Any, collator: Any, batch_size: int, steps: int, bf16: bool, **arguments: Any
) -> float:
    """Train some steps by Trainer and return the samples that a second took, the first steps left out."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch_size, max_steps=steps + _WARM_UP, bf16=bf16,
            use_cpu=True, report_to=[], save_strategy="no", logging_steps=10_000, disable_tqdm=True,
            learning_rate=1e-4, **arguments,
        )  # fmt: skip
        trainer = Trainer(model=model, args=settings, train_dataset=data, data_collator=collator, callbacks=[clock])
        # Heads that ignore the number of predictions would see their loss multiplied (transformers#47688).
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
    return batch_size * steps / (clock.ends[-1] - clock.ends[_WARM_UP - 1])
