"""Words in two sentences, in the same sense or not: how well the cosine of their states tells which (WiC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.core.errors import DataError
from headstart.evaluation.intervals import Estimate, bootstrap_auc
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.hidden.layer_charts import decimal, layer_charts
from headstart.stages.probe.hidden.similarity import pair_cosines
from headstart.stages.probe.hidden.states import word_states
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import read_columns, sample


@dataclass(frozen=True)
class SensePair:
    """Two sentences as words, the position of the same word in each, and whether it has the same sense in both."""

    sentences: tuple[list[str], list[str]]
    positions: tuple[int, int]
    is_same: bool


@dataclass(frozen=True)
class SenseCosines:
    """The cosines of the words of each pair after each layer."""

    layers: list[int]
    cosines: npt.NDArray[np.float64]
    """(layers, pairs)"""
    is_same: npt.NDArray[np.bool_]

    def areas(self) -> list[tuple[int, Estimate]]:
        """Return each layer, and how often a pair of the same sense has a higher cosine than one of two senses."""
        found = [bootstrap_auc(cosines.tolist(), self.is_same.tolist()) for cosines in self.cosines]
        return list(zip(self.layers, found, strict=True))


SenseAreas = tuple[list[tuple[int, Estimate]], list[tuple[int, Estimate]]]
"""The areas under the ROC curve by layer, of the trained and of the untrained network."""


def read_sense_pairs(path: Path, limit: int, seed: int) -> list[SensePair]:
    """Return a sample of the pairs of a table in WiC's form: `indexes` such as 2-1, `label` T or F."""
    rows = read_columns(path, ("sentence1", "sentence2", "indexes", "label"))
    # The draw has the former name of the probe, so that it stays the same.
    return [_pair(path, i + 1, rows[i]) for i in sample(len(rows), limit, seed, "neighbours senses")]


def _pair(path: Path, number: int, row: dict[str, Any]) -> SensePair:
    sentences = (row["sentence1"].split(), row["sentence2"].split())
    first, _, second = row["indexes"].partition("-")
    if not (first.isdecimal() and second.isdecimal() and row["label"] in ("T", "F")):
        raise DataError(
            f"{path}, row {number}: indexes {row['indexes']!r} and label {row['label']!r}",
            allowed="Indexes are two numbers, such as 2-1, and the label is T or F",
            do="Repair or remove the row",
        )
    positions = (int(first), int(second))
    if any(position >= len(sentence) for position, sentence in zip(positions, sentences, strict=True)):
        raise DataError(f"{path}, row {number}: a sentence has no word {row['indexes']}", do="Repair or remove the row")
    return SensePair(sentences, positions, row["label"] == "T")


def sense_cosines(network: ProbedNetwork, pairs: Sequence[SensePair]) -> SenseCosines:
    """Return the cosines of the pairs whose sentences both fit the network."""
    states = word_states(network, [sentence for pair in pairs for sentence in pair.sentences], "the pairs of sentences")
    row_of = {key: row for row, key in enumerate(states.keys())}
    keys = [((2 * i, pair.positions[0]), (2 * i + 1, pair.positions[1])) for i, pair in enumerate(pairs)]
    usable = [i for i, (left, right) in enumerate(keys) if left in row_of and right in row_of]
    left, right = ([row_of[keys[i][side]] for i in usable] for side in (0, 1))
    cosines = pair_cosines(states.values[:, left], states.values[:, right])
    return SenseCosines(states.layers, cosines, np.array([pairs[i].is_same for i in usable], dtype=bool))


def sense_section(source: str, pairs: int, areas: Mapping[str, SenseAreas]) -> ReportSection:
    """Return by layer how well the cosine tells whether a word has the same sense in two sentences."""
    tables = []
    for model, (trained, untrained) in areas.items():
        rows = [
            [str(layer), decimal(area), decimal(other)]
            for (layer, area), (_, other) in zip(trained, untrained, strict=True)
        ]
        tables.append(ReportTable(Quoted(model), ["layer", "area", "untrained: area"], rows, [True] * 3))
    notes = [
        f"A word in two sentences has the same sense or not: {pairs:,} pairs of {source} (WiC, Pilehvar & "
        "Camacho-Collados 2019). The area under the ROC curve is how often a pair of the same sense has a higher "
        "cosine than a pair of two senses; 0.5 is chance. Layer 0 knows the word and its position only. Nothing is "
        "trained. Intervals: 95 %, bootstrap over pairs."
    ]
    figures = layer_charts({"Same sense or not: area under the ROC curve": areas}, "area")
    return ReportSection("Senses of words", notes, figures, tables)
