"""The upper layers alone: embeddings and the first layers stay as pre-training left them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from transformers import PreTrainedModel

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.layers import depth, levels, require_depth
from headstart.core.contracts import ModelSource


class TopLayers(BaseAdaptation):
    """Freeze the embeddings and the first layers, and fine-tune those above them."""

    paper: ClassVar[str] = "Lee et al. 2019, What Would Elsa Do?; Yosinski et al. 2014"

    class Config(AdaptationSettings):
        """How much stays."""

        name: Literal["top_layers"] = "top_layers"
        freeze: int | None = Field(
            None,
            ge=0,
            description="layers frozen from the bottom, an encoder's before a decoder's; half of them unless set, 0: "
            "the embeddings alone",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Remember the section of the recipe."""
        self.config = config or TopLayers.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint and freeze what lies below; new parameters are trained wherever they lie."""
        model = source.pretrained()
        frozen = depth(model) // 2 if self.config.freeze is None else self.config.freeze
        require_depth(model, frozen, "adaptation.freeze")
        new = source.new_parameters()
        for name, level in levels(model).items():
            model.get_parameter(name).requires_grad_(level > frozen or name in new)
        return model
