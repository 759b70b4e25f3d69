"""Nothing moves: the checkpoint as it is, to be asked or measured. The control for every claim about training."""

from __future__ import annotations

from typing import ClassVar, Literal

from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import ArtifactError

_OF_PRETRAINING = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""Classes whose weights pre-training leaves behind, head included."""


class ZeroShot(BaseAdaptation):
    """Train nothing: ask the checkpoint as it is, for prompts, and as the control of what training adds."""

    paper: ClassVar[str] = "Radford et al. 2019, GPT-2; Brown et al. 2020, GPT-3"

    class Config(AdaptationSettings):
        """Nothing of its own to set."""

        name: Literal["zero_shot"] = "zero_shot"

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or ZeroShot.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Refuse a task whose head would be new, and stay so; a task without a loss is what this is for."""
        return None if task.auto_class(family) in _OF_PRETRAINING else "the task's head would be new, and never trained"

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze all of it; raises where it lacks the head that the task asks."""
        model = source.pretrained()
        body = {id(parameter) for parameter in model.base_model.parameters()}
        head = {name for name, parameter in model.named_parameters() if id(parameter) not in body}
        lacking = sorted(source.new_parameters() & head)
        if lacking:
            raise ArtifactError(
                f"{source.path} lacks {lacking[0]}, by which {type(model).__name__} predicts words",
                allowed="A checkpoint that is asked as it is has the head of its pre-training",
                do="Give such a checkpoint as `model`, or an adaptation that trains the head",
            )
        return model.requires_grad_(False)
