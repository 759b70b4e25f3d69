"""A study: its cells run, its table told at any moment, its report written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headstart.core import artifact, config
from headstart.core.errors import DataError
from headstart.core.lock import FolderLock
from headstart.studies.definition import Study
from headstart.studies.graph import FAILURES, Graph, is_finished
from headstart.studies.judge import results, tables, verdicts
from headstart.studies.judge.comparison import Resamples
from headstart.studies.judge.results import Results
from headstart.studies.judge.tables import Table
from headstart.studies.judge.verdicts import Verdict
from headstart.studies.render import formats
from headstart.studies.run import engine as study_engine
from headstart.studies.run.engine import RunSummary
from headstart.studies.run.executors import executor_of
from headstart.studies.run.expand import build, counts_overlap
from headstart.studies.run.progress import ProgressReporter

DEFINITION, TABLES = "study.yaml", "tables"
FORMS = {"md": formats.markdown, "csv": formats.as_csv, "tex": formats.latex}


def load(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study file."""
    return config.load(path, Study, overrides)


@dataclass(frozen=True)
class StudyState:
    """What is known of a study as it stands; nothing is computed before it is asked."""

    study: Study

    @cached_property
    def graph(self) -> Graph:
        """Return the cells."""
        return build(self.study)

    @cached_property
    def results(self) -> Results:
        """Return what the finished cells found."""
        folder = self.study.output / FAILURES
        failed = sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
        reasons = {name: study_engine.reason(self.study.output, name) or "unknown" for name in failed}
        return results.read(
            self.graph, self.study.output, results.lost(self.graph, reasons), one_draw=self.study.seed_pretraining
        )

    @cached_property
    def resamples(self) -> Resamples:
        """Return the scores on resamples, computed once."""
        return Resamples()

    @cached_property
    def scores(self) -> Table:
        """Return the table of scores."""
        return tables.scores(self.study, self.results, self.resamples)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Return the verdict on every claim."""
        self.resamples.prepare(self.results)
        return verdicts.judge(self.study, self.results, self.resamples)

    def tables(self) -> list[Table]:
        """Return all tables."""
        return [
            self.scores,
            tables.costs(self.study, self.results),
            tables.claims(self.verdicts),
            tables.holes(self.results),
        ]


def run(study: Study, quiet: bool = False) -> RunSummary:
    """Run the cells that are missing, write the tables, and return what became of the cells.

    A study that was stopped, or killed, goes on; one whose file was changed computes what the change concerns.
    """
    graph = build(study)
    _require_inputs(graph)
    study.output.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(study.output)
    artifact.write_whole(study.output / DEFINITION, config.to_yaml(study))
    there = sum(is_finished(study.output, name) for name in graph.nodes)
    budget = None if study.budget_hours is None else 3600 * study.budget_hours
    with ProgressReporter(len(graph.nodes), there, quiet) as teller:
        how = study.execution
        executor = executor_of(how, study.output, todo=len(graph.nodes) - there)
        tally = study_engine.run(
            graph, study.output, executor, teller, threads=how.threads, retries=how.retries, budget_seconds=budget
        )
    standing = StudyState(study)
    for table in standing.tables():
        formats.write_all(table, study.output / TABLES)
    del lock
    return tally


def _require_inputs(graph: Graph) -> None:
    """Refuse before the first cell what would leave holes after the last."""
    absent = graph.absent()
    if absent:
        told = "; ".join(f"{path} (read by {count:,} cells)" for path, count in absent.most_common())
        raise DataError(
            f"the study reads what is not there: {told}",
            do="Put it there, set the variable that names it, or leave those cells out by `exclude`",
        )


def summary(standing: StudyState, tally: RunSummary) -> list[str]:
    """Say how the study ended: verdicts, and every hole, those of one cause together."""
    study = standing.study
    said = [f"{study.output}: {tally.finished:,} of {tally.total:,} cells"]
    said += [verdict.sentence() for verdict in standing.verdicts]
    by_reason: dict[str, list[str]] = {}
    for name, reason in tally.failed.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, (first, *others) in by_reason.items():
        said.append(f"hole: {first}{f' and {len(others):,} more' if others else ''} failed: {reason}")
    if study.overlap and not counts_overlap(study):
        said.append("test items were not looked for in the corpus, which needs: pip install 'headstart[corpus]'")
    for model in standing.graph.unsearched:
        said.append(f"test items were not looked for in the corpus of {model}, which is not there")
    if tally.skipped:
        said.append(f"hole: {len(tally.skipped)} cells were not run, because one that they need failed")
    if tally.unbegun:
        hours = f"{study.budget_hours:g} h" if study.budget_hours else ""
        said.append(f"hole: {len(tally.unbegun)} cells were not begun: the budget of {hours} is spent")
    return said
