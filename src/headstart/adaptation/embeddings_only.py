"""Pre-trained vectors with new layers: only the token embeddings come from the checkpoint, as a control."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.core.contracts import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EmbeddingsOnly(BaseAdaptation):
    """Pre-trained token vectors with new layers: the control for what the pre-trained layers add."""

    paper: ClassVar[str] = "Turian et al. 2010; the comparison of Peters et al. 2018, ELMo"

    class Config(AdaptationSettings):
        """Whether the vectors are trained."""

        name: Literal["embeddings_only"] = "embeddings_only"
        freeze: bool = Field(False, description="keep the token vectors fixed; default: train them with the layers")

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or EmbeddingsOnly.Config()

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Build the network with new weights, and copy the checkpoint's token embeddings into it."""
        vectors = _token_embeddings(source.pretrained()).state_dict()
        # Built last, so that the source records all its parameters as new.
        model = source.fresh()
        embeddings = _token_embeddings(model)
        embeddings.load_state_dict(vectors)
        if self.config.freeze:
            embeddings.requires_grad_(False)
        return model


def _token_embeddings(model: PreTrainedModel) -> Any:
    """Return the module of the token embeddings; in a network that reads characters, it computes them."""
    return model.get_input_embeddings()
