"""What the methods through peft share: which head is trained with them, and what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource, Task

if TYPE_CHECKING:
    from peft import PeftConfig


class MergeSettings(AdaptationSettings):
    """For methods whose result is a change of matrices: what is saved."""

    merge: bool = Field(
        False, description="save a plain model with the changes worked into its matrices, not the adapter alone"
    )


class PeftAdaptation(BaseAdaptation):
    """A method of peft's: everything is frozen but what it adds, and the modules that the checkpoint lacked."""

    config: Any
    """The section of the recipe, by the Config of the method."""

    def supports(self, task: Task, family: str) -> str | None:
        """Refuse LSTMs, which have no matrices that peft could wrap."""
        if family == "bilm":
            return "its layers are LSTMs, and peft works on those of transformers"
        return super().supports(task, family)

    def method(self, model: PreTrainedModel, shared: dict[str, Any]) -> PeftConfig:
        """Return peft's config for a loaded network; `shared` holds the keywords that all methods take."""
        raise NotImplementedError

    def load(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint, with the task's head."""
        return source.pretrained()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and let peft wrap it; chance is the source's, which has just set the seed."""
        from peft import get_peft_model

        model = self.load(source)
        return get_peft_model(model, self.method(model, self.shared(model, source)))  # type: ignore[arg-type, return-value]

    def shared(self, model: PreTrainedModel, source: ModelSource) -> dict[str, Any]:
        """Return the keywords that every method of peft's takes: the head is trained and saved whole."""
        return {"modules_to_save": head_modules(model, source.new_parameters()) or None}

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load the checkpoint as for training, and put the adapter on it."""
        from peft import PeftModel

        return PeftModel.from_pretrained(self.load(source), str(folder))  # type: ignore[arg-type, return-value]

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the wrapped model, whose adapter alone is saved, or the network with the adapter merged into it."""
        if isinstance(self.config, MergeSettings) and self.config.merge:
            return model.merge_and_unload()  # type: ignore[operator]
        # A set has another order in every process, and files of equal runs should be equal.
        for config in model.peft_config.values():  # type: ignore[operator, union-attr]
            for name, value in vars(config).items():
                if isinstance(value, set):
                    setattr(config, name, sorted(value))
        return model


def head_modules(model: PreTrainedModel, new: frozenset[str]) -> list[str]:
    """Name the modules that hold new parameters; where the checkpoint brought its head along, those of the head."""
    if not new and model.get_output_embeddings() is None:
        inside = {id(parameter) for parameter in model.base_model.parameters()}
        new = frozenset(name for name, parameter in model.named_parameters() if id(parameter) not in inside)
    return sorted({name.rpartition(".")[0] for name in new} - {""})
