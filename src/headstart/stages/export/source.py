"""What is exported: a fine-tuned model, its network with the adapter merged, and rows to trace and to measure with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from headstart.checkpoint.load import load_tokenizer
from headstart.checkpoint.names import name_of
from headstart.core.contracts import Task
from headstart.core.data import Examples, Feature, InputSpec
from headstart.core.errors import ArtifactError, DataError
from headstart.stages.finetune import finished
from headstart.stages.finetune.base_model import find_base
from headstart.stages.finetune.data import read_held_out
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.tasks import labelled
from headstart.tasks.source import unwrap_peft
from headstart.tasks.writing import WritingTask
from headstart.tokens import tokenizer
from headstart.training import precision

Inputs = dict[str, torch.Tensor]
_TRACED_ROWS = 3
_WEIGHTS = ("*.safetensors", "*.bin")


class Source:
    """A fine-tuned model and the rows on which its exports are compared with it."""

    def __init__(self, folder: Path, facts: FinetuneManifest, data: str | None = None) -> None:
        """Restore the model; `data` replaces the test set of the run."""
        self.folder, self.facts = folder, facts
        self.model = Finetuned(folder, facts)
        self._data = data

    @property
    def task(self) -> Task:
        """The task of the model."""
        return self.model.task

    @property
    def spec(self) -> InputSpec:
        """How the network reads text."""
        return self.model.spec

    @cached_property
    def precision(self) -> str:
        """The number format in which torch runs the model."""
        return precision.resolve(self.model.recipe.training.precision, precision.default_device())

    @cached_property
    def rows(self) -> Examples:
        """The rows to compare on: the given file, or the test set of the run."""
        if self._data is not None:
            return labelled.read(self._data, self.task.columns("test"))
        return self._held_out("test")

    @cached_property
    def features(self) -> Sequence[Feature]:
        """The encoded rows to compare on."""
        return self.task.encode(self.rows, self.spec)

    def network(self, is_whole: bool = True) -> PreTrainedModel:
        """Load the network again, with the adapter merged into its weights.

        Args:
            is_whole: raise if the adapter cannot be merged. Otherwise, the network is returned with the adapter's
                layers in it, which a traced graph can contain.
        """
        model, _ = finished.load(self.folder)
        if not hasattr(model, "peft_config"):
            return model
        merge: Any = getattr(getattr(model, "base_model", None), "merge_and_unload", None)
        try:
            if merge is not None:
                return merge()  # type: ignore[no-any-return]
        except NotImplementedError:
            if not is_whole:
                return unwrap_peft(finished.load(self.folder)[0])
        name = self.model.recipe.adaptation.name  # type: ignore[attr-defined]
        raise ArtifactError(
            f"{self.folder} is an adapter by `{name}`, which cannot be merged into the weights",
            allowed="LoRA, QLoRA and IA3 can be merged; `adapters` can be exported to onnx, int8 and openvino",
            do="Choose another format, or fine-tune with another adaptation",
        )

    def save_tokenizer(self, folder: Path) -> None:
        """Save the tokenizer, which truncates to the maximum length of the run."""
        tokenizer.save_with_length(load_tokenizer(self.folder), folder, self.spec.max_length)

    def traced_inputs(self) -> Inputs:
        """Return the inputs of a forward pass on a few test rows, as the task makes them."""
        if isinstance(self.task, WritingTask):
            raise ArtifactError(
                f"{self.folder} generates text",
                allowed="onnx, int8 and openvino are for tasks that are answered in one forward pass",
                do="Use `--to merged` or `--to vllm`",
            )
        middle = middle_rows(self.task, self.features, _TRACED_ROWS)
        recorded = self.inputs_of(middle)
        if not recorded:
            raise ArtifactError(
                f"{self.folder} uses the token vectors alone, so there is no forward pass to export",
                do="Use `--to static`",
            )
        return recorded[0]

    def calibration_inputs(self, rows: int, batch: int = 8) -> list[Inputs]:
        """Return the inputs of forward passes on validation rows; none if these rows cannot be read."""
        try:
            held_out = self._held_out("validation")
        except DataError:
            return []
        features = self.task.encode(labelled.fixed_subset(held_out, rows), self.spec)
        starts = range(0, len(features), batch)
        return [inputs for start in starts for inputs in self.inputs_of(features[start : start + batch])]

    def inputs_of(self, features: Sequence[Feature]) -> list[Inputs]:
        """Return the inputs of every forward pass with which the task predicts features."""
        recorded: list[Inputs] = []

        def record(_: torch.nn.Module, arguments: tuple[Any, ...], inputs: dict[str, Any]) -> None:
            recorded.append({name: value.cpu() for name, value in inputs.items() if isinstance(value, torch.Tensor)})

        hook = self.model.model.register_forward_pre_hook(record, with_kwargs=True)
        try:
            device = self.model.model.device
            batch = {name: t.to(device) for name, t in self.task.collate(features, self.spec).items()}
            with torch.no_grad():
                self.task.predict(self.model.model, batch)
        finally:
            hook.remove()
        return recorded

    def weight_bytes(self) -> int:
        """Return the size of the weights, with those of the checkpoint that an adapter needs."""
        folders = [self.folder]
        if self.facts.is_adapter:
            folders.append(find_base(self.folder, self.model.recipe.model, self.facts.parents.get("model")))
        return sum(file.stat().st_size for folder in folders for mask in _WEIGHTS for file in folder.glob(mask))

    def _held_out(self, split: Any) -> Examples:
        try:
            return read_held_out(self.model.recipe.data, self.task, split)
        except DataError as error:
            raise DataError(
                f"the {split} rows of {name_of(self.folder) or self.folder} cannot be read: {error.found}",
                allowed="An export is compared with the model on the rows that its recipe names",
                do="Run the command in the folder in which the model was trained, or pass --data FILE",
            ) from error


def middle_rows(task: Task, features: Sequence[Feature], count: int) -> list[Feature]:
    """Return features of a typical length: the middle ones by length, repeated if there are too few."""
    ordered = sorted(features, key=task.length)
    start = max(0, (len(ordered) - count) // 2)
    middle = ordered[start : start + count]
    return (middle * count)[:count]
