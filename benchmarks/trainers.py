"""transformers' Trainer with the setup of its example scripts, run a few steps at a time."""

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
    """The packed rows that Headstart's loop reads, as lists of ids."""

    def __init__(self, ids: np.ndarray[Any, Any], tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Store the rows and, with a tokenizer, the special-tokens mask that run_mlm computes before training."""
        self.ids = ids
        self.special = None if tokenizer is None else np.isin(ids, tokenizer.all_special_ids).astype(np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {"input_ids": self.ids[index].tolist()}
        return row if self.special is None else {**row, "special_tokens_mask": self.special[index].tolist()}


class _Clock(TrainerCallback):
    """Records when each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the time."""
        self.ends.append(time.perf_counter())


def quiet(trainer: Trainer) -> Trainer:
    """Stop a Trainer from printing to stdout, where the scripts print their results."""
    trainer.remove_callback(PrinterCallback)
    return trainer


def choose_attention(model: PreTrainedModel, *measured: Any) -> str:
    """Set the attention implementation that is faster with Trainer, by two repetitions of each; return its name."""
    rates = dict.fromkeys(ATTENTIONS, 0.0)
    for name in 2 * ATTENTIONS:
        model.set_attn_implementation(name)
        rates[name] = max(rates[name], samples_per_second(model, *measured))
    model.set_attn_implementation(found := max(rates, key=rates.__getitem__))
    return found


def samples_per_second(
    model: PreTrainedModel, data: Any, collator: Any, batch_size: int, steps: int, number_format: str, **arguments: Any
) -> float:
    """Train a few steps with Trainer and return samples per second, without the first steps."""
    clock, bf16 = _Clock(), number_format == "bf16"
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch_size, max_steps=steps + _WARM_UP, bf16=bf16,
            use_cpu=True, report_to=[], save_strategy="no", logging_steps=10_000, disable_tqdm=True,
            learning_rate=1e-4, **arguments,
        )  # fmt: skip
        trainer = Trainer(model=model, args=settings, train_dataset=data, data_collator=collator, callbacks=[clock])
        # The loss of heads that ignore the number of predictions would be multiplied (transformers#47688).
        trainer.model_accepts_loss_kwargs = False
        quiet(trainer).train()
    if hasattr(model, "_original_forward") != bf16:
        # accelerate wraps the forward pass of a model in autocast once, for the first Trainer that uses it.
        raise RuntimeError(f"the model must be trained {'with' if bf16 else 'without'} autocast, but was not")
    return batch_size * steps / (clock.ends[-1] - clock.ends[_WARM_UP - 1])
