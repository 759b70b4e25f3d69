"""Task-specific distillation: train on the labels and on the predictions of a larger fine-tuned model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation, labels_texts
from headstart.checkpoint.load import load_model
from headstart.checkpoint.names import folder_of
from headstart.core.contracts import ModelSource, Task
from headstart.core.data import UNLABELED, Batch
from headstart.core.distillation_losses import (
    attention_scores,
    layer_map,
    require_scores,
    score_distance,
    soft_label_loss,
    soft_target_loss,
    squared_distance,
)
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TeacherDistillation(BaseAdaptation):
    """Task-specific distillation: fine-tune all parameters on the labels and a fine-tuned teacher's predictions.

    With `texts`, rows without labels are trained on as well. Their label is what the teacher predicts, so every loss
    term applies to them. An epoch contains each labeled row and each unlabeled one once.
    """

    paper: ClassVar[str] = "Sanh et al. 2019, DistilBERT; Jiao et al. 2020, TinyBERT; Hinton et al. 2015"

    class Config(AdaptationSettings):
        """The teacher, texts without labels, and the weights of the loss terms."""

        newer: ClassVar[tuple[str, ...]] = ("texts",)

        name: Literal["distillation"] = "distillation"
        teacher: Path | None = Field(
            None, description="a model that was fine-tuned on the same labels: a folder, or `org/name` on the Hub"
        )
        texts: Path | None = Field(
            None,
            description="a file with the text columns of the task and without labels; its rows are trained on as well, "
            "with the teacher's predictions as their labels",
        )
        temperature: float = Field(
            2.0, gt=0, description="the temperature of both softmax distributions; DistilBERT used 2"
        )
        soft: float = Field(
            0.5, ge=0, le=1, description="weight of the teacher's predictions in the loss; the labels weigh 1 - soft"
        )
        hidden: float = Field(
            0.0, ge=0, description="weight of TinyBERT's hidden-state loss, for a teacher of the same hidden size"
        )
        attention_maps: float = Field(
            0.0, ge=0, description="weight of TinyBERT's attention loss, for a teacher with as many attention heads"
        )
        layers: list[int] | None = Field(
            None, description="for each layer of the student, the teacher's layer to imitate; default: evenly spaced"
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config; `adapt` loads the teacher."""
        self.config = config or TeacherDistillation.Config()
        self._teacher: PreTrainedModel | None = None

    def supports(self, task: Task, family: str) -> str | None:
        """Accept only tasks with one prediction per text, which is compared with the teacher's."""
        return super().supports(task, family) if labels_texts(task, family) else "it needs one prediction per text"

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head, all parameters trainable, and the frozen teacher."""
        model = source.pretrained()
        self._teacher = self._load(model)
        if self.config.hidden and model.config.is_encoder_decoder:
            raise RecipeError(
                f"adaptation.hidden is {self.config.hidden:g}, but the student is an encoder-decoder",
                allowed="Hidden states are compared in encoders and decoders",
                do="Set adaptation.hidden to 0",
            )
        if self.config.attention_maps:
            require_scores(model, self._teacher, "adaptation.attention_maps")
        return model

    def loss(self, task: Task, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the weighted sum of the label loss and the distance to the teacher, summed over the examples."""
        teacher = self._teacher
        assert teacher is not None, "call `adapt` first"
        inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", UNLABELED)}
        deep, maps = self.config.hidden > 0, self.config.attention_maps > 0
        record = {"output_hidden_states": deep, "output_attentions": maps}
        torch.nn.Module.to(teacher, batch["input_ids"].device)
        with attention_scores(model, teacher) if maps else nullcontext():
            with torch.no_grad():
                target = teacher(**inputs, **record)
            batch = _with_predicted_labels(batch, target.logits)
            with _OutputRecorder(model, record) as recorder:
                label_loss = task.loss(model, batch)
        if _has_several_labels(batch["labels"]):
            soft = soft_label_loss(recorder.output.logits, target.logits, self.config.temperature).sum()
        elif target.logits.shape[-1] > 1:
            soft = soft_target_loss(recorder.output.logits, target.logits, self.config.temperature).sum()
        else:
            soft = squared_distance(recorder.output.logits, target.logits).sum()
        total = (1 - self.config.soft) * label_loss + self.config.soft * soft
        if deep:
            total = total + self.config.hidden * self._hidden_loss(recorder.output, target, batch)
        if maps:
            total = total + self.config.attention_maps * self._attention_loss(recorder.output, target, batch)
        return total

    def _attention_loss(self, output: Any, target: Any, batch: Batch) -> torch.Tensor:
        """Return the distance between attention scores, summed over layers and texts."""
        student, teacher = output.attentions, target.attentions
        pairs = layer_map(len(student), len(teacher), self.config.layers)
        mask = batch.get("attention_mask")
        distances = [score_distance(scores, teacher[j - 1], mask) for scores, j in zip(student, pairs, strict=True)]
        return torch.stack(distances).sum()

    def _hidden_loss(self, output: Any, target: Any, batch: Batch) -> torch.Tensor:
        """Return the distance between hidden states, averaged over tokens, summed over layers and texts."""
        student, teacher = output.hidden_states, target.hidden_states
        pairs = layer_map(len(student) - 1, len(teacher) - 1, self.config.layers)
        if student[0].shape[-1] != teacher[0].shape[-1]:
            raise RecipeError(
                f"the teacher's hidden size is {teacher[0].shape[-1]}, but the student's is {student[0].shape[-1]}",
                allowed="adaptation.hidden needs equal hidden sizes",
                do="Set adaptation.hidden to 0, or pre-train with the objective `distillation`, which learns a "
                "projection",
            )
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).float()
        distances = [squared_distance(student[i], teacher[j]) for i, j in [(0, 0), *enumerate(pairs, start=1)]]
        per_text = (torch.stack(distances).sum(0) * mask).sum(1) / mask.sum(1)
        return per_text.sum()

    def _load(self, model: PreTrainedModel) -> PreTrainedModel:
        """Load the teacher; raises if its vocabulary or its labels differ from the student's."""
        path = None if self.config.teacher is None else folder_of(self.config.teacher)
        if path is None or not (path / "config.json").is_file():
            raise ArtifactError(
                f"adaptation.teacher is {path}" + ("" if path is None else ", which has no config.json"),
                allowed="It must be the folder of a model that was fine-tuned on the same labels",
                do="Run `headstart finetune` with the larger model first",
            )
        teacher = load_model("AutoModelForSequenceClassification", path, dtype=torch.float32).eval()
        # The config of a network that wraps another one has no vocab_size.
        tokens, teacher_tokens = (network.get_input_embeddings().num_embeddings for network in (model, teacher))
        labels, teacher_labels = (list((network.config.id2label or {}).values()) for network in (model, teacher))
        if (tokens, labels) != (teacher_tokens, teacher_labels):
            raise ArtifactError(
                f"the teacher has {teacher_tokens:,} tokens and the labels {teacher_labels}, "
                f"but the student has {tokens:,} tokens and the labels {labels}",
                allowed="Both must have the same tokens, and the same labels in the same order",
                do="Fine-tune the teacher on the same data, from a checkpoint with the same tokenizer",
            )
        return teacher.requires_grad_(False)  # type: ignore[no-any-return]


def _has_several_labels(labels: torch.Tensor) -> bool:
    """True if a text has several labels: (rows, labels) of 0 and 1, and not (rows,) of classes or numbers."""
    return labels.dim() > 1


def _with_predicted_labels(batch: Batch, logits: torch.Tensor) -> Batch:
    """Return the batch with the teacher's predictions as the labels of the rows without labels."""
    if UNLABELED not in batch:
        return batch
    labels = batch["labels"]
    if _has_several_labels(labels):
        predicted = logits > 0
    else:
        predicted = logits.squeeze(-1) if labels.is_floating_point() else logits.argmax(-1)
    missing = batch[UNLABELED].view(-1, *[1] * (labels.dim() - 1))
    replaced = torch.where(missing, predicted.to(labels.dtype), labels)
    return {name: tensor for name, tensor in batch.items() if name != UNLABELED} | {"labels": replaced}


class _OutputRecorder:
    """Context that records the output of a model's last call, so that the forward pass is not computed twice."""

    def __init__(self, model: PreTrainedModel, record: dict[str, bool]) -> None:
        self.model, self.record, self.output = model, record, None

    def __enter__(self) -> Any:
        def request(_: torch.nn.Module, args: Any, keywords: dict[str, Any]) -> Any:
            return args, {**keywords, **self.record}

        def record(_: torch.nn.Module, __: Any, output: Any) -> None:
            self.output = output

        self._handles = [
            self.model.register_forward_pre_hook(request, with_kwargs=True),
            self.model.register_forward_hook(record),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
