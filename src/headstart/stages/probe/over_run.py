"""What was learned when: the probes on the snapshots of a pre-training run, against the tokens read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from headstart.core import artifact
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.log import logger
from headstart.core.pages.charts import ChartLine, ChartPoint, legend, line_chart
from headstart.core.pages.svg import Marker
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.pretrain.snapshots import snapshots_of
from headstart.stages.probe.network import ProbedCheckpoint
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore
from headstart.stages.runs.manifest import PretrainManifest

NAME = "over_run"


@dataclass(frozen=True)
class RunPoint:
    """A network along a run, and what each probe measured of it."""

    model: str
    step: int
    tokens: int
    measured: dict[str, Measured]


def require_snapshots(checkpoints: Sequence[ProbedCheckpoint]) -> None:
    """Raise if a model is not a finished pre-training run with snapshots."""
    for checkpoint in checkpoints:
        if not snapshots_of(checkpoint.folder) or not _is_pretraining(checkpoint):
            raise ArtifactError(
                f"{checkpoint.name} has no snapshots of a pre-training run",
                allowed="--over-run needs the networks along a run, which `headstart pretrain` keeps with "
                "training.snapshots",
                do="Pre-train with training.snapshots=5, or leave out --over-run",
            )


def require_probes(probes: Mapping[str, type[Probe]]) -> None:
    """Raise if none of the chosen probes runs on snapshots."""
    if not any(probe.over_run for probe in probes.values()):
        raise RecipeError(
            f"--over-run is set, and {', '.join(probes)} does not show what was learned when",
            do="Name another probe, such as minimal_pairs, or leave out --over-run",
        )


def measure_run(
    checkpoint: ProbedCheckpoint, probes: Mapping[str, Probe], measured: Mapping[str, Sequence[Measured]], seed: int,
    quiet: bool,
) -> list[RunPoint]:  # fmt: skip
    """Run the probes on the snapshots of a run, and return them with the finished network, in order.

    Args:
        checkpoint: the finished run.
        probes: the probes by name; those that describe no knowledge are left out.
        measured: what they measured of the finished network and of the untrained one.
        seed: that of the settings.
        quiet: log no progress.
    """
    finished = {
        name: found[-1]
        for name, found in measured.items()
        if probes[name].over_run and found and found[-1].model == checkpoint.name
    }
    progress = PretrainManifest.read(checkpoint.folder).progress
    points = []
    for step, path in snapshots_of(checkpoint.folder).items():
        network = ProbedCheckpoint(str(path), seed).trained()
        found = {}
        for name, last in finished.items():
            if not quiet:
                logger.info(f"probe: {name} of {checkpoint.name}, step {step:,}")
            if probes[name].reason_against(network) is None:
                found[name] = Measured(last.model, last.family, probes[name].measure(network), last.untrained)
        # Snapshots of earlier versions do not record their tokens.
        recorded = artifact.read_manifest(path).get("progress", {}).get("tokens")
        tokens = round(step / progress.steps * progress.tokens) if recorded is None else int(recorded)
        points.append(RunPoint(checkpoint.name, step, tokens, found))
    return [*points, RunPoint(checkpoint.name, progress.steps, progress.tokens, finished)]


def report(probes: Mapping[str, Probe], points: Sequence[RunPoint]) -> ProbeReport:
    """Return a chart and a table of each main figure against the tokens read, and what the probes add to them."""
    series: dict[tuple[str, str], list[tuple[RunPoint, ProbeScore]]] = {}
    for point in points:
        for name, found in point.measured.items():
            for score in probes[name].report([found]).scores:
                series.setdefault((name, score.measure), []).append((point, score))
    sections = [_section(name, measure, scored) for (name, measure), scored in series.items()]
    for name, probe in probes.items():
        with_it = [(_shown(point), point.measured[name]) for point in points if name in point.measured]
        sections += probe.sections_over_run(with_it)
    rows = [
        {
            "model": point.model, "step": point.step, "tokens": point.tokens, "probe": name, "measure": measure,
            **asdict(score.estimate), "untrained": score.baselines.get("untrained"),
        }
        for (name, measure), scored in series.items()
        for point, score in scored
    ]  # fmt: skip
    return ProbeReport([], sections, {"points": rows}, {NAME: rows} if rows else {})


def _is_pretraining(checkpoint: ProbedCheckpoint) -> bool:
    values = artifact.read_manifest(checkpoint.folder) if artifact.is_complete(checkpoint.folder) else {}
    return values.get("kind") == PretrainManifest.KIND


def _shown(point: RunPoint) -> str:
    return f"{point.model}, {point.tokens:,} tokens"


def _section(name: str, measure: str, scored: Sequence[tuple[RunPoint, ProbeScore]]) -> ReportSection:
    by_model: dict[str, list[tuple[RunPoint, ProbeScore]]] = {}
    for point, score in scored:
        by_model.setdefault(point.model, []).append((point, score))
    lines: list[ChartLine] = []
    for number, (model, part) in enumerate(by_model.items()):
        points = [found for point, score in part if (found := _chart_point(point, score)) is not None]
        if points:
            lines.append(ChartLine(model, Marker.of(number), points))
        untrained = part[-1][1].baselines.get("untrained")
        if untrained is not None:
            ends = [ChartPoint(_millions(part[i][0]), part[-1][1].scale * untrained) for i in (0, -1)]
            lines.append(ChartLine(f"{model}, untrained", Marker.of(number), ends, is_dashed=True))
    rows = [
        [Quoted(point.model), f"{point.step:,}", f"{point.tokens:,}", score.shown(), _untrained(score)]
        for point, score in scored
    ]
    unit = scored[0][1].unit
    header = ["model", "step", "tokens read", unit, "untrained"]
    notes = [
        "The network at several points of its training, on the same rows, so neighboring points are not independent. "
        "Intervals: 95 %. The dashed line is the same network untrained.",
    ]
    title = f"Over the run: {name}, {measure}"
    table = ReportTable(title, header, rows, [False, *[True] * 4])
    if not lines:
        return ReportSection(title, notes, (), [table])
    chart = line_chart(f"{measure}, {unit}", "million tokens read", unit, lines, may_be_log=True)
    entries = [(line.name, line.marker, line.is_dashed) for line in lines]
    return ReportSection(title, notes, [chart, legend(entries)], [table])


def _chart_point(point: RunPoint, score: ProbeScore) -> ChartPoint | None:
    """Return the point of a figure, or None for one that is undefined."""
    estimate = score.estimate
    if estimate.value is None:
        return None
    low, high = (None if end is None else score.scale * end for end in (estimate.low, estimate.high))
    text = f"{point.tokens:,} tokens: {score.shown()}"
    return ChartPoint(_millions(point), score.scale * estimate.value, text, low, high)


def _millions(point: RunPoint) -> float:
    return point.tokens / 1e6


def _untrained(score: ProbeScore) -> str:
    value = score.baselines.get("untrained")
    return "–" if value is None else score.number(value)
