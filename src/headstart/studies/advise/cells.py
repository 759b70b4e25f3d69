"""Run one method in one round as a cell of a study: addressed by its content, resumable, computed once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headstart.core import artifact, config
from headstart.core.errors import HeadstartError
from headstart.core.log import logger
from headstart.evaluation.cost import PriceTag
from headstart.stages.finetune import result as results
from headstart.stages.finetune import run as finetune
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.result import MethodDetails
from headstart.studies.advise.methods import Method, recipe_of, teacher_recipe
from headstart.studies.advise.rounds import Round
from headstart.studies.graph import Node, cell_dir, is_finished
from headstart.studies.run.jobs import JOURNAL, run_job, serialize_job
from headstart.studies.run.nodes import BaselineRecipe, baseline_node, finetune_node


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide warnings about rows, which would come with every cell and call held-out rows a test set."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


_TEACHERS = "teachers"


class CellFailed(HeadstartError):
    """A cell ended with an error."""


@dataclass(frozen=True)
class CellResult:
    """What a method predicted for the held-out rows of a round, and what that cost."""

    metric: str = ""
    gold: Sequence[Any] = ()
    predictions: Sequence[Any] = ()
    score: float = 0.0
    """The first metric on the held-out rows."""
    validation: float = 0.0
    """What selects a learning rate: a score on the validation rows of which higher is better."""
    seconds: float = 0.0
    """The time of the whole cell, with reading and encoding."""
    cost: PriceTag = field(default_factory=PriceTag)
    details: MethodDetails = field(default_factory=MethodDetails)
    left_out: str = ""
    """Why the method cannot be used for this task; empty if it can."""
    is_new: bool = True
    """False if it was computed by an earlier command."""

    @property
    def adapting_seconds(self) -> float:
        """Return the part of `seconds` for the pre-training that this cell ran for all cells of its method."""
        adapted = self.details.adapted
        return min(self.seconds, adapted["cost"]["seconds"]) if adapted.get("is_counted") else 0.0


class Cells:
    """The cells of one output folder."""

    def __init__(self, output: Path, base: FinetuneRecipe, rounds: Sequence[Round], threads: int) -> None:
        """Describe what all cells share: the folder, the recipe that they start from, the rounds."""
        self.output, self.base, self.rounds, self.threads = output, base, rounds, threads

    def run(self, method: Method, rate: float | None, number: int, train_rows: int | None = None) -> CellResult:
        """Return the result of a method in a round, from disk if it is there."""
        teacher = None if method.teacher is None else self._train_teacher(method, number)
        node = self._node(method, rate, number, train_rows, teacher)
        is_new = not is_finished(self.output, node.id)
        if is_new:
            with _without_warnings():
                answer = json.loads(run_job(serialize_job(node, self.output, self.threads)))
            self.__dict__.pop("_seconds", None)
            if answer["ended"] != "finished":
                raise CellFailed(f"{method.name} failed: {answer['reason']}")
        result = replace(self._read(node), is_new=is_new)
        if teacher is None:
            return result
        cost = PriceTag.from_dict(artifact.read_manifest(teacher)["cost"])
        return replace(result, seconds=result.seconds + cost.seconds, cost=result.cost + cost)

    def _train_teacher(self, method: Method, number: int) -> Path:
        """Return the folder of the teacher of a round, which was trained on the rows of that round."""
        assert method.teacher is not None
        recipe = teacher_recipe(method.teacher, self.base, self.rounds[number].data(), Path("teacher"), number)
        folder = self.output / _TEACHERS / config.fingerprint([recipe, number])
        if not artifact.is_complete(folder):
            with _without_warnings():
                try:
                    finetune.run(config.fill(FinetuneRecipe, {**recipe, "output": str(folder)}), quiet=True)
                except HeadstartError as error:
                    raise CellFailed(f"the teacher of {method.name} failed: {error}") from error
        return folder

    def _node(
        self, method: Method, rate: float | None, number: int, train_rows: int | None, teacher: Path | None
    ) -> Node:
        data: dict[str, Any] = self.rounds[number].data()
        if train_rows is not None:
            data["train_rows"] = train_rows
        recipe = recipe_of(method, rate, self.base, data, None if teacher is None else str(teacher))
        if method.is_network:
            filled = config.fill(FinetuneRecipe, {**recipe, "training": {**recipe["training"], "report_to": []}})
            return finetune_node({**config.to_dict(filled), "seed": number})
        settings = {"baseline": method.name, "task": recipe["task"], "data": data, "seed": number}
        return baseline_node(config.to_dict(config.fill(BaselineRecipe, settings)))

    def _read(self, node: Node) -> CellResult:
        values: Mapping[str, Any] = results.read(cell_dir(self.output, node.id))
        seconds = self._seconds.get(node.id, 0.0)
        if "left_out" in values:
            return CellResult(left_out=values["left_out"], seconds=seconds)
        return CellResult(
            values["metric"], values["gold"], values["predictions"], float(values["test"][values["metric"]]),
            float(next(iter(values["validation"].values()), 0.0)), seconds, PriceTag.from_dict(values["cost"]),
            MethodDetails.from_dict(values["details"]),
        )  # fmt: skip

    @cached_property
    def _seconds(self) -> dict[str, float]:
        """The seconds of each finished cell, from the journal of the folder."""
        began: dict[str, float] = {}
        seconds: dict[str, float] = {}
        path = self.output / JOURNAL
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # A full disk or a power cut tore it.
            if entry["what"] == "began":
                began[entry["cell"]] = entry["at"]
            else:
                seconds[entry["cell"]] = entry["at"] - began.get(entry["cell"], entry["at"])
        return seconds
