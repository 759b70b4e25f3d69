"""transformers' Trainer as its example scripts set it up, a chunk of steps at a time."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

_WARM_UP = 3
ATTENTIONS = ("sdpa", "eager")


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """The same packed rows that our loop reads, as lists of ids."""

    def __init__(self, ids: np.ndarray[Any, Any], tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Hold the rows; with a tokenizer, what is special in them beside, as run_mlm writes it before training."""
        self.ids = ids
        self.special = None if tokenizer is None else np.isin(ids, tokenizer.all_special_ids).astype(np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {"input_ids": self.ids[index].tolist()}
        return row if self.special is None else {**row, "special_tokens_mask": self.special[index].tolist()}


class _Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def quiet(trainer: Trainer) -> Trainer:
    """Keep a Trainer from printing to where the scripts print their lines."""
    trainer.remove_callback(PrinterCallback)
    return trainer


def choose_attention(model: PreTrainedModel, *measured: Any) -> str:
    """Give a model whichever attention Trainer is faster with, by two turns of each, and return its name."""
    rates = dict.fromkeys(ATTENTIONS, 0.0)
    for name in 2 * ATTENTIONS:
        model.set_attn_implementation(name)
        rates[name] = max(rates[name], samples_per_second(model, *measured))
    model.set_attn_implementation(found := max(rates, key=rates.__getitem__))
    return found


def samples_per_second(
    model: PreTrainedModel, data: Any, collator: Any, batch_size: int, steps: int, number_format: str, **arguments: Any
) -> float:
    """Train some steps by Trainer and return the samples that a second took, the first steps left out."""
    clock, bf16 = _Clock(), number_format == "bf16"
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch_size, max_steps=steps + _WARM_UP, bf16=bf16,
            use_cpu=True, report_to=[], save_strategy="no", logging_steps=10_000, disable_tqdm=True,
            learning_rate=1e-4, **arguments,
        )  # fmt: skip
        trainer = Trainer(model=model, args=settings, train_dataset=data, data_collator=collator, callbacks=[clock])
        # Heads that ignore the number of predictions would see their loss multiplied (transformers#47688).
        trainer.model_accepts_loss_kwargs = False
        quiet(trainer).train()
    if hasattr(model, "_original_forward") != bf16:
        # accelerate wraps a model's forward pass in autocast once, for the first Trainer that it meets.
        raise RuntimeError(f"the model was to be trained {'under' if bf16 else 'without'} autocast, and was not")
    return batch_size * steps / (clock.ends[-1] - clock.ends[_WARM_UP - 1])
