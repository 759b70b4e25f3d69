"""Bias: how predictions change if only the name of a group in a sentence changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml

from headstart.core.errors import DataError
from headstart.core.pages.charts import IntervalRow, interval_chart
from headstart.evaluation.intervals import Estimate, bootstrap_mean
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.evaluation.resampling import CrossedDesign
from headstart.stages.probe.likelihood import log_likelihoods, token_batches
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore, percent, read_columns, sample
from headstart.tasks.framing import frame

TEMPLATES = Path(__file__).parents[1] / "bias_templates.yaml"
_MOST_ROWS = 64
_FEW = 10
"""Comparisons of an axis from which a bootstrap interval is of use."""
_OWN_AXIS = "all pairs"


@dataclass(frozen=True)
class SentencePair:
    """Two sentences that differ in the name of a group, and the weight of their difference."""

    first: str
    second: str
    weight: float = 1.0


@dataclass(frozen=True)
class Comparison:
    """Two names in one template with all attributes, or one pair of a file of the user."""

    axis: str
    names: str
    template: str
    """Empty for a pair of the user."""
    is_control: bool
    pairs: list[SentencePair]


@dataclass(frozen=True)
class _Found:
    values: list[float]
    """For each comparison: the association of a language model in nats, or the mean change of a classifier."""
    by_label: list[list[float]]
    """For each comparison of a classifier: the probability of each label for the first name minus for the second."""
    labels: list[str]
    """The labels of a classifier; empty for a language model."""
    is_number: bool
    """Whether the classifier predicts a number."""

    @property
    def unit(self) -> str:
        """The unit of the values."""
        return "× 100" if self.labels and not self.is_number else "" if self.is_number else "nats"


class Bias(Probe):
    """Compare sentences that differ in the name of a group: by likelihood, or by the scores of a classifier of texts.

    Reads templates in English that are part of the package. With `--text`, it reads a table with the columns `first`
    and `second` and, where it exists, `axis`.
    """

    paper: ClassVar[str] = "Caliskan et al. 2017, WEAT; Nangia et al. 2020, CrowS-Pairs; limits: Blodgett et al. 2021"
    figures_need_untrained: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Fill the templates, or read the pairs of the user."""
        if self.settings.text is None:
            self.source, self.comparisons = TEMPLATES.name, self._sampled(fill_templates(TEMPLATES))
            return None
        rows = read_columns(self.settings.text, ("first", "second"), ("axis",))
        chosen = sample(len(rows), self.settings.limit or len(rows), self.settings.seed, "bias pairs")
        self.source = self.settings.text
        self.comparisons = [
            Comparison(
                str(rows[i].get("axis") or _OWN_AXIS),
                f"row {i + 1}",
                "",
                False,
                [SentencePair(rows[i]["first"], rows[i]["second"])],
            )
            for i in chosen
        ]
        return None

    def reason_against(self, network: ProbedNetwork) -> str | None:
        """Return why there is nothing to compare: the checkpoint predicts neither tokens nor labels."""
        reason = super().reason_against(network)
        if reason is None and network.outputs is None and not network.has_head:
            return "the checkpoint has neither a classifier of texts nor a language-model head, so it predicts nothing"
        return reason

    def measure(self, network: ProbedNetwork) -> _Found:
        """Return the differences of all comparisons."""
        pairs = [pair for comparison in self.comparisons for pair in comparison.pairs]
        texts = list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))
        found = self._associations(network, texts) if network.outputs is None else self._changes(network, texts)
        if all(map(math.isnan, found.values)):
            raise DataError(f"no pair of {self.source} fits {network.name}", do="Pass shorter sentences")
        return found

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the figure of each axis beside its control and the untrained network."""
        scores = [score for each in measured for score in self.figures(each)]
        sections = [self._warning(measured), *(self._section(each) for each in measured)]
        numbers = {each.model: self._numbers(each) for each in measured}
        rows = [row for each in measured for row in self._rows(each)]
        return ProbeReport(scores, sections, {"data": self.source, "models": numbers}, {"bias": rows})

    def figures(self, each: Measured) -> list[ProbeScore]:
        """Return the figure of each axis beside its control."""
        scores, found = [], each.trained
        for axis in self._axes():
            beside = {} if each.untrained is None else {"untrained": self._mean(each.untrained, axis).value}
            beside["control"] = self._mean(found, axis, is_control=True).value
            indices, name = self._indices(axis), f"{_MEASURES[bool(found.labels)]}, {axis}"
            points, design = [found.values[i] for i in indices], self._design(indices)
            mean = self._mean(found, axis)
            scores.append(ProbeScore(each.model, name, mean, beside, found.unit, points, design))
        return scores

    def _sampled(self, comparisons: list[Comparison]) -> list[Comparison]:
        """Return at most `limit` comparisons of each axis, and of its control."""
        groups: dict[tuple[str, bool], list[Comparison]] = {}
        for comparison in comparisons:
            groups.setdefault((comparison.axis, comparison.is_control), []).append(comparison)
        return [
            group[i]
            for (axis, is_control), group in groups.items()
            for i in sample(
                len(group), self.row_count(len(group), fewest=_FEW), self.settings.seed, f"bias {axis} {is_control}"
            )
        ]

    def _associations(self, network: ProbedNetwork, texts: list[str]) -> _Found:
        values = dict(zip(texts, log_likelihoods(network, texts), strict=True))
        found = [
            sum(pair.weight * (values[pair.first] - values[pair.second]) for pair in comparison.pairs)
            for comparison in self.comparisons
        ]
        return _Found(found, [], [], False)

    def _changes(self, network: ProbedNetwork, texts: list[str]) -> _Found:
        assert network.outputs is not None
        scores = dict(zip(texts, classify(network, texts), strict=True))
        is_number, has_one_label = network.outputs.kind == "number", network.outputs.kind == "label"
        values, by_label = [], []
        for comparison in self.comparisons:
            differences = np.array([scores[pair.first] - scores[pair.second] for pair in comparison.pairs])
            # Of probabilities that sum to one, the total variation distance; else a mean over labels.
            sizes = np.abs(differences).sum(1) / (2 if has_one_label else differences.shape[1])
            values.append(float(sizes.mean()))
            by_label.append([float(value) for value in differences.mean(0)])
        return _Found(values, by_label, network.outputs.labels, is_number)

    def _axes(self) -> list[str]:
        return list(dict.fromkeys(comparison.axis for comparison in self.comparisons))

    def _indices(self, axis: str, is_control: bool = False) -> list[int]:
        return [i for i, c in enumerate(self.comparisons) if c.axis == axis and c.is_control == is_control]

    def _mean(self, found: _Found, axis: str, is_control: bool = False) -> Estimate:
        return self._estimate(found.values, self._indices(axis, is_control))

    def _estimate(self, values: Sequence[float], indices: Sequence[int]) -> Estimate:
        """Return the mean over comparisons; names and templates are redrawn, because they recur in several of them."""
        known = [i for i in indices if not math.isnan(values[i])]
        if not known:
            return Estimate(None)
        return bootstrap_mean([values[i] for i in known], self._design(known))

    def _design(self, indices: Sequence[int]) -> CrossedDesign:
        chosen = [self.comparisons[i] for i in indices]
        return CrossedDesign([c.names for c in chosen], [c.template for c in chosen])

    def _warning(self, measured: Sequence[Measured]) -> ReportSection:
        notes = [
            f"Pairs of sentences that differ only in the name of a group: {self.source}. For a language model, the "
            "association is how much likelier the first name is than the second with the first attributes, beyond how "
            "much likelier it is with the second attributes; 0 is none. For a classifier, the change is how far its "
            "probabilities move when the name changes (total variation distance); it is never negative, so only the "
            "part above the control means anything.",
            "Control: names within one group. It shows how large a figure is that has nothing to do with the groups. "
            "Intervals (95 %) are the bootstrap's over names and templates; three templates for an axis are few. They "
            "say nothing about other words.",
            "Limits: a few groups, a few stereotypes, English, short sentences. A small figure does not show that a "
            "model is fair, nor a large one that it does harm where it is used; both depend on the task and its data "
            "(Blodgett et al. 2021). Measure on texts of your own, too.",
        ]
        if any(len(self._indices(axis)) < _FEW for axis in self._axes()):
            notes.append(f"An axis has fewer than {_FEW} comparisons. Intervals over so few are too narrow.")
        for each in measured:
            skipped = sum(map(math.isnan, each.trained.values))
            if skipped:
                notes.append(f"{each.model}: {skipped:,} comparisons were left out, because a sentence is too long.")
        return ReportSection("Bias", notes)

    def _section(self, each: Measured) -> ReportSection:
        found, unit, rows, bars = each.trained, each.trained.unit, [], []
        scale = 100.0 if unit == "× 100" else 1.0
        for axis in self._axes():
            names = ((axis, False), (f"{axis}, control", True))
            for name, is_control in names if self._indices(axis, True) else names[:1]:
                value, untrained = (self._mean(part, axis, is_control) for part in (found, each.untrained))
                rows.append([Quoted(name), str(len(self._indices(axis, is_control))), *_both(unit, value, untrained)])
                if value.value is not None:
                    ends = [None if end is None else scale * end for end in (value.low, value.high)]
                    bars.append(IntervalRow("control" if is_control else axis, scale * value.value, *ends))
        measure = _MEASURES[bool(found.labels)] + (" × 100" if scale == 100 else "")
        header = ["axis", "comparisons", measure, "untrained"]
        tables = [ReportTable(measure, header, rows, [False, True, True, True])]
        if found.labels:
            tables.append(self._label_table(found))
        chart = interval_chart(f"{each.model}: {measure}", bars)
        return ReportSection(Quoted(f"Bias of {each.model}"), (), [chart], tables)

    def _label_table(self, found: _Found) -> ReportTable:
        """Return the signed change of each label: positive if the first name of a pair has the higher probability."""
        rows = []
        for axis in self._axes():
            indices = self._indices(axis)
            means = [self._estimate([label[k] for label in found.by_label], indices) for k in range(len(found.labels))]
            rows.append([Quoted(axis), *(_text("" if found.is_number else "× 100", value, "+") for value in means)])
        header = ["axis", *(Quoted(label or "number") for label in found.labels)]
        caption = "First name minus second name, by label" + ("" if found.is_number else " × 100")
        return ReportTable(caption, header, rows, [False, *[True] * len(found.labels)])

    def _numbers(self, each: Measured) -> dict[str, Any]:
        return {
            axis: {
                "unit": each.trained.unit,
                "value": asdict(self._mean(each.trained, axis)),
                "control": asdict(self._mean(each.trained, axis, is_control=True)),
                "untrained": asdict(self._mean(each.untrained, axis)),
                "untrained_control": asdict(self._mean(each.untrained, axis, is_control=True)),
            }
            for axis in self._axes()
        }

    def _rows(self, each: Measured) -> list[dict[str, Any]]:
        return [
            {
                "model": each.model, "axis": comparison.axis, "is_control": comparison.is_control,
                "names": comparison.names, "first": comparison.pairs[0].first, "second": comparison.pairs[0].second,
                "value": each.trained.values[i], "untrained": each.untrained.values[i],
                "by_label": each.trained.by_label[i] if each.trained.by_label else None,
            }
            for i, comparison in enumerate(self.comparisons)
        ]  # fmt: skip


_MEASURES = {False: "association in nats", True: "change of the scores"}
"""The name of the figure of a language model, and of a classifier."""


def fill_templates(path: Path) -> list[Comparison]:
    """Return the comparisons of a file of templates: every pair of names in every template, with all attributes."""
    comparisons = []
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        weights = [(word, 1 / len(entry["attributes"][0])) for word in entry["attributes"][0]]
        weights += [(word, -1 / len(entry["attributes"][1])) for word in entry["attributes"][1]]
        for is_control, key in ((False, "groups"), (True, "control")):
            for names, template in product(entry[key], entry["templates"]):
                filled = [
                    SentencePair(first, second, weight)
                    for word, weight in weights
                    for first, second in [[template.format(group=name, attribute=word) for name in names]]
                ]
                comparisons.append(Comparison(entry["axis"], " / ".join(names), template, is_control, filled))
    return comparisons


def classify(network: ProbedNetwork, texts: Sequence[str]) -> list[Any]:
    """Return the probability of each label for each text as an array, or the number; NaN if the text is too long."""
    assert network.outputs is not None
    prefix, suffix = frame(network.tokenizer)
    rows = [[*prefix, *network.encode(text), *suffix] for text in texts]
    fitting = [i for i, row in enumerate(rows) if len(row) <= network.max_length]
    found: list[Any] = [np.full(len(network.outputs.labels), math.nan)] * len(texts)
    for indices in token_batches(fitting, [len(rows[i]) for i in fitting], _MOST_ROWS):
        with torch.inference_mode():
            logits = network.model(**network.batch([rows[i] for i in indices])).logits.double()
        if network.outputs.kind == "label":
            logits = logits.softmax(-1)
        elif network.outputs.kind == "labels":
            logits = logits.sigmoid()
        for i, row in zip(indices, logits.cpu().numpy(), strict=True):
            found[i] = row
    return found


def _both(unit: str, value: Estimate, untrained: Estimate) -> list[str]:
    return [_text(unit, value), _text(unit, untrained)]


def _text(unit: str, estimate: Estimate, sign: str = "") -> str:
    if unit == "× 100":
        return percent(estimate, sign)
    return ProbeScore("", "", estimate, {}, unit=unit).shown()
