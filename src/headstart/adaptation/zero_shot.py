"""No training: evaluate the checkpoint unchanged, as a control."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import ArtifactError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PRETRAINING_CLASSES = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""Auto classes whose weights, including the head, come from pre-training."""


class ZeroShot(BaseAdaptation):
    """No training: use the checkpoint unchanged, for prompting, or as the control for fine-tuning."""

    paper: ClassVar[str] = "Radford et al. 2019, GPT-2; Brown et al. 2020, GPT-3"

    class Config(AdaptationSettings):
        """No further settings."""

        name: Literal["zero_shot"] = "zero_shot"

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or ZeroShot.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Accept tasks without a training loss too, but reject tasks with a new head."""
        if task.auto_class(family) in _PRETRAINING_CLASSES:
            return None
        return "the task needs a new head, which would stay untrained"

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze all parameters; raises if it lacks the task's head."""
        model = source.pretrained()
        body = {id(parameter) for parameter in model.base_model.parameters()}
        head = {name for name, parameter in model.named_parameters() if id(parameter) not in body}
        missing = sorted(source.new_parameters() & head)
        if missing:
            raise ArtifactError(
                f"{source.path} has no {missing[0]}, which is part of the head of {type(model).__name__}",
                allowed="zero_shot needs a checkpoint with its pre-training head",
                do="Set `model` to such a checkpoint, or choose an adaptation that trains the head",
            )
        return model.requires_grad_(False)
