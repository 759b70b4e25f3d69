"""Partial fine-tuning: train the top layers, freeze the embeddings and the lower layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.layers import depth, levels, require_depth
from headstart.core.contracts import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TopLayers(BaseAdaptation):
    """Partial fine-tuning: freeze the embeddings and the lower layers, and fine-tune the top layers."""

    paper: ClassVar[str] = "Lee et al. 2019, What Would Elsa Do?; Yosinski et al. 2014"

    class Config(AdaptationSettings):
        """The number of frozen layers."""

        name: Literal["top_layers"] = "top_layers"
        freeze: int | None = Field(
            None,
            ge=0,
            description="number of layers to freeze from the bottom, the encoder's before the decoder's; 0: only the "
            "embeddings; default: half of the layers",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or TopLayers.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze its lower layers; new parameters train at every level."""
        model = source.pretrained()
        frozen = depth(model) // 2 if self.config.freeze is None else self.config.freeze
        require_depth(model, frozen, "adaptation.freeze")
        new = source.new_parameters()
        for name, level in levels(model).items():
            model.get_parameter(name).requires_grad_(level > frozen or name in new)
        return model
