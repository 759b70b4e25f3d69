"""Distillation into a task: the model learns from labels and from a larger model that was fine-tuned before."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import Batch
from headstart.core.distillation_losses import layer_map, soft_target_loss, squared_distance
from headstart.core.errors import ArtifactError, RecipeError


class Distillation(BaseAdaptation):
    """Fine-tune every parameter on the labels and on the predictions of a fine-tuned teacher."""

    paper: ClassVar[str] = "Sanh et al. 2019, DistilBERT; Jiao et al. 2020, TinyBERT; Hinton et al. 2015"

    class Config(AdaptationSettings):
        """Who teaches, and what each part of the loss weighs."""

        name: Literal["distillation"] = "distillation"
        teacher: Path | None = Field(None, description="folder of a model that was fine-tuned on the same labels")
        temperature: float = Field(2.0, gt=0, description="softens both predictions; DistilBERT used 2")
        soft: float = Field(0.5, ge=0, le=1, description="share of the teacher's predictions in the loss; labels: rest")
        hidden: float = Field(0.0, ge=0, description="weight of TinyBERT's distance between layers of equal width")
        layers: list[int] | None = Field(None, description="the teacher's layer for each of ours; unless set, evenly")

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe; the teacher is loaded when training begins."""
        self.config = config or Distillation.Config()
        self._teacher: PreTrainedModel | None = None

    def supports(self, task: Task, family: str) -> str | None:
        """Take tasks with one prediction per text, which is what the teacher's is compared with."""
        one_each = task.auto_class(family) == "AutoModelForSequenceClassification"
        return super().supports(task, family) if one_each else "it imitates one prediction for each text"

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head, all of it trainable, and the teacher beside it."""
        model = source.pretrained()
        self._teacher = self._load(model)
        return model

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the labels' loss and the distance to the teacher, weighed, summed over the batch's examples."""
        teacher = self._teacher
        assert teacher is not None, "adapt comes first"
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        deep = self.config.hidden > 0
        torch.nn.Module.to(teacher, batch["input_ids"].device)
        with torch.no_grad():
            goal = teacher(**inputs, output_hidden_states=deep)
        with _Recorded(model, deep) as seen:
            labels_loss = task.loss(model, batch)
        if goal.logits.shape[-1] > 1:
            soft = soft_target_loss(seen.output.logits, goal.logits, self.config.temperature).sum()
        else:
            soft = squared_distance(seen.output.logits, goal.logits).sum()
        total = (1 - self.config.soft) * labels_loss + self.config.soft * soft
        if deep:
            total = total + self.config.hidden * self._layers_loss(seen.output, goal, batch)
        return total

    def _layers_loss(self, found: Any, goal: Any, batch: Batch) -> torch.Tensor:
        """Return the mean over layers and a text's tokens of the distance between states, summed over texts."""
        pairs = layer_map(len(found.hidden_states) - 1, len(goal.hidden_states) - 1, self.config.layers)
        if found.hidden_states[0].shape[-1] != goal.hidden_states[0].shape[-1]:
            raise RecipeError(
                f"the teacher is {goal.hidden_states[0].shape[-1]} wide, the model {found.hidden_states[0].shape[-1]}",
                allowed="hidden compares layers of equal width",
                do="Set adaptation.hidden to 0, or pre-train by `distillation`, which learns a projection",
            )
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).float()
        apart = [
            squared_distance(found.hidden_states[ours], goal.hidden_states[theirs])
            for ours, theirs in [(0, 0), *enumerate(pairs, start=1)]
        ]
        per_text = (torch.stack(apart).mean(0) * mask).sum(1) / mask.sum(1)
        return per_text.sum()

    def _load(self, model: PreTrainedModel) -> PreTrainedModel:
        path = self.config.teacher
        if path is None or not (path / "config.json").is_file():
            raise ArtifactError(
                f"adaptation.teacher is {path}" + ("" if path is None else ", which has no config.json"),
                allowed="It is the folder of a model that was fine-tuned on the same labels",
                do="Run `headstart finetune` with the larger model first",
            )
        teacher = AutoModelForSequenceClassification.from_pretrained(str(path), dtype=torch.float32).eval()
        ours, theirs = model.config, teacher.config
        labels, wanted = (list((config.id2label or {}).values()) for config in (ours, theirs))
        if (ours.vocab_size, labels) != (theirs.vocab_size, wanted):
            raise ArtifactError(
                f"the teacher has {theirs.vocab_size:,} tokens and the labels {wanted}, "
                f"the model {ours.vocab_size:,} and {labels}",
                allowed="Both read the same tokens and name the same labels in the same order",
                do="Fine-tune the teacher on the same data, from a checkpoint with the same tokenizer",
            )
        return teacher.requires_grad_(False)  # type: ignore[no-any-return]


class _Recorded:
    """Keeps the output of a model's next call, so that the task's own loss need not be computed twice."""

    def __init__(self, model: PreTrainedModel, hidden_states: bool) -> None:
        self.model, self.hidden_states, self.output = model, hidden_states, None

    def __enter__(self) -> Any:
        def ask(_: torch.nn.Module, args: Any, keywords: dict[str, Any]) -> Any:
            return args, {**keywords, "output_hidden_states": self.hidden_states}

        def keep(_: torch.nn.Module, __: Any, output: Any) -> None:
            self.output = output

        self._handles = [
            self.model.register_forward_pre_hook(ask, with_kwargs=True),
            self.model.register_forward_hook(keep),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
