"""Shared parts of the peft methods: the head is trained with them, and the adapter or the merged model is saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.checkpoint.load import load_adapter
from headstart.checkpoint.silence import silenced
from headstart.core.contracts import ModelSource, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import PeftConfig


class MergeSettings(AdaptationSettings):
    """Settings of methods whose updates can be merged into the weight matrices."""

    merge: bool = Field(
        False, description="merge the adapter into the weights and save a plain model, instead of the adapter alone"
    )


class PeftAdaptation(BaseAdaptation):
    """Base class of the peft methods: freeze all but the adapter and the modules that the checkpoint lacks."""

    config: Any
    """An instance of the method's Config."""

    def supports(self, task: Task, family: str) -> str | None:
        """Reject biLMs, whose LSTMs peft cannot wrap."""
        if family == "bilm":
            return "peft does not support LSTM layers"
        return super().supports(task, family)

    def peft_config(self, model: PreTrainedModel, shared: dict[str, Any]) -> PeftConfig:
        """Return peft's config for a loaded network; `shared` holds the keywords that all methods take."""
        raise NotImplementedError

    def load(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint, with the task's head."""
        return source.pretrained()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and wrap it with peft, whose new weights use the seed that the source has just set."""
        from peft import get_peft_model

        model = self.load(source)
        config = self.peft_config(model, self.shared(model, source))
        with silenced():
            return get_peft_model(model, config)  # type: ignore[arg-type, return-value]

    def shared(self, model: PreTrainedModel, source: ModelSource) -> dict[str, Any]:
        """Return the keywords that all peft methods take: the head's modules are trained and saved whole."""
        return {"modules_to_save": head_modules(model, source.new_parameters()) or None}

    def reopen(self, source: ModelSource, folder: Path) -> PreTrainedModel:
        """Load the checkpoint as for training, with the adapter in `folder`."""
        adapted: PreTrainedModel = load_adapter(self.load(source), folder)
        return adapted

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the wrapped model, which saves the adapter alone, or the network with the adapter merged."""
        if isinstance(self.config, MergeSettings) and self.config.merge:
            return model.merge_and_unload()  # type: ignore[operator]
        # The order of a set differs between processes, but equal runs should write equal files.
        for config in model.peft_config.values():  # type: ignore[operator, union-attr]
            for name, value in vars(config).items():
                if isinstance(value, set):
                    setattr(config, name, sorted(value))
        return model


def head_modules(model: PreTrainedModel, new: frozenset[str]) -> list[str]:
    """Return the modules with new parameters; if there are none, the modules of the checkpoint's head."""
    if not new and model.get_output_embeddings() is None:
        inside = {id(parameter) for parameter in model.base_model.parameters()}
        new = frozenset(name for name, parameter in model.named_parameters() if id(parameter) not in inside)
    return sorted({name.rpartition(".")[0] for name in new} - {""})
