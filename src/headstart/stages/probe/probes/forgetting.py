"""Forgetting: the figures of the other probes before and after a training, as differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from headstart.core import registry
from headstart.core.errors import RecipeError
from headstart.core.pages.charts import IntervalRow, interval_chart
from headstart.evaluation.intervals import Estimate, bootstrap_mean
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.network import ProbedCheckpoint, ProbedNetwork
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore
from headstart.stages.probe.settings import ProbeSettings

_FEW = 10
"""Rows of a figure from which a bootstrap interval is of use."""


@dataclass(frozen=True)
class _Found:
    """What the other probes measured of a network; of the first model also untrained."""

    trained: dict[str, Any]
    untrained: dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One figure of the first model and of a later one."""

    model: str
    probe: str
    before: ProbeScore
    after: ProbeScore
    untrained: float | None

    @property
    def is_paired(self) -> bool:
        """Whether both figures are means over the same rows."""
        return bool(self.before.points) and len(self.before.points) == len(self.after.points)

    @property
    def difference(self) -> Estimate:
        """The later figure minus the first one, with its interval: over the same rows where there are any."""
        if self.is_paired:
            known, design = self._known_differences(), self.before.design
            if not known:
                return Estimate(None)
            return bootstrap_mean(list(known.values()), None if design is None else design.at(known))
        return _independent(self.before.estimate, self.after.estimate)

    @property
    def is_over_few(self) -> bool:
        """Whether the difference is over so few rows that its interval is too narrow."""
        return self.is_paired and 0 < len(self._known_differences()) < _FEW

    def _known_differences(self) -> dict[int, float]:
        """Return the differences by their index, without the rows that either model left out."""
        pairs = enumerate(zip(self.after.points, self.before.points, strict=True))
        return {i: after - before for i, (after, before) in pairs if not math.isnan(after - before)}


class Forgetting(Probe):
    """Run the other probes on a model and on models that were trained further from it; report the differences.

    A later model without a language-model head, such as a classifier, gets the head of the first one: what is measured
    is what its body still knows. It needs the architecture and the tokenizer of the first model.
    """

    paper: ClassVar[str] = "Merchant et al. 2020, What Happens To BERT Embeddings During Fine-tuning?"
    needs_head: ClassVar[bool] = False
    needs_untrained: ClassVar[bool] = False
    fewest_models: ClassVar[int] = 2
    over_run: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Prepare the other probes; those without data are left out, and the page says why."""
        if self.settings.text is not None:
            raise RecipeError(
                "--text is set for forgetting",
                allowed="It reads the data of the other probes",
                do="Leave out --text, or name another probe",
            )
        settings = ProbeSettings.model_validate(self.settings.model_dump() | {"probes": [], "over_run": False})
        classes = {name: registry.resolve("probes", name) for name in registry.names("probes")}
        # Attributions describe single predictions, and have no figure of what a network knows.
        probes: dict[str, Probe] = {name: each(settings) for name, each in classes.items() if each.over_run}
        for probe in probes.values():
            probe.share = self.share
        self._left_out = {name: reason for name, probe in probes.items() if (reason := probe.prepare()) is not None}
        self._probes = {name: probe for name, probe in probes.items() if name not in self._left_out}
        self._first: ProbedCheckpoint | None = None
        return None if self._probes else "no other probe has data; set HEADSTART_DATA to the data folder"

    def reason_against(self, network: ProbedNetwork) -> str | None:
        """Return why a later model cannot be compared: its body or its tokenizer is not that of the first model."""
        reason = super().reason_against(network)
        if reason is not None or self._first is None:
            return reason
        first = self._first.trained()
        if first.tokenizer.get_vocab() != network.tokenizer.get_vocab():
            return f"its tokenizer is not that of {first.name}, so their figures are of different rows"
        if network.has_head or not first.has_head:
            return None
        theirs = network.model.base_model.state_dict()
        lacking = [
            name
            for name, tensor in first.model.base_model.state_dict().items()
            if name not in theirs or theirs[name].shape != tensor.shape
        ]
        return (
            f"its network is not that of {first.name}: {lacking[0]} is missing or of another size" if lacking else None
        )

    def measure(self, network: ProbedNetwork) -> _Found:
        """Run the other probes; the first model that is measured is the one before."""
        if self._first is None:
            self._first = ProbedCheckpoint(str(network.folder), self.settings.seed)
            found = self._run(network)
            return _Found(found, self._run(self._first.untrained(network.has_head), found))
        return _Found(self._run(self._with_head(network)), {})

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the differences of all figures that a later model shares with the first one."""
        first, *later = measured
        changes = [change for each in later for change in self._changes(first, each)]
        scores = [
            ProbeScore(
                change.model, f"{change.probe}: {change.before.measure}, after − before", change.difference,
                {"untrained": _minus(change.untrained, change.before.estimate.value)}, unit=change.before.unit,
            )
            for change in changes
        ]  # fmt: skip
        rows = [_row(first.model, change) for change in changes]
        without = [name for name in self._probes if name not in {change.probe for change in changes}]
        sections = [_section(first.model, changes, without, self._left_out)]
        return ProbeReport(
            scores, sections, {"before": first.model, "changes": rows}, {"forgetting": rows} if rows else {}
        )

    def _with_head(self, network: ProbedNetwork) -> ProbedNetwork:
        """Return a later network; one without a language-model head on the first model's."""
        assert self._first is not None
        first = self._first.trained()
        if network.has_head or not first.has_head:
            return network
        wanted = first.model.base_model.state_dict().keys()
        body = {name: tensor for name, tensor in network.model.base_model.state_dict().items() if name in wanted}
        first.model.base_model.load_state_dict(body)
        return ProbedNetwork(network.name, network.folder, network.family, first.model, first.tokenizer, has_head=True)

    def _run(self, network: ProbedNetwork, only: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {
            name: probe.measure(network)
            for name, probe in self._probes.items()
            if (only is None or name in only) and probe.reason_against(network) is None
        }

    def _changes(self, first: Measured, later: Measured) -> list[Change]:
        changes = []
        for name, probe in self._probes.items():
            if name not in first.trained.trained or name not in later.trained.trained:
                continue
            untrained = first.trained.untrained[name]
            parts = [
                probe.report([Measured(each.model, each.family, each.trained.trained[name], untrained)]).scores
                for each in (first, later)
            ]
            after = {score.measure: score for score in parts[1]}
            changes += [
                Change(later.model, name, score, after[score.measure], score.baselines.get("untrained"))
                for score in parts[0]
                if score.measure in after
            ]
        return changes


def _independent(before: Estimate, after: Estimate) -> Estimate:
    """Return a difference whose interval treats both figures as independent."""
    if before.value is None or after.value is None:
        return Estimate(None)
    value = after.value - before.value
    ends = (before.low, before.high, after.low, after.high)
    if any(end is None for end in ends):
        return Estimate(value)
    low, high, later_low, later_high = (end or 0.0 for end in ends)
    down = math.hypot(after.value - later_low, high - before.value)
    up = math.hypot(later_high - after.value, before.value - low)
    return Estimate(value, value - down, value + up)


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _row(before: str, change: Change) -> dict[str, Any]:
    return {
        "before": before, "after": change.model, "probe": change.probe, "measure": change.before.measure,
        "unit": change.before.unit, "value_before": change.before.estimate.value,
        "value_after": change.after.estimate.value,
        **{f"difference{'' if k == 'value' else f'_{k}'}": v for k, v in asdict(change.difference).items()},
        "is_paired": change.is_paired, "untrained": change.untrained,
    }  # fmt: skip


def _section(
    before: str, changes: Sequence[Change], without: Sequence[str], left_out: Mapping[str, str]
) -> ReportSection:
    notes = [
        f"Before: {before}. A negative difference is what a later model has lost, except for bias, where the sign only "
        "says in which direction it moved. Intervals (95 %) are the bootstrap's over the same rows, for bias over the "
        "same names and templates; where a figure is not a mean over rows, both are taken as independent. The last "
        "column is the same figure of the untrained network: what would be left if everything were forgotten.",
        "A later model without a language-model head was given that of the first one. The head was trained for the "
        "first body, so part of a loss may be that the two no longer fit, and not that knowledge is gone.",
    ]
    few = dict.fromkeys(change.probe for change in changes if change.is_over_few)
    if few:
        notes.append(
            f"Figures over fewer than {_FEW} rows are among those of {' and '.join(few)}. Intervals over so few are "
            "too narrow."
        )
    notes += [f"{name}: {reason}." for name, reason in left_out.items()]
    if without:
        notes.append(f"Without a figure that both models have: {', '.join(without)}.")
    if not changes:
        return ReportSection("Forgetting", [*notes, "No later model shares a figure with the first one."])
    rows = [
        [
            Quoted(change.model), change.probe, change.before.measure, change.before.shown(), change.after.shown(),
            ProbeScore("", "", change.difference, {}, change.before.unit).shown(),
            "–" if change.untrained is None else change.before.number(change.untrained),
        ]
        for change in changes
    ]  # fmt: skip
    header = ["model", "probe", "measure", "before", "after", "after − before", "untrained"]
    table = ReportTable("Before and after (fractions × 100)", header, rows, [False, False, False, *[True] * 4])
    return ReportSection("Forgetting", notes, _charts(changes), [table])


def _charts(changes: Sequence[Change]) -> list[Any]:
    """Return the differences of fractions, one chart for each later model."""
    charts = []
    for model in dict.fromkeys(change.model for change in changes):
        bars = [
            IntervalRow(f"{change.probe}: {change.before.measure}", *_scaled(change))
            for change in changes
            if change.model == model and change.before.scale == 100 and change.difference.value is not None
        ]
        if bars:
            charts.append(interval_chart(f"{model}: after − before, × 100", bars))
    return charts


def _scaled(change: Change) -> tuple[float, float | None, float | None]:
    found = change.difference
    low, high = (None if end is None else 100 * end for end in (found.low, found.high))
    return 100 * (found.value or 0.0), low, high
