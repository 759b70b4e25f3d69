"""What `headstart.study` returns: a study with its tables and its cost."""

from __future__ import annotations

from functools import cached_property, reduce
from operator import add
from typing import Any

from headstart.core import artifact, config
from headstart.evaluation.cost import PriceTag
from headstart.stages.runs.result import Run, Table
from headstart.studies import study as stage
from headstart.studies.definition import Study
from headstart.studies.graph import cell_dir, is_finished
from headstart.studies.judge import tables
from headstart.studies.run import engine
from headstart.studies.run.engine import RunSummary


class StudyRun(Run):
    """The result of `headstart.study`. `outcome` counts the finished cells and gives the reasons of the others."""

    def __init__(self, study: Study, outcome: RunSummary) -> None:
        """Refer to the output folder of a study."""
        super().__init__(study.output)
        self.outcome, self.state = outcome, stage.StudyState(study)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest of each finished cell, by the name of the cell; a study has none of its own."""
        return {name: artifact.read_manifest(cell_dir(self.path, name)) for name in self._finished}

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The filled definition of the study."""
        return config.to_dict(self.state.study)

    @cached_property
    def scores(self) -> Table:
        """The table of scores: one row per system and context, with seeds, intervals and differences."""
        return _plain(self.state.scores)

    @cached_property
    def claims(self) -> Table:
        """The claims of the study with their verdicts."""
        return _plain(tables.claims(self.state.verdicts))

    @cached_property
    def cost(self) -> PriceTag:
        """The measured cost of all finished cells."""
        costs = [cost for cost in (engine.price(self.path, name) for name in self._finished) if cost]
        return reduce(add, map(PriceTag.from_dict, costs)) if costs else PriceTag()

    @property
    def _finished(self) -> list[str]:
        return [name for name in self.state.graph.nodes if is_finished(self.path, name)]

    def summary(self) -> str:
        """Return the text that `headstart study run` prints."""
        return "\n".join(stage.summary(self.state, self.outcome))


def _plain(table: tables.StudyTable) -> Table:
    names = [column.name for column in table.columns]
    return Table(dict(zip(names, row, strict=True)) for row in table.rows)
