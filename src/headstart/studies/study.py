"""Load a study, run its cells, and read its tables and verdicts at any time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from headstart.core import artifact, config
from headstart.core.errors import DataError
from headstart.core.extras import install_command
from headstart.core.lock import FolderLock
from headstart.studies.definition import Study
from headstart.studies.graph import FAILURES, Graph, is_finished
from headstart.studies.judge import looks, outcomes, probe_table, results, tables, verdicts
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.results import Results
from headstart.studies.judge.tables import StudyTable
from headstart.studies.judge.verdicts import Verdict
from headstart.studies.render import formats
from headstart.studies.run import engine as study_engine
from headstart.studies.run import next_cells
from headstart.studies.run.engine import RunSummary
from headstart.studies.run.executors import build_executor
from headstart.studies.run.expand import build, counts_overlap
from headstart.studies.run.progress import ProgressReporter
from headstart.studies.saved import DEFINITION, load

TABLES = "tables"
__all__ = ["DEFINITION", "FORMATS", "TABLES", "StudyState", "load", "run", "summary"]
FORMATS = {"md": formats.markdown, "csv": formats.as_csv, "tex": formats.latex}


@dataclass(frozen=True)
class StudyState:
    """The current state of a study; each part is computed when it is first read."""

    study: Study

    @cached_property
    def graph(self) -> Graph:
        """Return the graph of cells."""
        return build(self.study)

    @cached_property
    def results(self) -> Results:
        """Return the results of the finished cells, and the missing cells with their reasons."""
        folder = self.study.output / FAILURES
        failed = sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
        reasons = {name: study_engine.reason(self.study.output, name) or "unknown" for name in failed}
        lost, study = results.lost(self.graph, reasons), self.study
        found = outcomes.read(self.graph, study.output, lost, study.claims)
        if study.base.finetune is None:
            # The first probe is what the tables and the figures show.
            return replace(next(iter(found.values())), outcomes=found)
        main = results.read(self.graph, study.output, lost, one_draw=study.seed_pretraining)
        return replace(main, outcomes=found)

    @cached_property
    def resamples(self) -> Resamples:
        """Return the scores on resampled test examples, which tables and verdicts share."""
        return Resamples()

    @cached_property
    def scores(self) -> StudyTable:
        """Return the table of scores."""
        return tables.scores(self.study, self.results, self.resamples)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Return the verdict on every claim."""
        self.resamples.prepare(self.results)
        return verdicts.judge(self.study, self.results, self.resamples)

    def tables(self) -> list[StudyTable]:
        """Return all tables."""
        return [
            self.scores,
            *probe_table.probes(self.study, self.results),
            tables.costs(self.study, self.results),
            tables.claims(self.verdicts),
            tables.missing_cells(self.results),
        ]


def run(study: Study, quiet: bool = False) -> RunSummary:
    """Run the missing cells, write the tables, and return how many cells are finished.

    An interrupted study resumes. A study whose file was changed computes only the cells that the change affects.
    """
    graph = build(study)
    _require_inputs(graph)
    study.output.mkdir(parents=True, exist_ok=True)
    with FolderLock(study.output):
        artifact.write_whole(study.output / DEFINITION, config.to_yaml(study, saved=True))
        outcome, state = _run_looks(study, graph, quiet)
        for table in state.tables():
            formats.write_all(table, study.output / TABLES)
    return outcome


def _run_looks(study: Study, graph: Graph, quiet: bool) -> tuple[RunSummary, StudyState]:
    """Run the cells of one look after the other, until all claims are decided or a look cannot be completed.

    A study without `looks` has one, which sees all seeds.
    """
    decided: list[Verdict] = []
    failed: dict[str, str] = {}
    skipped: set[str] = set()
    for look in looks.of(study):
        part = next_cells.select(study, graph, look.seeds, decided) if study.looks else graph
        outcome, state = _run_cells(study, part, quiet), StudyState(study)
        failed, skipped, decided = failed | outcome.failed, skipped.union(outcome.skipped), state.verdicts
        if outcome.not_started or all(verdict.word != "undecided" for verdict in decided):
            break
    outcome.failed = {name: reason for name, reason in failed.items() if not is_finished(study.output, name)}
    outcome.skipped = [name for name in graph.nodes if name in skipped and not is_finished(study.output, name)]
    outcome.total = outcome.finished + len({*outcome.failed, *outcome.skipped, *outcome.not_started})
    outcome.not_needed = len(graph.nodes) - outcome.total
    return outcome, state


def _run_cells(study: Study, graph: Graph, quiet: bool) -> RunSummary:
    """Run the missing cells of a graph."""
    finished = sum(is_finished(study.output, name) for name in graph.nodes)
    budget = None if study.budget_hours is None else 3600 * study.budget_hours
    execution = study.execution
    with ProgressReporter(len(graph.nodes), finished, quiet) as reporter:
        executor = build_executor(execution, study.output, todo=len(graph.nodes) - finished)
        return study_engine.run(
            graph, study.output, executor, reporter,
            threads=execution.threads, retries=execution.retries, budget_seconds=budget,
        )  # fmt: skip


def _require_inputs(graph: Graph) -> None:
    """Refuse to start if an input file does not exist, because its cells would fail later."""
    absent = graph.absent()
    if absent:
        files = "; ".join(f"{path} (read by {count:,} cells)" for path, count in absent.most_common())
        raise DataError(
            f"input files of the study do not exist: {files}",
            do="Add them, set the variable that names their folder, or exclude those cells by `exclude`",
        )


def summary(state: StudyState, outcome: RunSummary) -> list[str]:
    """Return how a run ended: the verdicts and the missing cells, grouped by cause."""
    study = state.study
    lines = [f"{study.output}: {outcome.finished:,} of {outcome.total:,} cells"]
    lines += [verdict.sentence() for verdict in state.verdicts]
    by_reason: dict[str, list[str]] = {}
    for name, reason in outcome.failed.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, (first, *others) in by_reason.items():
        lines.append(f"missing: {first}{f' and {len(others):,} more' if others else ''} failed: {reason}")
    if study.overlap and not counts_overlap(study):
        lines.append("the corpus was not searched for test items, which needs: " + install_command("corpus"))
    for model in state.graph.unsearched:
        lines.append(f"the corpus of {model} was not searched for test items: its files are missing")
    if outcome.skipped:
        lines.append(f"missing: {len(outcome.skipped)} cells were skipped, because a cell that they need failed")
    if outcome.not_needed:
        why = "belong to later looks" if outcome.not_started else "were not needed: the claims on them are decided"
        lines.append(f"{outcome.not_needed:,} cells {why}")
    if outcome.not_started:
        hours = f"{study.budget_hours:g} h" if study.budget_hours else ""
        lines.append(f"missing: {len(outcome.not_started)} cells did not start: the budget of {hours} is used up")
    return lines
