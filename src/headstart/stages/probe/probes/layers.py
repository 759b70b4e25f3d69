"""Layers: what a linear classifier reads from each layer, and how similar layers and networks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from headstart.evaluation.intervals import Estimate
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.hidden.cka import linear_cka, unit_grams
from headstart.stages.probe.hidden.label_tasks import LabeledText, read_entities, read_treebank
from headstart.stages.probe.hidden.layer_charts import decimal, layer_charts
from headstart.stages.probe.hidden.layer_scores import TaskHits, fit_task
from headstart.stages.probe.hidden.linear_probes import center_of_gravity
from headstart.stages.probe.hidden.states import States, WordStates, word_states
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore, data_file, percent, sample

_TREEBANK, _ENTITIES = "tasks/ud-ewt-trees/test.parquet", "tasks/wikiann/en/test.parquet"
_SENTENCES = 450
_COMPARED_WORDS = 1000
"""Words by whose states layers are compared."""
_FEWEST_COMPARED = 20
_TITLES = {"tags": "Part-of-speech tags", "relations": "Dependency relations", "entities": "Entities"}


@dataclass(frozen=True)
class _Found:
    layers: list[int]
    tasks: list[TaskHits]
    words: list[tuple[int, int]]
    """The words by which layers are compared: sentence and position of each."""
    states: States
    """(layers, words, hidden) of these words."""


@dataclass(frozen=True)
class _LayerScore:
    layer: int
    accuracy: Estimate
    control: float
    selectivity: Estimate
    weight: float


@dataclass(frozen=True)
class _TaskScore:
    """The best layer of a model for a task, beside the baselines."""

    task: str
    labels: int
    train: int
    test: int
    best_layer: int
    accuracy: Estimate
    layer_0: float
    untrained: Estimate
    lead: Estimate
    """Over the untrained network."""
    majority: float
    control: float
    selectivity: Estimate
    untrained_selectivity: Estimate
    expected_layer: Estimate
    untrained_expected_layer: Estimate
    center_of_gravity: float
    untrained_center_of_gravity: float
    layers: list[_LayerScore]
    untrained_layers: list[_LayerScore]


class Layers(Probe):
    """Fit linear probes to the states of words after each layer, with control tasks, and compare layers by CKA.

    Reads a treebank, by default English UD (`tags`; `heads` and `relations`), and words with entities. With `--text`, a
    table with the columns `tokens` and `tags`, or `tokens`, `heads` and `relations`, replaces both.
    """

    paper: ClassVar[str] = (
        "Hewitt & Liang 2019, control tasks; Tenney et al. 2019, layer weights; Kornblith et al. 2019, CKA"
    )
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder")
    data: ClassVar[tuple[str, ...]] = (_TREEBANK, _ENTITIES)
    needs_head: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Read the words and their labels."""
        limit, seed = self.row_count(_SENTENCES, fewest=120), self.settings.seed
        self.texts: list[LabeledText] = []
        if self.settings.text is not None:
            self.texts.append(read_treebank(Path(self.settings.text), self.settings.text, limit, seed))
        else:
            files = ((_TREEBANK, read_treebank), (_ENTITIES, read_entities))
            found = [(read, name, path) for name, read in files if (path := data_file(name)) is not None]
            self.texts += [read(path, name, limit, seed) for read, name, path in found]
        if not self.texts:
            return f"there is no {_TREEBANK} in the data folder; set HEADSTART_DATA to it, or pass a treebank as --text"
        words = [(i, k) for i, sentence in enumerate(self.texts[0].sentences) for k in range(len(sentence))]
        self.compared = [words[i] for i in sample(len(words), _COMPARED_WORDS, seed, "layers words")]
        return None

    def measure(self, network: ProbedNetwork) -> _Found:
        """Fit the probes to all layers, and keep the states of some words to compare layers."""
        tasks: list[TaskHits] = []
        kept: WordStates | None = None
        for text in self.texts:
            states = word_states(network, text.sentences, text.source)
            tasks += [fit_task(states, task, self.settings.seed) for task in text.tasks]
            kept = kept or states
        assert kept is not None
        row_of = {key: row for row, key in enumerate(kept.keys())}
        words = [key for key in self.compared if key in row_of]
        return _Found(kept.layers, tasks, words, kept.values[:, [row_of[key] for key in words]])

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the scores of the probes by layer, and the similarities of layers."""
        scored = {each.model: _score_all(each) for each in measured}
        similarities = _similarities(measured)
        sections = [self._task_section(scored)]
        sections += [_layer_section(model, scores) for model, scores in scored.items()]
        sections.append(_similarity_section(measured, similarities))
        numbers = {
            "data": [text.source for text in self.texts],
            "models": {
                each.model: {"layers": each.trained.layers, "tasks": [asdict(task) for task in scored[each.model]]}
                for each in measured
            },
            "cka": [{"left": left, "right": right, "values": values.tolist()}
                    for (left, right), values in similarities.items()],
        }  # fmt: skip
        tables = {"layers": [row for model, scores in scored.items() for row in _layer_rows(model, scores)]}
        scores = [score for model, found in scored.items() for score in _main_scores(model, found)]
        return ProbeReport(scores, sections, numbers, tables)

    def _task_section(self, scored: Mapping[str, Sequence[_TaskScore]]) -> ReportSection:
        sources = " and ".join(f"{len(text.sentences):,} sentences of {text.source}" for text in self.texts)
        notes = [
            "A linear classifier predicts the label of a word from its state after a layer, a relation from the states "
            f"of both words. Data: {sources}; two thirds of the sentences train it, one third tests it. A word's "
            "state is the mean over its tokens. Intervals: 95 %, bootstrap over sentences. The layer is chosen on one "
            "half of the test sentences and scored on the other, both ways round; the named layer is the best over "
            "all of them.",
            "What a classifier finds in a layer, the network need not use. The control task gives each word a random "
            "label, the same wherever it occurs: a classifier can only learn it by heart. Selectivity is the accuracy "
            "minus that on the control task (Hewitt & Liang 2019). Layer 0, the embeddings, knows the word but not its "
            "context.",
            "The expected layer is the mean layer at which the accuracy rises above that of all earlier ones, weighted "
            "by the rise; it is not defined where the interval of the whole rise includes zero. The center of gravity "
            "is the mean layer by the weights of a learned mix of all layers (Tenney et al. 2019). Where the center of "
            "the untrained network is near, the method prefers that layer, not the network.",
        ]
        return ReportSection(
            "What layers know", notes, _charts(scored), [_accuracy_table(scored), _center_table(scored)]
        )


def _accuracy_table(scored: Mapping[str, Sequence[_TaskScore]]) -> ReportTable:
    rows = [
        [
            Quoted(model), task.task, f"{task.train:,} / {task.test:,}", str(task.labels), str(task.best_layer),
            percent(task.accuracy), f"{100 * task.layer_0:.1f}", percent(task.untrained), percent(task.lead, "+"),
            f"{100 * task.majority:.1f}",
        ]
        for model, scores in scored.items()
        for task in scores
    ]  # fmt: skip
    header = [
        "model", "task", "words to train / test", "labels", "best layer", "accuracy × 100", "layer 0", "untrained",
        "lead over untrained", "most frequent label",
    ]  # fmt: skip
    return ReportTable("Best layer", header, rows, [False, False, *[True] * 8])


def _center_table(scored: Mapping[str, Sequence[_TaskScore]]) -> ReportTable:
    rows = [
        [
            Quoted(model), task.task, f"{100 * task.control:.1f}", percent(task.selectivity, "+"),
            percent(task.untrained_selectivity, "+"), decimal(task.expected_layer),
            decimal(task.untrained_expected_layer), f"{task.center_of_gravity:.2f}",
            f"{task.untrained_center_of_gravity:.2f}",
        ]
        for model, scores in scored.items()
        for task in scores
    ]  # fmt: skip
    header = [
        "model", "task", "control task × 100", "selectivity", "untrained: selectivity", "expected layer",
        "untrained: expected layer", "center of gravity", "untrained: center of gravity",
    ]  # fmt: skip
    return ReportTable(
        "Selectivity of the best layer, and where the labels are", header, rows, [False, False, *[True] * 7]
    )


def _score_all(each: Measured) -> list[_TaskScore]:
    return [
        _score(each.trained.layers, trained, untrained)
        for trained, untrained in zip(each.trained.tasks, each.untrained.tasks, strict=True)
    ]


def _score(layers: Sequence[int], trained: TaskHits, untrained: TaskHits) -> _TaskScore:
    hits, control = trained.best()
    other_hits, other_control = untrained.best()
    return _TaskScore(
        trained.name, trained.labels, trained.train, trained.test, layers[int(trained.hits.mean(1).argmax())],
        trained.estimate(hits), float(trained.hits[0].mean()), untrained.estimate(other_hits),
        trained.estimate(hits.astype(np.int64) - other_hits), trained.majority, float(control.mean()),
        trained.estimate(hits.astype(np.int64) - control),
        untrained.estimate(other_hits.astype(np.int64) - other_control),
        trained.expected_layer(layers), untrained.expected_layer(layers),
        center_of_gravity(layers, trained.weights), center_of_gravity(layers, untrained.weights),
        _by_layer(layers, trained), _by_layer(layers, untrained),
    )  # fmt: skip


def _by_layer(layers: Sequence[int], found: TaskHits) -> list[_LayerScore]:
    return [
        _LayerScore(
            layer, found.estimate(found.hits[row]), float(found.control[row].mean()),
            found.estimate(found.hits[row].astype(np.int64) - found.control[row]), found.weights[row],
        )
        for row, layer in enumerate(layers)
    ]  # fmt: skip


def _main_scores(model: str, scores: Sequence[_TaskScore]) -> list[ProbeScore]:
    found = []
    for task in scores:
        baselines: dict[str, float | None] = {
            "untrained": task.untrained.value, "layer_0": task.layer_0, "majority": task.majority,
            "control": task.control,
        }  # fmt: skip
        found.append(ProbeScore(model, f"{task.task}, best layer", task.accuracy, baselines))
        untrained = {"untrained": task.untrained_selectivity.value}
        found.append(ProbeScore(model, f"{task.task}, selectivity", task.selectivity, untrained))
    return found


def _charts(scored: Mapping[str, Sequence[_TaskScore]]) -> list[Markup]:
    """Draw accuracy and selectivity of each task by layer, trained and untrained."""
    charts = {}
    for number, task in enumerate(next(iter(scored.values()))):
        for measure in ("accuracy", "selectivity"):
            charts[f"{_TITLES[task.task]}: {measure} × 100"] = {
                model: (_of(scores[number].layers, measure), _of(scores[number].untrained_layers, measure))
                for model, scores in scored.items()
            }
    return layer_charts(charts, "× 100", percent, 100.0)


def _of(layers: Sequence[_LayerScore], measure: str) -> list[tuple[int, Estimate]]:
    return [(layer.layer, getattr(layer, measure)) for layer in layers]


def _layer_section(model: str, scores: Sequence[_TaskScore]) -> ReportSection:
    tables = []
    for task in scores:
        rows = [
            [
                str(layer.layer), percent(layer.accuracy), f"{100 * layer.control:.1f}",
                percent(layer.selectivity, "+"), f"{layer.weight:.2f}", percent(other.accuracy),
                percent(other.selectivity, "+"), f"{other.weight:.2f}",
            ]
            for layer, other in zip(task.layers, task.untrained_layers, strict=True)
        ]  # fmt: skip
        header = ["layer", "accuracy × 100", "control task", "selectivity", "weight in the mix"]
        header += ["untrained: accuracy × 100", "untrained: selectivity", "untrained: weight in the mix"]
        tables.append(ReportTable(_TITLES[task.task], header, rows, [True] * len(header)))
    return ReportSection(Quoted(f"Linear probes of {model} by layer"), (), (), tables)


def _similarities(measured: Sequence[Measured]) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
    """Return the similarities of layers within each model, of the model with itself untrained, and between models."""
    found = {}
    for each in measured:
        grams, untrained = unit_grams(each.trained.states), unit_grams(each.untrained.states)
        found[each.model, each.model] = linear_cka(grams, grams)
        found[each.model, f"{each.model}, untrained"] = linear_cka(grams, untrained)
    for left, right in combinations(measured, 2):
        common = sorted({*left.trained.words} & {*right.trained.words})
        if len(common) >= _FEWEST_COMPARED:
            sides = [
                each.trained.states[:, [each.trained.words.index(key) for key in common]] for each in (left, right)
            ]
            found[left.model, right.model] = linear_cka(*map(unit_grams, sides))
    return found


def _similarity_section(
    measured: Sequence[Measured], similarities: Mapping[tuple[str, str], npt.NDArray[np.float64]]
) -> ReportSection:
    layers = {each.model: each.trained.layers for each in measured}
    layers |= {f"{each.model}, untrained": each.trained.layers for each in measured}
    tables = []
    for (left, right), values in similarities.items():
        rows = [
            [f"{layer}", *(f"{100 * value:.0f}" for value in row)]
            for layer, row in zip(layers[left], values, strict=True)
        ]
        shades = [[round(9 * min(1.0, max(0.0, value))) for value in row] for row in values.tolist()]
        caption = Quoted(
            f"CKA × 100 between layers of {left}" if left == right else f"CKA × 100: rows {left}, columns {right}"
        )
        header = ["layer", *map(str, layers[right])]
        tables.append(ReportTable(caption, header, rows, [True] * len(header), shades))
    notes = [
        f"Linear CKA (Kornblith et al. 2019) of the states of {len(measured[0].trained.words):,} words, without bias "
        "(Song et al. 2012): 100 for states that differ by a rotation and a scale, 0 for independent ones. The "
        "similarity with the same network untrained is what words and positions alone give. A few dimensions with "
        "large values can decide it. Where a fine-tuned model is beside its parent, a low value on the diagonal shows "
        "the layers that fine-tuning changed.",
    ]
    return ReportSection("Similarity of layers", notes, (), tables)


def _layer_rows(model: str, scores: Sequence[_TaskScore]) -> list[dict[str, Any]]:
    return [
        {
            "model": model, "is_trained": layers is task.layers, "task": task.task, "layer": layer.layer,
            "accuracy": layer.accuracy.value, "accuracy_low": layer.accuracy.low, "accuracy_high": layer.accuracy.high,
            "control": layer.control, "selectivity": layer.selectivity.value, "selectivity_low": layer.selectivity.low,
            "selectivity_high": layer.selectivity.high, "weight": layer.weight, "train": task.train, "test": task.test,
        }
        for task in scores
        for layers in (task.layers, task.untrained_layers)
        for layer in layers
    ]  # fmt: skip
