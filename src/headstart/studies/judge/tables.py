"""Build the tables of a study: scores of every system in every context, costs, claims and missing cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.core import registry
from headstart.evaluation.comparison import Comparison, compare
from headstart.evaluation.failures import failed
from headstart.evaluation.significance import LEVEL, format_p, holm, interval, smallest_p
from headstart.studies.definition import Study
from headstart.studies.grid import Context, System
from headstart.studies.judge import units
from headstart.studies.judge.pairing import Resamples, pair
from headstart.studies.judge.results import CellScore, Results, format_seeds
from headstart.studies.judge.verdicts import Verdict

NOTHING = "–"
FORGOTTEN, FORGOTTEN_IN, FAILED = "forgotten", "forgotten in", "failed seeds"
MAJORITY = "majority"


@dataclass(frozen=True)
class TableColumn:
    """A column: its header, and how its values are formatted for people."""

    name: str
    format: Callable[[Any], str] = str
    is_number: bool = True

    def text(self, value: Any) -> str:
        """Return one value as text; a dash for None."""
        return NOTHING if value is None else self.format(value)


@dataclass(frozen=True)
class StudyTable:
    """Rows of plain values under their columns."""

    name: str
    title: str
    columns: list[TableColumn]
    rows: list[list[Any]]
    unfinished: list[bool]
    """Whether a row's cells are incomplete."""

    def texts(self) -> list[list[str]]:
        """Return the rows as formatted text."""
        return [[c.text(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]


def _decimals(places: int) -> Callable[[Any], str]:
    return lambda value: f"{value:.{places}f}"


def _signed(places: int) -> Callable[[Any], str]:
    return lambda value: f"{value:+.{places}f}"


def _two_digits(value: Any) -> str:
    return f"{value:.2g}"


def _grouped(value: Any) -> str:
    return f"{value:,}"


def _text_column(name: str) -> TableColumn:
    return TableColumn(name, str, is_number=False)


def context_columns(study: Study) -> list[TableColumn]:
    """Return a column for each axis that is not compared."""
    return [_text_column(axis) for axis in study.axes if axis not in study.compare]


def scores(study: Study, results: Results, resamples: Resamples) -> StudyTable:
    """Return the table of scores: all that is reproducible to the byte, without any clock."""
    resamples.prepare(results)
    by_context = present(results)
    keys = [(context, system) for context, systems in by_context.items() for system in systems]
    references = {
        context: system
        for context, systems in by_context.items()
        for system in systems
        if system.name == study.reference
    }
    majorities = {context: runs for (system, context), runs in results.scores.items() if system.baseline == MAJORITY}
    leads = [_lead(results, resamples, context, system, references.get(context)) for context, system in keys]
    corrected = _corrected(leads, study.seeds, resamples.samples)
    rows, unfinished = [], []
    for i, (context, system) in enumerate(keys):
        runs = results.of(system, context)
        state = _state(results, context, system)
        measured = _measured(runs, results.overlaps.get((system, context)))
        lead = [*_lead_cells(leads[i], runs), *([] if corrected is None else [corrected[i]])]
        failures = _failures(runs, majorities.get(context, {}))
        rows.append([*context, system.name, *measured[:6], *lead, *measured[6:], failures, state])
        unfinished.append(state != "")
    columns = _score_columns(study, _places(results), has_corrected=corrected is not None)
    return StudyTable("table", "Scores in full", columns, rows, unfinished)


def _score_columns(study: Study, places: int, has_corrected: bool) -> list[TableColumn]:
    plain, signed = _decimals(places), _signed(places)
    return [
        *context_columns(study),
        _text_column("system"),
        _text_column("metric"),
        TableColumn("seeds", str),
        TableColumn("mean", plain),
        TableColumn("sd", plain),
        TableColumn("low", plain),
        TableColumn("high", plain),
        TableColumn(f"lead over {study.reference}", signed),
        TableColumn("lead low", signed),
        TableColumn("lead high", signed),
        TableColumn("effect", _signed(2)),
        TableColumn("p seeds", format_p),
        TableColumn("p examples", format_p),
        *([TableColumn("p Holm", format_p)] if has_corrected else []),
        TableColumn("trained parameters", _grouped),
        TableColumn("FLOPs", _two_digits),
        TableColumn(FORGOTTEN, _signed(3)),
        _text_column(FORGOTTEN_IN),
        TableColumn("overlap", str),
        TableColumn("mean without overlap", plain),
        _text_column(FAILED),
        _text_column("state"),
    ]


def _places(results: Results) -> int:
    """Return the most decimals that any of the study's metrics needs."""
    return max((cell.about.decimals for runs in results.scores.values() for cell in runs.values()), default=1)


def _failures(runs: Mapping[int, CellScore], majority: Mapping[int, CellScore]) -> str | None:
    """Return the seeds with which a system learned nothing; None where there are none."""
    if not runs or not majority:
        return None
    cell = next(iter(runs.values()))
    return format_seeds(failed(runs, majority, cell.gold, cell.metric)) or None


def _corrected(leads: Sequence[Comparison | None], seeds: int, samples: int) -> list[float | None] | None:
    """Return Holm's p-value of each lead; None where no lead, however large, could have one below the level.

    Two limits apply: the smallest p-value of sign flips over this many seeds, and one over the number of resamples.
    """
    known = [lead.p_value for lead in leads if lead is not None]
    if max(smallest_p(seeds), 2 / (samples + 1)) * len(known) > LEVEL:
        return None
    values = iter(holm(known))
    return [None if lead is None else next(values) for lead in leads]


def present(results: Results) -> dict[Context, list[System]]:
    """Return the systems of each context, including those left out or not run yet, in the order of the grid."""
    order = list(dict.fromkeys([*results.systems, *(system for system, _ in results.left_out)]))
    keys = {*results.scores, *results.left_out, *((m.cell.system, m.cell.context) for m in results.missing)}
    contexts = dict.fromkeys([*results.contexts, *(context for _, context in results.left_out)])
    return {context: [system for system in order if (system, context) in keys] for context in contexts}


def _measured(runs: Mapping[int, CellScore], overlap: Mapping[str, Any] | None) -> list[Any]:
    """Return the measurements of a row: metric, seeds, mean, sd, low, high, parameters, FLOPs, forgetting, overlap."""
    if not runs:
        return [None, 0, *[None] * 10]
    first = next(iter(runs.values()))
    scale = first.about.scale
    score = interval([cell.score for cell in runs.values()])
    points = [None if value is None else scale * value for value in (score.mean, score.sd, score.low, score.high)]
    flops = [cell.cost.get("flops") for cell in runs.values()]
    forgotten = [cell.details.forgetting for cell in runs.values() if cell.details.forgetting is not None]
    without = None if overlap is None else _without(runs, set(overlap["rows"]))
    return [
        first.metric,
        len(runs),
        *points,
        first.details.trainable_parameters,
        None if not all(flops) else sum(value for value in flops if value) / len(flops),
        sum(item.lost for item in forgotten) / len(forgotten) if forgotten else None,
        forgotten[0].what if forgotten else None,
        None if overlap is None else f"{len(overlap['rows'])} of {overlap['of']}",
        None if without is None else scale * without,
    ]


def _without(runs: Mapping[int, CellScore], rows: set[int]) -> float | None:
    """Return the mean score on the test rows that the corpus does not contain."""
    values = []
    for cell in runs.values():
        kept = [i for i in range(len(cell.gold)) if i not in rows]
        if not kept:
            return None
        measure = registry.resolve("metrics", cell.metric)
        values.append(measure([cell.gold[i] for i in kept], [cell.predictions[i] for i in kept]))
    return float(sum(values) / len(values))


def _lead(
    results: Results, resamples: Resamples, context: Context, system: System, reference: System | None
) -> Comparison | None:
    """Compare a system with the reference of its context."""
    if reference is None or system == reference:
        return None
    runs, reference_runs = results.of(system, context), results.of(reference, context)
    paired = pair([runs], [reference_runs], resamples) if runs and reference_runs else None
    if paired is not None and units.are_untrained([*runs.values(), *reference_runs.values()]):
        paired = units.one_run(paired)
    return None if paired is None else compare([paired])


def _lead_cells(lead: Comparison | None, runs: Mapping[int, CellScore]) -> list[Any]:
    """Return the cells of a lead: difference, low, high, effect, p over seeds, p over examples."""
    if lead is None:
        return [None] * 6
    scale = next(iter(runs.values())).about.scale
    points = [scale * value for value in (lead.difference, lead.low, lead.high)]
    return [*points, lead.effect, lead.p_over_seeds, lead.p_over_examples]


def _state(results: Results, context: Context, system: System) -> str:
    """Return what a row lacks; empty where it is complete."""
    if (system, context) in results.left_out:
        return f"left out: {results.left_out[system, context]}"
    missing = [m for m in results.missing if m.cell.system == system and m.cell.context == context]
    failures = [item for item in missing if item.reason]
    parts = []
    if failures:
        parts.append(f"failed with seeds {format_seeds(m.cell.seed for m in failures)}: {failures[0].reason}")
    if len(missing) > len(failures):
        parts.append(f"not run yet: seeds {format_seeds(m.cell.seed for m in missing if not m.reason)}")
    return "; ".join(parts)


def costs(study: Study, results: Results) -> StudyTable:
    """Return the measured cost of each row: time, energy, money and memory, means over seeds."""
    columns = [
        *context_columns(study),
        _text_column("system"),
        TableColumn("seconds a run", _decimals(1)),
        TableColumn("kWh a run", _two_digits),
        TableColumn("CO₂e a run, g", _two_digits),
        TableColumn("money a run", _two_digits),
        TableColumn("memory, MB", lambda value: f"{value:,.0f}"),
    ]
    rows = []
    for context, systems in present(results).items():
        for system in systems:
            runs = results.of(system, context)
            if runs:
                means = [_mean_cost(runs, key) for key in ("seconds", "kwh", "co2e_kg", "money", "peak_memory_mb")]
                means[2] = None if means[2] is None else 1000 * means[2]
                rows.append([*context, system.name, *means])
    return StudyTable("costs", "Cost", columns, rows, [False] * len(rows))


def _mean_cost(runs: Mapping[int, CellScore], key: str) -> float | None:
    values = [cell.cost.get(key) for cell in runs.values()]
    return None if any(value is None for value in values) else sum(v for v in values if v is not None) / len(values)


def claims(verdicts: Sequence[Verdict]) -> StudyTable:
    """Return the claims with their verdicts."""
    signed = _signed(3 if any(verdict.scale <= 1 for verdict in verdicts) else 1)
    columns = [
        _text_column("claim"),
        _text_column("contrast"),
        _text_column("verdict"),
        TableColumn("difference", signed),
        TableColumn("low", signed),
        TableColumn("high", signed),
        TableColumn("effect", _signed(2)),
        TableColumn("p Holm", format_p),
        TableColumn("paired runs", str),
        TableColumn("seeds", str),
        TableColumn("seeds needed", str),
        TableColumn("power at the observed difference", lambda value: f"{value:.0%}"),
    ]
    rows = []
    for verdict in verdicts:
        result = verdict.comparison
        points: list[Any] = [None] * 5
        if result is not None:
            points = [verdict.scale * value for value in (result.difference, result.low, result.high)]
            points += [result.effect, result.units]
        rows.append([
            verdict.claim.statement, verdict.claim.contrast, verdict.word, *points[:4], verdict.p_value, points[4],
            verdict.seeds, verdict.needed, verdict.power,
        ])  # fmt: skip
    return StudyTable("claims", "Claims", columns, rows, [verdict.word == "undecided" for verdict in verdicts])


def missing_cells(results: Results) -> StudyTable:
    """Return the cells that failed, each with its reason."""
    columns = [_text_column("context"), _text_column("system"), TableColumn("seed", str), _text_column("reason")]
    rows: list[list[Any]] = [
        ["/".join(missing.cell.context), missing.cell.system.name, missing.cell.seed, missing.reason]
        for missing in results.all_missing
        if missing.reason
    ]
    return StudyTable("missing", "Missing cells", columns, rows, [True] * len(rows))
