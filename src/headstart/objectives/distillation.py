"""Distillation during pre-training: a small model learns masked prediction from the text and from a larger model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field

from headstart.checkpoint.load import load_model
from headstart.checkpoint.names import folder_of
from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch
from headstart.core.distillation_losses import (
    attention_scores,
    cosine_distance,
    layer_map,
    require_scores,
    score_distance,
    soft_target_loss,
    squared_distance,
)
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.lazy import torch
from headstart.objectives.masked_lm import MaskedLM, masked_outputs
from headstart.objectives.positions import count_correct, summed_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headstart.objectives.distillation_network import Student


class Distillation(MaskedLM):
    """Learn masked prediction from the text and from a teacher's predictions, hidden states and attention (DistilBERT).

    The defaults are DistilBERT's three losses and weights; `hidden` and `attention_maps` add TinyBERT's layer-wise
    losses, summed over the embeddings and the layers; attention is compared before the softmax, head by head.
    Predictions are compared at the masked positions only (DistilBERT: everywhere), which saves the vocabulary-sized
    product of both models on 85 % of the tokens.
    """

    paper: ClassVar[str] = "Sanh et al. 2019, DistilBERT; Jiao et al. 2020, TinyBERT"
    token_loss: ClassVar[str] = "text_loss"

    class Config(MaskedLM.Config):
        """The teacher, the weights of the loss terms, and how tokens are masked."""

        name: Literal["distillation"] = "distillation"  # type: ignore[assignment]
        teacher: Path | None = Field(
            None, description="a masked-LM checkpoint with the same tokenizer: a folder, or `org/name` on the Hub"
        )
        temperature: float = Field(2.0, gt=0, description="softmax temperature of both models; DistilBERT used 2")
        soft: float = Field(5.0, ge=0, description="weight of the loss on the teacher's predictions; DistilBERT used 5")
        text: float = Field(2.0, ge=0, description="weight of the masked-LM loss; DistilBERT used 2")
        cosine: float = Field(1.0, ge=0, description="weight of the cosine loss on last hidden states; DistilBERT: 1")
        hidden: float = Field(
            0.0,
            ge=0,
            description="weight of the distance between embeddings and hidden states of mapped layers; TinyBERT: 1",
        )
        attention_maps: float = Field(
            0.0,
            ge=0,
            description="weight of the distance between attention scores of mapped layers, head by head; TinyBERT: 1",
        )
        layers: list[int] | None = Field(
            None, description="the teacher layer for each student layer; default: evenly spaced"
        )
        initialize: bool = Field(True, description="initialize from the teacher's mapped layers where shapes match")

    config: Config

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Accept a `Config` or its fields as keyword arguments; `assemble` loads the teacher."""
        self.config = config or Distillation.Config(**settings)
        self._teacher: PreTrainedModel | None = None
        self._pairs: list[int] = []

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Load the teacher and return the student, with a projection to the teacher's width if the widths differ.

        With `initialize`, a new student is initialized from the teacher; a student loaded from a checkpoint is not.
        """
        from headstart.objectives.distillation_network import Student

        student = make(self.auto_class)
        self._teacher = teacher = self._load(student)
        self._pairs = layer_map(_layers(student), _layers(teacher), self.config.layers)
        student_width, teacher_width = _width(student), _width(teacher)
        same_width = student_width == teacher_width
        if self.config.cosine and not same_width and not self.config.hidden:
            raise RecipeError(
                f"the hidden size of the teacher is {teacher_width}, that of the student {student_width}",
                allowed="`objective.cosine` compares hidden states of equal size",
                do="Set `objective.cosine` to 0, or `objective.hidden` above 0, which learns a projection",
            )
        if self.config.initialize and not student.name_or_path:
            _initialize_from(student, teacher, self._pairs)
        return Student(student, teacher_width if not same_width and self.config.hidden else None)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the student only; the projection is used in training only."""
        return {"": cast("Student", module).model}

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the weighted losses, summed over the predicted positions."""
        terms, _ = self._terms(model, batch)
        return torch.stack(list(terms.values())).sum()

    def measure(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return the total loss, its terms without weights, and correct predictions, summed over the positions."""
        terms, logits = self._terms(model, batch)
        weights = {name: getattr(self.config, name) for name in terms}
        return {
            "loss": sum(map(float, terms.values())),
            **{f"{name}_loss": float(value) / weights[name] for name, value in terms.items()},
            "accuracy": float(count_correct(logits, batch)),
        }

    def _terms(self, model: Student, batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the weighted terms of the loss, without those of weight 0, and the student's logits."""
        settings, teacher = self.config, self._teacher
        assert teacher is not None, "call assemble first"
        deep, maps = settings.hidden > 0, settings.attention_maps > 0
        record = {"output_hidden_states": deep or settings.cosine > 0, "output_attentions": maps}
        torch.nn.Module.to(teacher, batch["input_ids"].device)
        with torch.no_grad():
            expected = self._outputs(teacher, batch, **record)
        output = self._outputs(model.model, batch, **record)
        weights = batch["weights"]  # (rows, slots)
        # Row-wise terms are multiplied by the row's predictions, so that all terms are divided by the same number.
        per_row = weights.sum(1)
        terms: dict[str, torch.Tensor] = {}
        if settings.text:
            terms["text"] = settings.text * summed_loss(output.logits, batch)
        if settings.soft:
            losses = soft_target_loss(output.logits, expected.logits, settings.temperature)
            terms["soft"] = settings.soft * (losses * weights).sum()
        if settings.cosine:
            losses = cosine_distance(model.project(output.hidden_states[-1]), expected.hidden_states[-1])
            terms["cosine"] = settings.cosine * (losses.mean(1) * per_row).sum()
        if deep:
            pairs = [(0, 0), *enumerate(self._pairs, start=1)]
            layers = [
                squared_distance(model.project(output.hidden_states[i]), expected.hidden_states[j]).mean(1)
                for i, j in pairs
            ]
            terms["hidden"] = settings.hidden * (torch.stack(layers).sum(0) * per_row).sum()
        if maps:
            layers = [
                score_distance(output.attentions[i - 1], expected.attentions[j - 1])
                for i, j in enumerate(self._pairs, start=1)
            ]
            terms["attention_maps"] = settings.attention_maps * (torch.stack(layers).sum(0) * per_row).sum()
        return terms, output.logits

    def _outputs(self, network: PreTrainedModel, batch: Batch, **record: bool) -> Any:
        """Run a network; its attentions are the scores before the softmax."""
        with attention_scores(network) if record["output_attentions"] else nullcontext():
            return masked_outputs(network, batch, **record)

    def _load(self, student: PreTrainedModel) -> PreTrainedModel:
        path = None if self.config.teacher is None else folder_of(self.config.teacher)
        if path is None or not (path / "config.json").is_file():
            raise ArtifactError(
                f"`objective.teacher` is {path}" + ("" if path is None else ", which has no config.json"),
                allowed="It must be the path of a masked-LM checkpoint",
                do="Pre-train the larger model first, or set `objective.teacher` to an existing checkpoint",
            )
        teacher = load_model("AutoModelForMaskedLM", path, dtype=torch.float32).eval().requires_grad_(False)
        if teacher.config.vocab_size != student.config.vocab_size:
            raise ArtifactError(
                f"the vocabulary size of the teacher is {teacher.config.vocab_size:,}, that of the student "
                f"{student.config.vocab_size:,}",
                allowed="Teacher and student must use the same tokenizer",
                do=f"Set `tokenizer.path` to {path}",
            )
        if self.config.attention_maps:
            require_scores(student, teacher, "objective.attention_maps")
        return teacher  # type: ignore[no-any-return]


def _layers(model: PreTrainedModel) -> int:
    return int(model.config.num_hidden_layers)


def _width(model: PreTrainedModel) -> int:
    return int(model.config.hidden_size)


def _initialize_from(student: PreTrainedModel, teacher: PreTrainedModel, pairs: list[int]) -> None:
    """Copy each teacher weight whose shape matches to the student; layers are matched by the layer map.

    DistilBERT starts from every other layer of its teacher; embeddings and head are copied too.
    """
    weights, stacks = teacher.state_dict(), _stacks(student) & _stacks(teacher)
    copied = {}
    for name, tensor in student.state_dict().items():
        source = weights.get(_teacher_name(name, stacks, pairs))
        if source is not None and source.shape == tensor.shape:
            copied[name] = source
    student.load_state_dict(copied, strict=False)


def _stacks(model: PreTrainedModel) -> set[str]:
    """Return the names of the module lists with one entry per layer; ALBERT, which shares one layer, has none."""
    lists = ((name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList))
    return {name for name, layers in lists if len(layers) == _layers(model)}


def _teacher_name(name: str, stacks: set[str], pairs: list[int]) -> str:
    """Return the teacher's name of a student weight."""
    for stack in stacks:
        if name.startswith(f"{stack}."):
            number, _, rest = name.removeprefix(f"{stack}.").partition(".")
            return f"{stack}.{pairs[int(number)] - 1}.{rest}"
    return name
