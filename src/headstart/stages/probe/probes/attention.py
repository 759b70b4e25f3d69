"""Attention: what each head looks at, which relations of grammar heads find, and what the loss is without a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from headstart.core.errors import DataError
from headstart.core.pages.charts import link_chart
from headstart.evaluation.report.content import Quoted, ReportSection
from headstart.stages.probe.attention_maps import (
    HEAD_MEASURES,
    Maps,
    attention_maps,
    head_measures,
    most_attended,
    over_words,
    tokenize_words,
)
from headstart.stages.probe.heads.costs import HeadCosts, head_costs, reason_against_costs
from headstart.stages.probe.heads.relations import (
    Edges,
    RelationScore,
    RelationScores,
    relation_section,
    score_relations,
)
from headstart.stages.probe.heads.report import by_head, cost_numbers, cost_rows, cost_score, cost_section, matrix
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore, data_file, sample
from headstart.stages.probe.treebank import Tree, read_lines, read_trees
from headstart.tasks.table_files import SUFFIXES

_TREEBANK = "tasks/ud-ewt-trees/test.parquet"
_SENTENCES = 300
_FEWEST_EDGES = 30
"""Edges of a relation that is scored."""
_DRAWN_HEADS, _DRAWN_WORDS, _MOST_DRAWN = 6, (7, 14), 3
_SHOWN_MEASURES = {
    "first": "attention to the first token ([CLS], or the start of the text)",
    "last": "attention to the last token ([SEP])",
    "previous": "attention to the previous token",
    "next": "attention to the next token",
    "entropy": "entropy, in nats",
}


@dataclass(frozen=True)
class _Found:
    measures: Maps
    """(layers, heads, measures), means over sentences."""
    relations: dict[str, Edges]
    drawn: list[tuple[list[str], Maps]]
    """Sentences to draw, each with its maps over words."""
    sentences: int
    costs: HeadCosts | str
    """What switching off each head costs, or the reason why it cannot be measured."""


class Attention(Probe):
    """Describe every attention head, score heads as finders of relations against fixed offsets, and switch them off.

    Reads a treebank, by default English UD: the columns `tokens`, `heads` (1 is the first token, 0 the root) and
    `relations`. With `--text`, a table with these columns replaces it; the lines of a text file are sentences to draw.
    """

    paper: ClassVar[str] = "Clark et al. 2019, What Does BERT Look At?"
    data: ClassVar[tuple[str, ...]] = (_TREEBANK,)
    needs_head: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Read the treebank and the sentences to draw."""
        own = None if self.settings.text is None else Path(self.settings.text)
        is_table = own is not None and own.suffix.lower() in SUFFIXES
        path = own if is_table else data_file(_TREEBANK)
        lines = read_lines(own) if own is not None and not is_table else []
        if path is None and not lines:
            return f"there is no {_TREEBANK} in the data folder; set HEADSTART_DATA to it, or pass sentences as --text"
        trees = [Tree(words, [], []) for words in lines] if path is None else read_trees(path)
        limit = self.row_count(_SENTENCES, fewest=50)
        self.trees = [trees[i] for i in sample(len(trees), limit, self.settings.seed, "attention sentences")]
        self.source = str(own if path is None or is_table else _TREEBANK)
        fitting = (tree.words for tree in trees if _DRAWN_WORDS[0] <= len(tree.words) <= _DRAWN_WORDS[1])
        self.given = len(lines)
        self.drawn = lines[:_MOST_DRAWN] or [next(fitting, trees[0].words)]
        return None

    def measure(self, network: ProbedNetwork) -> _Found:
        """Return the measures of all heads, the edges that they find, and the maps of the drawn sentences."""
        tokenized = [(i, tokenize_words(network, tree.words)) for i, tree in enumerate(self.trees)]
        usable = [(i, sentence) for i, sentence in tokenized if sentence is not None]
        if not usable:
            raise DataError(f"no sentence of {self.source} fits {network.name}", do="Pass shorter sentences")
        measures: list[Maps] = []
        found: dict[str, list[tuple[npt.NDArray[np.bool_], int, int]]] = {}
        for index, maps in attention_maps(network, [sentence for _, sentence in usable]):
            i, sentence = usable[index]
            measures.append(head_measures(maps, sentence.words))
            top = most_attended(over_words(maps, sentence.words))
            for relation, dependent, head in self.trees[i].edges():
                hits = np.concatenate([(top[..., dependent] == head).ravel(), (top[..., head] == dependent).ravel()])
                found.setdefault(relation, []).append((hits, head - dependent, i))
        relations = {
            name: Edges(*(np.array(part) for part in zip(*edges, strict=True)))
            for name, edges in sorted(found.items(), key=lambda item: -len(item[1]))
            if len(edges) >= _FEWEST_EDGES
        }
        costs = reason_against_costs(network) or head_costs(network, [s for _, s in usable], self.settings.seed)
        return _Found(np.mean(measures, axis=0), relations, self._draw(network), len(usable), costs)

    def _draw(self, network: ProbedNetwork) -> list[tuple[list[str], Maps]]:
        drawn = [(words, tokenize_words(network, words)) for words in self.drawn]
        fitting = [(words, sentence) for words, sentence in drawn if sentence is not None]
        maps = dict(attention_maps(network, [sentence for _, sentence in fitting]))
        return [(words, over_words(maps[i], sentence.words)) for i, (words, sentence) in enumerate(fitting)]

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the measures of heads, the scores of relations, and drawings."""
        scored = {
            each.model: (_score(each.trained, each.family), _score(each.untrained, each.family)) for each in measured
        }
        scores = [_mean_score(each.model, *scored[each.model]) for each in measured if scored[each.model][0].scores]
        known = {each.model: pair for each in measured if (pair := _costs(each)) is not None}
        scores += [cost_score(model, *pair) for model, pair in known.items()]
        sections = [_warning(self.source, self.given)]
        for each in measured:
            trained, untrained = scored[each.model]
            if trained.scores:
                sections.append(relation_section(each.model, trained, untrained))
            sections.append(_measure_section(each))
            if each.model in known:
                sections.append(cost_section(each.model, *known[each.model], trained.by_head()))
            else:
                sections.append(ReportSection(Quoted(f"Heads of {each.model} switched off"), [_no_costs(each)]))
            sections.append(_drawing_section(each, trained.scores))
        numbers = {
            each.model: {
                "sentences": each.trained.sentences,
                "heads": _head_rows(each),
                "relations": [asdict(score) for score in scored[each.model][0].scores],
                "untrained_relations": [asdict(score) for score in scored[each.model][1].scores],
                "switched_off": cost_numbers(*known[each.model]) if each.model in known else _no_costs(each),
            }
            for each in measured
        }
        tables = {
            "attention-heads": [{"model": each.model, **row} for each in measured for row in _head_rows(each)],
            "attention-relations": [
                {"model": model, **score.row(), "untrained_accuracy": untrained.accuracies().get(score.relation)}
                for model, (trained, untrained) in scored.items()
                for score in trained.scores
            ],
            "attention-costs": [{"model": model, **row} for model, pair in known.items() for row in cost_rows(*pair)],
        }
        tables = {name: rows for name, rows in tables.items() if rows}
        return ProbeReport(scores, sections, {"data": self.source, "models": numbers}, tables)


def _costs(each: Measured) -> tuple[HeadCosts, HeadCosts] | None:
    """Return what heads cost, trained and untrained, or None if it was not measured."""
    trained, untrained = each.trained.costs, each.untrained.costs
    return None if isinstance(trained, str) or isinstance(untrained, str) else (trained, untrained)


def _no_costs(each: Measured) -> str:
    return f"Not measured: {each.trained.costs}."


def _score(found: _Found, family: str) -> RelationScores:
    return score_relations(found.relations, found.measures.shape[1], family)


def _mean_score(model: str, trained: RelationScores, untrained: RelationScores) -> ProbeScore:
    """Return means over relations: of the best heads, of the best offsets, and of the untrained network's heads."""
    offset = float(np.mean([score.offset_accuracy for score in trained.scores]))
    measure = f"best heads, mean of {len(trained.scores)} relations"
    return ProbeScore(model, measure, trained.mean, {"untrained": untrained.mean.value, "best_offset": offset})


def _warning(source: str, given: int) -> ReportSection:
    notes = [
        f"Sentences: {source}. Attention weights show which words a head reads from. They do not show what it does "
        "with them, nor that a prediction depends on it: other weights can give the same prediction (Jain & Wallace "
        "2019), and whether weights explain anything depends on what is asked of an explanation (Wiegreffe & Pinter "
        "2019).",
    ]
    if given > _MOST_DRAWN:
        notes.append(f"The first {_MOST_DRAWN} of the {given:,} sentences of --text are drawn.")
    return ReportSection("Attention", notes)


def _measure_section(each: Measured) -> ReportSection:
    tables = []
    for name, title in _SHOWN_MEASURES.items():
        # A token of a decoder sees neither the last token nor the next one.
        if name in ("last", "next") and each.family == "decoder":
            continue
        column = HEAD_MEASURES.index(name)
        values, untrained = each.trained.measures[..., column], each.untrained.measures[..., column]
        scale = 1.0 if name == "entropy" else 100.0
        caption = f"{title}{'' if scale == 1 else ' × 100'}; rows are layers, columns heads"
        tables.append(by_head(f"{caption} (untrained: {scale * untrained.mean():.1f} on average)", scale * values))
    notes = [f"Means over the tokens of {each.trained.sentences:,} sentences."]
    return ReportSection(Quoted(f"What heads of {each.model} look at"), notes, (), tables)


def _drawing_section(each: Measured, scores: Sequence[RelationScore]) -> ReportSection:
    """Draw the heads that lead their offset by the most, or the most focused heads if no relation is scored."""
    heads: dict[tuple[int, int], str] = {}
    for score in sorted(scores, key=lambda score: -(score.lead.value or 0.0)):
        layer, head = (int(part.split()[1]) - 1 for part in score.head.split(", ")[:2])
        heads.setdefault((layer, head), score.relation)
    entropy = each.trained.measures[..., HEAD_MEASURES.index("entropy")]
    for flat in np.argsort(entropy, axis=None).tolist():
        layer, head = divmod(flat, entropy.shape[1])
        heads.setdefault((layer, head), "low entropy")
    figures: list[Markup] = []
    tables = []
    for words, maps in each.trained.drawn:
        for (layer, head), why in list(heads.items())[:_DRAWN_HEADS]:
            weights = maps[layer, head]
            figures.append(link_chart(f"layer {layer + 1}, head {head + 1} ({why})", words, words, weights.tolist()))
        (layer, head), why = next(iter(heads.items()))
        caption = (
            f"layer {layer + 1}, head {head + 1} ({why}): attention × 100 from the word of a row to that of a column"
        )
        tables.append(matrix(Quoted(caption), words, words, 100 * maps[layer, head], "from", 0))
    notes = ["Lines run from a word (left) to the words that it attends to (right). Special tokens are left out."]
    return ReportSection(Quoted(f"Heads of {each.model} over a sentence"), notes, figures, tables)


def _head_rows(each: Measured) -> list[dict[str, Any]]:
    trained, untrained = each.trained.measures, each.untrained.measures
    return [
        {
            "layer": layer + 1, "head": head + 1,
            **dict(zip(HEAD_MEASURES, trained[layer, head].tolist(), strict=True)),
            **{f"untrained_{n}": v for n, v in zip(HEAD_MEASURES, untrained[layer, head].tolist(), strict=True)},
        }
        for layer in range(trained.shape[0])
        for head in range(trained.shape[1])
    ]  # fmt: skip
