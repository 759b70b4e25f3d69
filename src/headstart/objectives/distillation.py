"""Distillation in pre-training: a small model learns masked prediction from the text and from a larger model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from transformers import AutoModelForMaskedLM, PreTrainedModel

from headstart.core.contracts import ModelMaker
from headstart.core.data import Batch
from headstart.core.distillation_losses import cosine_distance, layer_map, soft_target_loss, squared_distance
from headstart.core.errors import ArtifactError, RecipeError
from headstart.objectives.masked_lm import MaskedLM, masked_outputs
from headstart.objectives.positions import hits, summed_loss


class Distillation(MaskedLM):
    """Learn masked prediction from a teacher's predictions, states and attention as well as from the text.

    The defaults are DistilBERT's three losses and their weights; `hidden` and `attention_maps` add TinyBERT's, layer by
    layer. Predictions are compared at the masked positions, where DistilBERT compared them everywhere: the
    vocabulary-sized product of both models is spared on 85 % of the tokens. Attention is compared as transformers gives
    it, after the softmax, and over the mean of the heads, so that their number may differ; TinyBERT took the scores
    before the softmax, head by head.
    """

    paper: ClassVar[str] = "Sanh et al. 2019, DistilBERT; Jiao et al. 2020, TinyBERT"
    token_loss: ClassVar[str] = "text_loss"

    class Config(MaskedLM.Config):
        """Who teaches, what each part of the loss weighs, and how tokens are masked."""

        name: Literal["distillation"] = "distillation"  # type: ignore[assignment]
        teacher: Path | None = Field(None, description="folder of a masked-LM checkpoint with the same tokenizer")
        temperature: float = Field(2.0, gt=0, description="softens both predictions; DistilBERT used 2")
        soft: float = Field(5.0, ge=0, description="weight of the teacher's predictions; DistilBERT used 5")
        text: float = Field(2.0, ge=0, description="weight of the masked tokens themselves; DistilBERT used 2")
        cosine: float = Field(1.0, ge=0, description="weight of the last states' angle; DistilBERT used 1")
        hidden: float = Field(
            0.0, ge=0, description="weight of the distance between mapped layers' states; TinyBERT: 1"
        )
        attention_maps: float = Field(
            0.0, ge=0, description="weight of the distance between mapped layers' attention; TinyBERT: 1"
        )
        layers: list[int] | None = Field(None, description="the teacher's layer for each of ours; unless set, evenly")
        initialise: bool = Field(True, description="start from the teacher's mapped layers where shapes agree")

    config: Config

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        """Take the section of a recipe, or its settings as keywords; the teacher is loaded by `assemble`."""
        self.config = config or Distillation.Config(**settings)
        self._teacher: PreTrainedModel | None = None
        self._pairs: list[int] = []

    def assemble(self, make: ModelMaker) -> torch.nn.Module:
        """Return the student, with a projection to the teacher's width where theirs differ, and load the teacher.

        A new student starts from the teacher if wished; one that comes from a folder has learnt something itself.
        """
        student = make(self.auto_class)
        self._teacher = teacher = self._load(student)
        self._pairs = layer_map(_layers(student), _layers(teacher), self.config.layers)
        ours, theirs = _width(student), _width(teacher)
        if self.config.cosine and ours != theirs and not self.config.hidden:
            raise RecipeError(
                f"the teacher is {theirs} wide, the student {ours}",
                allowed="The angle between states needs equal widths",
                do="Set objective.cosine to 0, or objective.hidden above 0, which learns a projection",
            )
        if self.config.initialise and not student.name_or_path:
            _start_from(student, teacher, self._pairs)
        return Student(student, theirs if ours != theirs and self.config.hidden else None)

    def parts(self, module: torch.nn.Module) -> dict[str, PreTrainedModel]:
        """Return the student alone: the projection serves training only."""
        return {"": cast(Student, module).model}

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the weighed losses, summed over the predicted positions."""
        terms, _ = self._terms(model, batch)
        return torch.stack(list(terms.values())).sum()

    def measure(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return sums over the predictions: the whole loss, its terms unweighed, and correct guesses."""
        terms, logits = self._terms(model, batch)
        weights = {name: getattr(self.config, name) for name in terms}
        return {
            "loss": sum(map(float, terms.values())),
            **{f"{name}_loss": float(value) / weights[name] for name, value in terms.items()},
            "accuracy": float(hits(logits, batch)),
        }

    def _terms(self, model: Student, batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return each term of the loss with its weight, those of weight 0 left out, and the student's logits."""
        settings, teacher = self.config, self._teacher
        assert teacher is not None, "assemble comes first"
        deep, maps = settings.hidden > 0, settings.attention_maps > 0
        record = {"output_hidden_states": deep or settings.cosine > 0, "output_attentions": maps}
        torch.nn.Module.to(teacher, batch["input_ids"].device)
        with torch.no_grad():
            goal = masked_outputs(teacher, batch, **record)
        found = masked_outputs(model.model, batch, **record)
        weights = batch["weights"]
        # Terms over whole rows count as often as the row has predictions, so that one division serves all.
        per_row = weights.sum(1)
        terms: dict[str, torch.Tensor] = {}
        if settings.text:
            terms["text"] = settings.text * summed_loss(found.logits, batch)
        if settings.soft:
            apart = soft_target_loss(found.logits, goal.logits, settings.temperature)
            terms["soft"] = settings.soft * (apart * weights).sum()
        if settings.cosine:
            apart = cosine_distance(model.project(found.hidden_states[-1]), goal.hidden_states[-1])
            terms["cosine"] = settings.cosine * (apart.mean(1) * per_row).sum()
        if deep:
            pairs = [(0, 0), *enumerate(self._pairs, start=1)]
            layers = [
                squared_distance(model.project(found.hidden_states[ours]), goal.hidden_states[theirs]).mean(1)
                for ours, theirs in pairs
            ]
            terms["hidden"] = settings.hidden * (torch.stack(layers).mean(0) * per_row).sum()
        if maps:
            layers = [
                squared_distance(found.attentions[ours - 1].mean(1), goal.attentions[theirs - 1].mean(1)).mean(1)
                for ours, theirs in enumerate(self._pairs, start=1)
            ]
            terms["attention_maps"] = settings.attention_maps * (torch.stack(layers).mean(0) * per_row).sum()
        return terms, found.logits

    def _load(self, student: PreTrainedModel) -> PreTrainedModel:
        path = self.config.teacher
        if path is None or not (path / "config.json").is_file():
            raise ArtifactError(
                f"objective.teacher is {path}" + ("" if path is None else ", which has no config.json"),
                allowed="It is the folder of a masked-LM checkpoint",
                do="Pre-train the larger model first, or give the folder of a ready one",
            )
        teacher = AutoModelForMaskedLM.from_pretrained(str(path), dtype=torch.float32).eval().requires_grad_(False)
        if teacher.config.vocab_size != student.config.vocab_size:
            raise ArtifactError(
                f"the teacher has {teacher.config.vocab_size:,} tokens, the student {student.config.vocab_size:,}",
                allowed="Both read the same tokens",
                do=f"Set tokenizer.path to {path}",
            )
        if self.config.attention_maps:
            for model in (teacher, student):
                model.set_attn_implementation("eager")
        return teacher  # type: ignore[no-any-return]


class Student(torch.nn.Module):
    """A masked-LM model, and where its width is not the teacher's a learned projection of its states."""

    def __init__(self, model: PreTrainedModel, teacher_width: int | None) -> None:
        """Hold both."""
        super().__init__()
        self.model = model
        self.projection = None if teacher_width is None else torch.nn.Linear(_width(model), teacher_width)

    def project(self, states: torch.Tensor) -> torch.Tensor:
        """Return states in the teacher's width."""
        return states if self.projection is None else self.projection(states)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Any:
        """Run the model alone, for a script that trains it on labels."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def _layers(model: PreTrainedModel) -> int:
    return int(model.config.num_hidden_layers)


def _width(model: PreTrainedModel) -> int:
    return int(model.config.hidden_size)


def _start_from(student: PreTrainedModel, teacher: PreTrainedModel, pairs: list[int]) -> None:
    """Copy whatever has the same name and shape, a layer's name after the map.

    DistilBERT starts from every other layer of its teacher; embeddings and head come along.
    """
    theirs, stacks = teacher.state_dict(), _stacks(student) & _stacks(teacher)
    taken = {}
    for name, tensor in student.state_dict().items():
        source = theirs.get(_mapped(name, stacks, pairs))
        if source is not None and source.shape == tensor.shape:
            taken[name] = source
    student.load_state_dict(taken, strict=False)


def _stacks(model: PreTrainedModel) -> set[str]:
    """Name the lists of as many layers as the network is deep: ALBERT's one layer, run again and again, is none."""
    lists = ((name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList))
    return {name for name, layers in lists if len(layers) == _layers(model)}


def _mapped(name: str, stacks: set[str], pairs: list[int]) -> str:
    """Return the teacher's name of a weight of the student's."""
    for stack in stacks:
        if name.startswith(f"{stack}."):
            number, _, rest = name.removeprefix(f"{stack}.").partition(".")
            return f"{stack}.{pairs[int(number)] - 1}.{rest}"
    return name
