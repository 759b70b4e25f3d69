"""Layer-wise learning rate decay: lower layers, which are more general, change less."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import BaseAdaptation
from headstart.adaptation.layers import LayerSettings, levels_from_top, load
from headstart.core.contracts import ModelSource
from headstart.core.data import ParameterGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LayerwiseDecay(BaseAdaptation):
    """Layer-wise learning rate decay: fine-tune all parameters, lower layers with lower learning rates."""

    paper: ClassVar[str] = "Clark et al. 2020, ELECTRA, appendix B; Howard & Ruder 2018, ULMFiT; Zhang et al. 2021"

    class Config(LayerSettings):
        """The decay of the learning rate."""

        name: Literal["layerwise_decay"] = "layerwise_decay"
        decay: float = Field(
            0.9,
            gt=0,
            le=1,
            description="a layer's learning rate divided by that of the layer above; ELECTRA used 0.8 and 0.9",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or LayerwiseDecay.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint with a new head, all parameters trainable."""
        return load(source, self.config.reinit_layers)

    def groups(self, model: PreTrainedModel) -> list[ParameterGroup]:
        """Return one group per level: the head at the full learning rate, the embeddings at the lowest."""
        return [ParameterGroup(names, lr_scale=self.config.decay**i) for i, names in enumerate(levels_from_top(model))]
