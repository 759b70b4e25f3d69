"""The tables of a study: every system in every context over its seeds, what it cost, the claims and the holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.core import registry
from headstart.evaluation.failures import failed
from headstart.evaluation.forgetting import Forgetting
from headstart.evaluation.metrics import about
from headstart.evaluation.significance import format_p, holm, interval
from headstart.studies.definition import Study
from headstart.studies.grid import Context, System
from headstart.studies.judge.comparison import Comparison, Resamples, compare, pair
from headstart.studies.judge.power import LEVEL
from headstart.studies.judge.results import CellScore, Results, format_seeds
from headstart.studies.judge.verdicts import Verdict

NOTHING = "–"
FORGOTTEN, FORGOTTEN_IN, FAILED = "forgotten", "forgotten in", "failed seeds"
MAJORITY = "majority"


@dataclass(frozen=True)
class TableColumn:
    """A column: its head, and how its values are written for people."""

    name: str
    written: Callable[[Any], str] = str
    is_number: bool = True

    def text(self, value: Any) -> str:
        """Write one value; a dash for none."""
        return NOTHING if value is None else self.written(value)


@dataclass(frozen=True)
class Table:
    """Rows of plain values under their columns."""

    name: str
    title: str
    columns: list[TableColumn]
    rows: list[list[Any]]
    unfinished: list[bool]
    """Rows whose cells are not all there."""

    def texts(self) -> list[list[str]]:
        """Return the rows as people read them."""
        return [[c.text(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]


def _decimals(places: int) -> Callable[[Any], str]:
    return lambda value: f"{value:.{places}f}"


def _signed(places: int) -> Callable[[Any], str]:
    return lambda value: f"{value:+.{places}f}"


def _powers(value: Any) -> str:
    return f"{value:.2g}"


def _counted(value: Any) -> str:
    return f"{value:,}"


def _word(name: str) -> TableColumn:
    return TableColumn(name, str, is_number=False)


def context_columns(study: Study) -> list[TableColumn]:
    """Return a column for each axis that is not compared."""
    return [_word(axis) for axis in study.axes if axis not in study.compare]


def scores(study: Study, results: Results, resamples: Resamples) -> Table:
    """Return the table of scores: what repeats to the byte, measured by no clock."""
    resamples.prepare(results)
    there = present(results)
    keys = [(context, system) for context, systems in there.items() for system in systems]
    references = {
        context: system for context, systems in there.items() for system in systems if system.name == study.reference
    }
    majorities = {context: runs for (system, context), runs in results.outcomes.items() if system.baseline == MAJORITY}
    leads = [_lead(results, resamples, context, system, references.get(context)) for context, system in keys]
    corrected = _corrected(leads, study.seeds, resamples.samples)
    plain, signed = _decimals(places := _places(results)), _signed(places)
    columns = [
        *context_columns(study),
        _word("system"),
        _word("metric"),
        TableColumn("seeds", str),
        TableColumn("mean", plain),
        TableColumn("sd", plain),
        TableColumn("low", plain),
        TableColumn("high", plain),
        TableColumn(f"lead over {study.reference}", signed),
        TableColumn("lead low", signed),
        TableColumn("lead high", signed),
        TableColumn("effect", lambda value: f"{value:+.2f}"),
        TableColumn("p seeds", format_p),
        TableColumn("p examples", format_p),
        *([] if corrected is None else [TableColumn("p Holm", format_p)]),
        TableColumn("trained parameters", _counted),
        TableColumn("FLOPs", _powers),
        TableColumn(FORGOTTEN, lambda value: f"{value:+.3f}"),
        _word(FORGOTTEN_IN),
        TableColumn("overlap", str),
        TableColumn("mean without overlap", plain),
        _word(FAILED),
        _word("state"),
    ]
    rows, unfinished = [], []
    for place, (context, system) in enumerate(keys):
        runs = results.of(system, context)
        state = _state(study, results, context, system)
        measured = _measured(runs, results.overlaps.get((system, context)))
        lead = [*_told(leads[place], runs), *([] if corrected is None else [corrected[place]])]
        failures = _failures(runs, majorities.get(context, {}))
        rows.append([*context, system.name, *measured[:6], *lead, *measured[6:], failures, state])
        unfinished.append(state != "")
    return Table("table", "Scores in full", columns, rows, unfinished)


def _places(results: Results) -> int:
    """Return the decimals that the finest of a study's metrics wants."""
    metrics = {outcome.metric for runs in results.outcomes.values() for outcome in runs.values()}
    return max((about(metric).decimals for metric in metrics), default=1)


def _failures(runs: dict[int, CellScore], majority: dict[int, CellScore]) -> str | None:
    """Name the seeds with which a system learnt nothing; None where there are none."""
    if not runs or not majority:
        return None
    some = next(iter(runs.values()))
    return format_seeds(failed(runs, majority, some.gold, some.metric)) or None


def _corrected(leads: Sequence[Comparison | None], seeds: int, samples: int) -> list[float | None] | None:
    """Return Holm's p-value of each lead; None where no lead, however large, could have one below the level.

    Signs of few seeds agree by chance so easily that nothing would outlast the correction; nor do resamples tell less
    than one in their number.
    """
    known = [lead.p_value for lead in leads if lead is not None]
    if 2 * max(0.5**seeds, 1 / (samples + 1)) * len(known) > LEVEL:
        return None
    values = iter(holm(known))
    return [None if lead is None else next(values) for lead in leads]


def present(results: Results) -> dict[Context, list[System]]:
    """Return the systems of each context, those that are left out or not run yet included, in the order of the grid."""
    order = list(dict.fromkeys([*results.systems, *(system for system, _ in results.left_out)]))
    there = {*results.outcomes, *results.left_out, *((h.cell.system, h.cell.context) for h in results.holes)}
    contexts = dict.fromkeys([*results.contexts, *(context for _, context in results.left_out)])
    return {context: [system for system in order if (system, context) in there] for context in contexts}


def _measured(runs: dict[int, CellScore], overlap: dict[str, Any] | None) -> list[Any]:
    """Return what one row measures: metric, seeds, mean, sd, low, high; then parameters, FLOPs, forgetting, overlap."""
    if not runs:
        return [None, 0, *[None] * 10]
    some = next(iter(runs.values()))
    scale = about(some.metric).scale
    found = interval([o.score for o in runs.values()])
    points = [None if value is None else scale * value for value in (found.mean, found.sd, found.low, found.high)]
    flops = [o.cost.get("flops") for o in runs.values()]
    forgotten = [Forgetting(**o.details["forgetting"]) for o in runs.values() if "forgetting" in o.details]
    without = None if overlap is None else _without(runs, set(overlap["rows"]))
    return [
        some.metric,
        len(runs),
        *points,
        some.details.get("trainable_parameters"),
        None if not all(flops) else sum(f for f in flops if f) / len(flops),
        sum(one.lost for one in forgotten) / len(forgotten) if forgotten else None,
        forgotten[0].what if forgotten else None,
        None if overlap is None else f"{len(overlap['rows'])} of {overlap['of']}",
        None if without is None else scale * without,
    ]


def _without(runs: dict[int, CellScore], rows: set[int]) -> float | None:
    """Return the mean score on the test rows that the corpus does not hold."""
    values = []
    for outcome in runs.values():
        kept = [place for place in range(len(outcome.gold)) if place not in rows]
        if not kept:
            return None
        measure = registry.resolve("metrics", outcome.metric)
        values.append(measure([outcome.gold[p] for p in kept], [outcome.predictions[p] for p in kept]))
    return float(sum(values) / len(values))


def _lead(
    results: Results, resamples: Resamples, context: Context, system: System, reference: System | None
) -> Comparison | None:
    """Compare a row with the reference of its context."""
    if reference is None or system == reference:
        return None
    ours, theirs = results.of(system, context), results.of(reference, context)
    made = pair([ours], [theirs], resamples) if ours and theirs else None
    return None if made is None else compare([made])


def _told(lead: Comparison | None, runs: dict[int, CellScore]) -> list[Any]:
    if lead is None:
        return [None] * 6
    some = next(iter(runs.values()))
    scale = about(some.metric).scale
    both = [min(1.0, 2 * min(pair_of_p)) for pair_of_p in (lead.p_seeds, lead.p_examples)]
    return [scale * lead.difference, scale * lead.low, scale * lead.high, lead.effect, *both]


def _state(study: Study, results: Results, context: Context, system: System) -> str:
    """Say what is missing of a row; nothing where all is there."""
    if (system, context) in results.left_out:
        return f"left out: {results.left_out[system, context]}"
    missing = [h for h in results.holes if h.cell.system == system and h.cell.context == context]
    failed = [hole for hole in missing if hole.reason]
    parts = []
    if failed:
        parts.append(f"failed with seeds {format_seeds(h.cell.seed for h in failed)}: {failed[0].reason}")
    if len(missing) > len(failed):
        parts.append(f"not run yet: seeds {format_seeds(h.cell.seed for h in missing if not h.reason)}")
    return "; ".join(parts)


def costs(study: Study, results: Results) -> Table:
    """Return what each row cost by the clock and the meter, means over seeds."""
    columns = [
        *context_columns(study),
        _word("system"),
        TableColumn("seconds a run", _decimals(1)),
        TableColumn("kWh a run", lambda value: f"{value:.2g}"),
        TableColumn("CO₂e a run, g", lambda value: f"{value:.2g}"),
        TableColumn("money a run", lambda value: f"{value:.2g}"),
        TableColumn("memory, MB", lambda value: f"{value:,.0f}"),
    ]
    rows = []
    for context, systems in present(results).items():
        for system in systems:
            runs = results.of(system, context)
            if runs:
                means = [_mean(runs, key) for key in ("seconds", "kwh", "co2e_kg", "money", "peak_memory_mb")]
                means[2] = None if means[2] is None else 1000 * means[2]
                rows.append([*context, system.name, *means])
    return Table("costs", "Cost", columns, rows, [False] * len(rows))


def _mean(runs: dict[int, CellScore], key: str) -> float | None:
    values = [o.cost.get(key) for o in runs.values()]
    return None if any(value is None for value in values) else sum(v for v in values if v is not None) / len(values)


def claims(verdicts: Sequence[Verdict]) -> Table:
    """Return the claims with their verdicts."""
    signed = _signed(3 if any(one.scale <= 1 for one in verdicts) else 1)
    columns = [
        _word("claim"),
        _word("contrast"),
        _word("verdict"),
        TableColumn("difference", signed),
        TableColumn("low", signed),
        TableColumn("high", signed),
        TableColumn("effect", lambda value: f"{value:+.2f}"),
        TableColumn("p Holm", format_p),
        TableColumn("paired runs", str),
        TableColumn("seeds", str),
        TableColumn("seeds needed", str),
        TableColumn("power at what was seen", lambda value: f"{value:.0%}"),
    ]
    rows = []
    for one in verdicts:
        found = one.comparison
        points = [None] * 3 if found is None else [one.scale * v for v in (found.difference, found.low, found.high)]
        rows.append([
            one.claim.statement, one.claim.contrast, one.word, *points, None if found is None else found.effect,
            one.p_value, None if found is None else found.units, one.seeds, one.needed, one.power,
        ])  # fmt: skip
    return Table("claims", "Claims", columns, rows, [one.word == "undecided" for one in verdicts])


def holes(results: Results) -> Table:
    """Return the cells that failed, each with its reason."""
    columns = [_word("context"), _word("system"), TableColumn("seed", str), _word("reason")]
    failed = [hole for hole in results.holes if hole.reason]
    rows: list[list[Any]] = [["/".join(h.cell.context), h.cell.system.name, h.cell.seed, h.reason] for h in failed]
    return Table("holes", "Holes", columns, rows, [True] * len(rows))
