"""What both halves of the way, pre-training and fine-tuning, may set about training."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headstart.core.config import Section
from headstart.training.budget import Budget


class TrainingSettings(Section):
    """Settings of the loop; names are those of transformers' TrainingArguments where the meaning is the same."""

    budget: str = Field(
        "3 epochs",
        description="time, tokens, steps, epochs or FLOPs: 30 min, 10M tokens, 2000 steps, 3 epochs, 1e15 flops",
    )
    learning_rate: float = Field(1e-3, gt=0, le=1, description="the peak of the schedule")
    lr_scheduler_type: Literal["linear", "cosine", "constant", "trapezoid", "slanted_triangular"] = Field(
        "linear",
        description="shape after warm-up, over the share of the budget that is spent; slanted_triangular is ULMFiT's, "
        "whose cut_frac is warmup_ratio",
    )
    warmup_ratio: float = Field(
        0.06, ge=0, lt=1, description="share of the budget over which the rate rises; RoBERTa used 0.06"
    )
    batch_warmup_ratio: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the budget over which updates grow to their whole size, in doublings; pre-training "
        "alone; ModernBERT grew them sixfold over 0.03 (Warner et al. 2024)",
    )
    batch_warmup_start: float = Field(0.25, gt=0, lt=1, description="the part of an update's samples to start with")
    weight_decay: float = Field(0.01, ge=0, le=1, description="on matrices only; BERT used 0.01")
    optim: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: orthogonalised updates for the matrices of repeated layers, AdamW for the rest"
    )
    muon_scale: float = Field(3.0, gt=0, description="the matrices' rate under muon, as a multiple of learning_rate")
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="RoBERTa used 0.98")
    adam_epsilon: float = Field(1e-6, gt=0)
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")
    micro_batch_size: int | None = Field(None, ge=1, description="samples in one forward pass; the rest is accumulated")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the processor multiplies it in hardware"
    )
    torch_compile: bool = Field(False, description="compile the layers; pays for itself after some minutes of training")
    eval_count: int = Field(10, ge=0, description="how often held-out data is measured over the budget")
    early_stopping_patience: int | None = Field(
        None,
        ge=1,
        description="stop when held-out data has not improved for so many measurements in a row; fine-tuning alone, "
        "which keeps its best weights; by default the budget ends a run",
    )
    logging_steps: int = Field(10, ge=1)
    save_interval_minutes: float = Field(5.0, gt=0, description="how much work a crash may cost")
    save_total_limit: int = Field(2, ge=1, description="checkpoints kept")
    dataloader_num_workers: int = Field(0, ge=0, description="processes that prepare batches; 0: the training process")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp", description="of several processes: each holds the whole network, or a part of it (FSDP2) to spare memory"
    )
    stop_after_bad_steps: int = Field(
        20, ge=1, description="steps in a row with a loss that is not finite before the run gives up"
    )

    def samples_together(self, batch_size: int, first: int) -> int:
        """Return the samples of one forward pass in a phase: as many tokens as in the first, of batch size `first`."""
        return min(batch_size, max(1, (self.micro_batch_size or first) * batch_size // first))

    @field_validator("budget", mode="before")
    @classmethod
    def _readable_budget(cls, value: Any) -> str:
        Budget.parse(str(value))
        return str(value)

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        if self.early_stopping_patience is not None and self.early_stopping_patience >= self.eval_count:
            raise ValueError(
                f"early_stopping_patience is {self.early_stopping_patience} and eval_count is {self.eval_count}, so "
                "the run would never stop early. Raise eval_count, or lower early_stopping_patience."
            )
        if self.batch_warmup_ratio and Budget.parse(self.budget).unit == "epochs":
            raise ValueError(
                f"batch_warmup_ratio is {self.batch_warmup_ratio:g} and budget is {self.budget!r}: with updates that "
                "grow, epochs are no number of updates. State the budget in time, tokens, steps or FLOPs."
            )
        return self
