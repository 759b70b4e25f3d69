"""The training settings that pre-training and fine-tuning share."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headstart.core import registry
from headstart.core.config import Section
from headstart.training.budget import Budget

DEVICE = "HEADSTART_DEVICE"
"""The environment variable that chooses the device where no recipe does; worker processes inherit it."""
DEVICE_PATTERN = r"^(auto|cpu|mps|(cuda|xpu)(:\d+)?)$"


def require_recomputable(training: TrainingSettings, group: str, name: str) -> None:
    """Raise a ValueError, for use in a validator, if layers are computed again that compute something else then."""
    if training.activation_checkpointing != "none" and not getattr(registry.resolve(group, name), "recomputable", True):
        raise ValueError(
            f"training.activation_checkpointing is {training.activation_checkpointing}, but the layers of {name!r} "
            "compute something else when the backward pass runs them again. Set it to none."
        )


class TrainingSettings(Section):
    """Settings of the loop, named as in transformers' TrainingArguments where the meaning is the same."""

    budget: str = Field(
        "3 epochs",
        description="in time, tokens, steps, epochs or FLOPs: 30 min, 10M tokens, 2000 steps, 3 epochs, 1e15 flops",
    )
    learning_rate: float = Field(1e-3, gt=0, le=1, description="peak of the schedule")
    lr_scheduler_type: Literal["linear", "cosine", "constant", "trapezoid", "slanted_triangular"] = Field(
        "linear",
        description="shape after warmup, over the used fraction of the budget; slanted_triangular is ULMFiT's schedule "
        "with cut_frac = warmup_ratio",
    )
    warmup_ratio: float = Field(
        0.06, ge=0, lt=1, description="fraction of the budget for linear warmup of the rate; RoBERTa used 0.06"
    )
    batch_warmup_ratio: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of the budget over which the batch size doubles up to its full value; pre-training only; "
        "ModernBERT grew it sixfold over 0.03 (Warner et al. 2024)",
    )
    batch_warmup_start: float = Field(
        0.25, gt=0, lt=1, description="batch size at the start of batch warmup, as a fraction of the full one"
    )
    weight_decay: float = Field(0.01, ge=0, le=1, description="on matrices only; BERT used 0.01")
    optim: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: orthogonalized updates for the matrices of repeated layers, AdamW for the rest"
    )
    muon_scale: float = Field(
        3.0, gt=0, description="learning rate of the matrices under muon, as a multiple of learning_rate"
    )
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="RoBERTa used 0.98")
    adam_epsilon: float = Field(1e-6, gt=0)
    max_grad_norm: float = Field(1.0, gt=0, description="gradients with a larger norm are clipped to it")
    micro_batch_size: int | None = Field(
        None, ge=1, description="samples per forward pass; gradients are accumulated over the batch"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="auto: bf16 if the hardware supports it, else fp32; fp16, with a loss scale, is for other GPUs",
    )
    tf32: bool | None = Field(
        None, description="compute matrix products of fp32 in TF32 on a GPU; by default as torch is set"
    )
    device: str = Field(
        "auto",
        pattern=DEVICE_PATTERN,
        description="auto: the GPU (cuda) if there is one, else the CPU; or cpu, cuda, cuda:N, xpu, xpu:N, mps",
    )
    activation_checkpointing: Literal["none", "full"] = Field(
        "none", description="full: store only the input of each layer and compute the rest again, to save memory"
    )
    torch_compile: bool = Field(False, description="compile the layers; faster for runs of more than a few minutes")
    eval_count: int = Field(10, ge=0, description="number of evaluations on held-out data over the budget")
    early_stopping_patience: int | None = Field(
        None,
        ge=1,
        description="stop after this number of evaluations in a row without improvement; fine-tuning only, which keeps "
        "its best weights; by default the run uses its whole budget",
    )
    logging_steps: int = Field(10, ge=1, description="steps between two log entries")
    report_to: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(
        ["tensorboard"],
        description="experiment trackers; an empty list for none; logs/metrics.jsonl is always written",
    )
    save_interval_minutes: float = Field(
        5.0, gt=0, description="minutes between checkpoints: the work that a crash may cost"
    )
    save_total_limit: int = Field(2, ge=1, description="number of checkpoints to keep")
    save_keep_steps: int | None = Field(
        None, ge=1, description="also save at multiples of this number of steps, and never delete these checkpoints"
    )
    async_save: bool = Field(
        False,
        description="write checkpoints in the background: training waits only until the state is copied to host memory",
    )
    dataloader_num_workers: int = Field(
        0, ge=0, description="processes that prepare batches; 0: the training process itself"
    )
    parallel: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="several processes: each holds the whole network (ddp), or a shard of it to save memory (fsdp); "
        "hsdp: shards within groups of `shard_size` processes, each of which holds the whole network",
    )
    shard_size: int | None = Field(
        None,
        ge=1,
        description="processes that hold one copy of the network under hsdp; by default those of one machine",
    )
    gather_dtype: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="number format in which fsdp and hsdp gather weights; bf16 halves the traffic and needs precision "
        "bf16; the weights that are updated stay fp32",
    )
    reduce_dtype: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="number format in which several processes add up their gradients; bf16 halves the traffic and "
        "rounds each sum",
    )
    ddp_timeout: float = Field(
        600,
        gt=0,
        le=86400,
        description="several processes: seconds after which one that is frozen, or late for a step, ends the run; the "
        "others name it",
    )
    stop_after_bad_steps: int = Field(
        20, ge=1, description="consecutive steps with a NaN or Inf loss or gradient after which the run fails"
    )

    @property
    def shards_weights(self) -> bool:
        """True if a process of several holds only a part of the weights."""
        return self.parallel in ("fsdp", "hsdp")

    def micro_batch_for(self, batch_size: int, first: int) -> int:
        """Return the samples per forward pass in a phase, so that it reads as many tokens as in the first phase.

        `batch_size` is that of the phase, `first` that of the first phase.
        """
        return min(batch_size, max(1, (self.micro_batch_size or first) * batch_size // first))

    @field_validator("report_to", mode="before")
    @classmethod
    def _tracker_list(cls, value: Any) -> Any:
        """Accept a single name, and `none`, as TrainingArguments does."""
        if isinstance(value, str):
            return [] if value == "none" else [value]
        return value

    @field_validator("budget", mode="before")
    @classmethod
    def _parsable_budget(cls, value: Any) -> str:
        Budget.parse(str(value))
        return str(value)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shard_size is not None and self.parallel != "hsdp":
            raise ValueError(
                f"shard_size is {self.shard_size}, but parallel is {self.parallel}. Set parallel to hsdp, or remove "
                "shard_size."
            )
        if self.early_stopping_patience is not None and self.early_stopping_patience >= self.eval_count:
            raise ValueError(
                f"early_stopping_patience is {self.early_stopping_patience}, but eval_count is {self.eval_count}, so "
                "the run would never stop early. Raise eval_count, or lower early_stopping_patience."
            )
        if self.batch_warmup_ratio and Budget.parse(self.budget).unit == "epochs":
            raise ValueError(
                f"batch_warmup_ratio is {self.batch_warmup_ratio:g}, but budget is {self.budget!r}: with a growing "
                "batch size, epochs cannot be converted to steps. Give the budget in time, tokens, steps or FLOPs."
            )
        return self
