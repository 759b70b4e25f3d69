"""Feature extraction: freeze the body and train a head on the hidden states of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from headstart.adaptation.base import AdaptationSettings, BaseAdaptation
from headstart.adaptation.layers import freeze_body, layers_run
from headstart.core.contracts import ModelSource, Task
from headstart.core.errors import RecipeError
from headstart.core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headstart.adaptation.on_top import LayerSelection

_CONCATENATED = 4
"""BERT's best features were the last four layers, concatenated (Devlin et al. 2019, table 7)."""
_ONE_POSITION = ("SequenceClassification", "MultipleChoice")
_FIRST = ("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Model types whose heads for a whole text read the first position."""
_TOPS = {"top": "none", "mean": "none", "concat": "projection", "mix": "mix"}


class FeatureExtraction(BaseAdaptation):
    """Feature extraction: freeze the body and train the head on its hidden states, computed once per text."""

    paper: ClassVar[str] = "Peters et al. 2018, ELMo; Devlin et al. 2019, BERT, section 5.3"
    needs_whole_weights: ClassVar[str] = (
        "caches what its frozen body computes, so processes would run the body at different times"
    )

    class Config(AdaptationSettings):
        """The layers that the head reads, and the size of the cache."""

        newer: ClassVar[tuple[str, ...]] = ("layer", "top", "hidden")
        name: Literal["features"] = "features"
        layers: Literal["top", "mean", "concat", "mix"] = Field(
            "top",
            description="the head's input: the top layer, the mean of layers, layers concatenated, or ELMo's learned "
            "mixture times γ. All but `top` need Headstart to load the model (a biLM's `mix` does not)",
        )
        layer: int | None = Field(
            None,
            ge=0,
            description="one layer alone instead of `layers`: 0 for the embeddings, 1 for the first layer, and so on",
        )
        last: int | None = Field(
            None,
            ge=1,
            description="number of layers, counted from the top; default: 4 for concat, else all, with the embeddings",
        )
        normalize: bool | None = Field(
            None, description="apply layer normalization to each layer first, as ELMo may; default: for concat only"
        )
        pooling: Literal["own", "mean"] = Field(
            "own",
            description="for heads that read one position of a text. own: that position; mean: the mean of all "
            "positions, which suits sentence encoders. With `mean`, heads that read [CLS] need Headstart to load",
        )
        top: Literal["none", "bilstm"] = Field(
            "none",
            description="what is trained between the layers and the head. bilstm: a bidirectional LSTM, as in ELMo's "
            "task models; it needs Headstart to load the model",
        )
        hidden: int | None = Field(
            None, ge=1, description="for bilstm: units in each direction; default: half of the hidden size"
        )
        cache_mb: float = Field(
            2000, ge=0, description="size of the cache of hidden states; further texts are recomputed every epoch"
        )

        @model_validator(mode="after")
        def _hidden_of_an_lstm(self) -> FeatureExtraction.Config:
            if self.hidden is not None and self.top != "bilstm":
                raise ValueError(f"hidden is {self.hidden}, but top is 'none'. Set top to bilstm, or remove hidden.")
            return self

        @model_validator(mode="after")
        def _top_is_one_layer(self) -> FeatureExtraction.Config:
            if self.layer is not None and (self.layers != "top" or self.last is not None):
                other = f"layers is {self.layers!r}" if self.layers != "top" else f"last is {self.last}"
                raise ValueError(
                    f"layer is {self.layer}, which is one layer alone, but {other}. Remove one of the two settings."
                )
            if self.layers == "top" and self.layer is None and (self.last is not None or self.normalize):
                setting = "normalize is true" if self.last is None else f"last is {self.last}"
                raise ValueError(
                    f"{setting}, but layers is 'top', which reads one layer unchanged. Set layers to mean, concat or "
                    "mix, or remove the setting."
                )
            return self

    def __init__(self, config: Config | None = None) -> None:
        """Store the config."""
        self.config = config or FeatureExtraction.Config()

    def supports(self, task: Task, family: str) -> str | None:
        """Accept only tasks with a head on top of the body."""
        from headstart.adaptation.on_top_network import HEADS

        if task.learns and task.auto_class(family) not in HEADS:
            return "the task has no separate head to train"
        return super().supports(task, family)

    def adapt(self, source: ModelSource) -> PreTrainedModel:
        """Load the checkpoint, freeze its body, and add the module between body and head."""
        from headstart.adaptation.frozen import FrozenBody
        from headstart.adaptation.on_top import BiLMMix, BiLSTM, LayerSelection, build_top

        model = source.pretrained()
        freeze_body(model, source.new_parameters())
        body: Any = model.base_model
        mixture, settings = getattr(body, "mix", None), self.config
        is_plain = settings.layer is None and settings.last is None and not settings.normalize
        uses_own_mix = settings.layers in ("top", "mix") and is_plain
        top: torch.nn.Module
        if mixture is not None and uses_own_mix:
            selection, top = LayerSelection(layers_run(model) + 1), BiLMMix(mixture)
        else:
            selection = self._selection(layers_run(model) + 1, self._pools(model))
            top = build_top(_TOPS[settings.layers], selection.last, body.config.hidden_size)
            if mixture is not None:
                mixture.requires_grad_(False)
        if settings.top == "bilstm":
            top = BiLSTM(top, body.config.hidden_size, self._hidden(model))
        setattr(model, model.base_model_prefix, FrozenBody(body, selection, top, int(settings.cache_mb * 1e6)))
        return model

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """Restore the body: the model is plain if the head reads the body's output, else a Headstart network."""
        from headstart.adaptation.on_top import BiLMMix, BiLSTM, LayerSelection
        from headstart.adaptation.on_top_network import wrap

        frozen = getattr(model, model.base_model_prefix)
        setattr(model, model.base_model_prefix, frozen.body)
        selection, top, kind = frozen.selection, frozen.top, _TOPS[self.config.layers]
        below = top.below if isinstance(top, BiLSTM) else top
        if isinstance(below, BiLMMix):
            # The body applies its own mixture.
            selection, kind = LayerSelection(), "none"
        if isinstance(top, BiLSTM):
            top.below = torch.nn.Identity() if isinstance(below, BiLMMix) else below
            return wrap(model, selection, top, f"{kind}+bilstm", self._hidden(model))
        return wrap(model, selection, top, kind) if selection.last or selection.pool else model

    def _hidden(self, model: PreTrainedModel) -> int:
        """Return the number of units in each direction of an LSTM."""
        return self.config.hidden or max(1, model.config.hidden_size // 2)

    def _pools(self, model: PreTrainedModel) -> bool:
        """Return whether the mean must replace the first position; a head that can pool is configured to do it."""
        name = type(model).__name__
        if self.config.pooling == "own" or not name.endswith(_ONE_POSITION):
            return False
        if hasattr(model.config, "classifier_pooling"):
            model.config.classifier_pooling = "mean"
            return False
        if model.config.model_type not in _FIRST:
            raise RecipeError(
                f"adaptation.pooling is 'mean', but the head of {name} does not read the first position",
                allowed=f"Model types with a pooling setting, and {', '.join(_FIRST)}",
                do="Remove adaptation.pooling",
            )
        return True

    def _selection(self, states: int, pool: bool) -> LayerSelection:
        """Return the selection of the hidden states, of which the network has `states` with the embeddings."""
        from headstart.adaptation.on_top import LayerSelection

        settings = self.config
        if settings.layer is not None:
            if settings.layer >= states:
                raise RecipeError(
                    f"adaptation.layer is {settings.layer}, but the model has {states - 1} layers",
                    allowed=f"0 (the embeddings) to {states - 1}",
                    do="Lower adaptation.layer",
                )
            return LayerSelection(states - settings.layer, False, bool(settings.normalize), pool, only=True)
        if settings.layers == "top":
            return LayerSelection(pool=pool)
        last = settings.last or (min(_CONCATENATED, states - 1) if settings.layers == "concat" else states)
        if last > states:
            raise RecipeError(
                f"adaptation.last is {last}, but the model has {states} hidden states (the embeddings and "
                f"{states - 1} layers)",
                allowed=f"At most {states}",
                do="Lower adaptation.last",
            )
        # Hidden states grow from layer to layer; concatenated, the largest would dominate the others.
        normalize = settings.layers == "concat" if settings.normalize is None else settings.normalize
        return LayerSelection(last, settings.layers == "mean", normalize, pool)
