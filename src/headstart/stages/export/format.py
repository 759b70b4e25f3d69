"""What every export format does: write its files, and open them again to be compared with the model in torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers.utils import ModelOutput

from headstart.core.contracts import Task
from headstart.core.data import InputSpec
from headstart.core.errors import ResourceError
from headstart.core.extras import install_command
from headstart.stages.export import card
from headstart.stages.export.comparison import Comparison
from headstart.stages.export.settings import ExportSettings
from headstart.stages.export.source import Source

FOLDER = "path/to/this/folder"
"""The folder in the code of a card."""


@dataclass(frozen=True)
class Opened:
    """An exported model that runs: a network with the task and the tokenizer by which it is used."""

    network: Any
    """A network that is called as the one in torch: with the inputs by name."""
    task: Task
    spec: InputSpec
    precision: str = "fp32"
    """The number format in which torch computes, for a network that torch runs."""


class ExportFormat:
    """Base class of the formats."""

    packages: ClassVar[Sequence[str]] = ()
    """Modules of the extra `export` that the format imports."""

    def __init__(self, settings: ExportSettings) -> None:
        """Keep the settings, and raise if a package is missing."""
        self.settings = settings
        for name in self.packages:
            require_package(name, settings.to)

    def write(self, source: Source, work: Path) -> list[Path]:
        """Write the model into one or more folders inside `work` and return them; the best of them is kept."""
        raise NotImplementedError

    def open(self, folder: Path, source: Source, threads: int) -> Opened:
        """Open what `write` wrote, from its files alone."""
        raise NotImplementedError

    def usage(self, source: Source) -> str:
        """Return lines of Python that use the folder without Headstart."""
        raise NotImplementedError

    def notes(self, source: Source) -> list[str]:
        """Return sentences for the card."""
        return []

    def card(self, source: Source, comparison: Comparison) -> str:
        """Return the card of the folder in Markdown."""
        return card.write(source.facts, self.settings.to, self.usage(source), comparison, self.notes(source))

    def after(self, folder: Path) -> list[str]:
        """Do what follows the finished folder, and return sentences about it."""
        return []


class ExportedNetwork(torch.nn.Module):
    """A network of another runtime behind the interface of one of transformers, so that tasks can call it.

    Subclasses implement `compute` on NumPy arrays.
    """

    def __init__(self) -> None:
        """Add a parameter without values, whose device tells where inputs belong."""
        super().__init__()
        self.placement = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def compute(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs by name."""
        raise NotImplementedError

    def forward(self, **inputs: torch.Tensor) -> ModelOutput:
        """Run the network on tensors."""
        outputs = self.compute({name: tensor.numpy() for name, tensor in inputs.items()})
        return ModelOutput({name: torch.from_numpy(np.asarray(array)) for name, array in outputs.items()})


def require_package(name: str, to: str) -> Any:
    """Import a module of the extra `export`, or raise with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ResourceError(
            f"`--to {to}` needs the package {name.partition('.')[0]}, which is not installed ({error})",
            do=install_command("export"),
        ) from error
