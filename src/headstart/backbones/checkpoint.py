"""A network that is there already: any Hugging Face checkpoint, trained on, with new tokens or more layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import transformers
from pydantic import Field
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from headstart.backbones.growth import Growth, grow, require_growth
from headstart.backbones.sizes import Size, change
from headstart.core.config import Section
from headstart.core.data import Vocabulary
from headstart.core.errors import ArtifactError, RecipeError, first_line

_COUNT_FROM_PAD = ("roberta", "camembert", "mpnet", "longformer")
"""Parts of the names of layouts that count positions from the padding's id on, so that as many are never used."""


class Checkpoint:
    """Any Hugging Face folder, its weights trained on: continued pre-training, with more tokens or layers if asked.

    Its family is what its own config says. The head that the objective asks for is kept where the checkpoint has it,
    and new where it has not. A companion, such as ELECTRA's generator, comes from the subfolder of its name; without
    one it is new, in the checkpoint's layout.
    """

    paper: ClassVar[str] = "Gururangan et al. 2020, Don't Stop Pretraining; Gong et al. 2019, StackBERT"

    class Config(Section):
        """Which checkpoint."""

        family: Literal["checkpoint"] = "checkpoint"
        path: Path | None = Field(None, description="a local Hugging Face folder; its tokenizer is used unless set")
        grow: Growth | None = Field(None, description="make it larger first: more layers, or wider ones")

    def __init__(self, config: Config, part: str = "") -> None:
        """Remember the section of the recipe."""
        self.config, self.part = config, part

    @property
    def path(self) -> Path:
        """Return the folder, or say that the recipe names none."""
        if self.config.path is None:
            raise RecipeError("backbone.path is missing", allowed="family checkpoint needs a local Hugging Face folder")
        return self.config.path

    def companion(self, part: str) -> Checkpoint:
        """Return where a companion of that name comes from."""
        return Checkpoint(self.config, part)

    def max_length(self) -> int | None:
        """Return the longest row that the network can read; None where its positions are relative."""
        config = self.config_of()
        positions: int = getattr(config, "max_position_embeddings", None) or 0
        if any(name in config.model_type for name in _COUNT_FROM_PAD):
            positions -= (config.pad_token_id or 0) + 1
        # XLNet's config says -1 for no limit.
        return positions if positions > 0 else None

    def build(
        self, vocabulary: Vocabulary, seq_length: int, auto_class: str, scale: float = 1.0, **changes: Any
    ) -> PreTrainedModel:
        """Load the weights under a transformers class, with rows for tokens that the checkpoint does not know."""
        self.require_fitting(seq_length)
        folder, config = self.path / self.part, self.config_of()
        if self.part and not (folder / "config.json").is_file():
            _rescale(config, scale * self._times_as_wide(config))
            change(config, changes)
            model: PreTrainedModel = getattr(transformers, auto_class).from_config(config)
        else:
            change(config, changes)
            model = _load(folder, config, auto_class)
            if self.config.grow is not None:
                # A companion shares the network's embeddings, and so its width, but not its depth.
                model = grow(model, Growth(hidden=self.config.grow.hidden) if self.part else self.config.grow)
        widen(model, vocabulary.size, vocabulary.pieces)
        return model

    def require_fitting(self, seq_length: int) -> None:
        """Raise, by the config alone, unless the network can read such rows and grow as asked."""
        longest = self.max_length()
        if longest is not None and seq_length > longest:
            raise RecipeError(
                f"training.seq_length is {seq_length}; {self.path} reads {longest} tokens at most",
                do="Shorten the rows, or start from another checkpoint",
            )
        if self.config.grow is not None and not self.part:
            require_growth(self.config_of(), self.config.grow)

    def _times_as_wide(self, config: PreTrainedConfig) -> int:
        """Return by how much the network is widened before a new companion is a share of it."""
        hidden = self.config.grow.hidden if self.config.grow is not None else None
        return 1 if hidden is None else hidden // config.hidden_size

    def config_of(self) -> PreTrainedConfig:
        """Read the checkpoint's config, or its companion's where that is there."""
        own = self.path / self.part
        home = own if (own / "config.json").is_file() else self.path
        try:
            return AutoConfig.from_pretrained(str(home), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(
                f"{home} has no config that transformers can read ({first_line(error)})",
                allowed="backbone.path is a local Hugging Face folder",
                do="Restore the folder or give another",
            ) from error


def widen(model: PreTrainedModel, size: int, pieces: Mapping[int, Sequence[int]]) -> None:
    """Give a model rows for `size` tokens; one that stands for old pieces starts as the mean of theirs.

    In the embeddings, in the output layer and in its bias, so that a new word is read, and foretold, about as its
    pieces were. A row without pieces is drawn as the network's own were.
    """
    inputs: Any = model.get_input_embeddings()
    if size > model.config.vocab_size:
        if not isinstance(inputs, torch.nn.Embedding):
            raise ArtifactError(
                f"the network reads characters, and has {model.config.vocab_size:,} tokens",
                allowed="Only a network with a vector for each token can be given more",
                do="Leave out tokenizer.extend, or choose an objective without special tokens of its own",
            )
        model.resize_token_embeddings(size, mean_resizing=False)
        inputs = model.get_input_embeddings()
    outputs: Any = model.get_output_embeddings()
    tables = [inputs.weight, getattr(outputs, "weight", None), getattr(outputs, "bias", None)]
    with torch.no_grad():
        # Tied tables are one tensor, whose rows must be set once.
        for table in {id(table): table for table in tables if table is not None}.values():
            for token, written in pieces.items():
                table[token] = table[list(written)].mean(0)


def _load(folder: Path, config: PreTrainedConfig, auto_class: str) -> PreTrainedModel:
    try:
        model: PreTrainedModel = getattr(transformers, auto_class).from_pretrained(
            str(folder), config=config, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ArtifactError(
            f"the weights in {folder} cannot be loaded as {auto_class} ({first_line(error)})",
            allowed="model.safetensors lies beside config.json and fits it",
            do="Restore or complete the folder",
        ) from error
    return model


def _rescale(config: PreTrainedConfig, scale: float) -> None:
    """Multiply the width of a config, in whole heads of the same width."""
    before = Size(config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
    after = before.scaled(scale)
    change(config, {"hidden_size": after.hidden, "num_attention_heads": after.heads})
    if getattr(config, "intermediate_size", None):
        config.intermediate_size = config.intermediate_size * after.hidden // before.hidden
