"""Relations of grammar that attention heads find, beside the best fixed offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.evaluation.comparison import resampling_seed
from headstart.evaluation.intervals import Estimate, bootstrap_mean_of_groups, bootstrap_statistic, wilson
from headstart.evaluation.metrics import Floats
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.probe import percent

Hits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Edges:
    """The edges of one relation: which heads find them, in both directions, and how far apart the words are."""

    hits: Hits
    """(edges, 2 × layers × heads): first from the dependent to its head, then from the head to its dependent."""
    offsets: npt.NDArray[np.int64]
    """(edges,): position of the head minus that of the dependent."""
    sentences: npt.NDArray[np.int64]
    """(edges,): the number of the sentence."""

    @property
    def is_first_half(self) -> Hits:
        """Whether an edge belongs to the half of the sentences that chooses the head for the other."""
        return np.asarray(self.sentences % 2 == 0)


@dataclass(frozen=True)
class RelationScore:
    """How well the best head finds a relation, beside the best fixed offset; both are chosen on other sentences."""

    relation: str
    edges: int
    head: str
    accuracy: Estimate
    offset: int
    offset_accuracy: float
    lead: Estimate

    def row(self) -> dict[str, Any]:
        """Return the row of a table."""
        return {
            "relation": self.relation, "edges": self.edges, "head": self.head, "accuracy": self.accuracy.value,
            "accuracy_low": self.accuracy.low, "accuracy_high": self.accuracy.high, "offset": self.offset,
            "offset_accuracy": self.offset_accuracy, "lead": self.lead.value, "lead_low": self.lead.low,
            "lead_high": self.lead.high,
        }  # fmt: skip


@dataclass(frozen=True)
class RelationScores:
    """The scores of all relations of one network."""

    scores: list[RelationScore]
    mean: Estimate
    """The mean accuracy over relations; these are fixed, and the interval is over sentences."""

    def accuracies(self) -> Mapping[str, float | None]:
        """Return the accuracy of the best head by relation."""
        return {score.relation: score.accuracy.value for score in self.scores}

    def by_head(self) -> dict[str, list[str]]:
        """Return the relations that a head finds best, by its name (`layer 1, head 2`)."""
        found: dict[str, list[str]] = {}
        for score in self.scores:
            found.setdefault(", ".join(score.head.split(", ")[:2]), []).append(score.relation)
        return found


def score_relations(relations: Mapping[str, Edges], heads: int, family: str) -> RelationScores:
    """Score relations: each half of the sentences with the head and the offset that the other half prefers.

    In a decoder a word sees only those before it, so each edge is scored from its later word alone.

    Args:
        relations: the edges of each relation.
        heads: the number of heads of a layer.
        family: the family of the network.
    """
    scores: list[RelationScore] = []
    known: list[tuple[Floats, npt.NDArray[np.int64]]] = []
    for name, edges in relations.items():
        first = edges.is_first_half
        if first.all() or not first.any():
            continue
        score, points = _score(name, edges, heads, family)
        scores.append(score)
        known.append((points, edges.sentences))
    return RelationScores(scores, _mean(known) if known else Estimate(None))


def _score(relation: str, edges: Edges, heads: int, family: str) -> tuple[RelationScore, Floats]:
    """Return the score of a relation, and for each edge whether the head that was chosen elsewhere finds it."""
    hits, offsets, sentences = edges.hits, edges.offsets, edges.sentences.tolist()
    half = hits.shape[1] // 2
    if family == "decoder":
        hits = np.where(offsets[:, None] < 0, hits[:, :half], hits[:, half:])
        offsets = -abs(offsets)
    points, offset_points = np.zeros(len(hits)), np.zeros(len(hits))
    for part in (edges.is_first_half, ~edges.is_first_half):
        points[~part] = hits[~part, int(hits[part].sum(0).argmax())]
        offset_points[~part] = offsets[~part] == _commonest(offsets[part])
    best = int(hits.sum(0).argmax())
    direction = "" if family == "decoder" else ", from dependent" if best < half else ", from head"
    layer, head = divmod(best % half, heads)
    score = RelationScore(
        relation,
        len(hits),
        f"layer {layer + 1}, head {head + 1}{direction}",
        # No resample differs where all edges are found or none.
        bootstrap_mean_of_groups(points.tolist(), sentences)
        if 0 < points.mean() < 1
        else wilson(points.sum(), len(points)),
        _commonest(offsets),
        float(offset_points.mean()),
        bootstrap_mean_of_groups((points - offset_points).tolist(), sentences),
    )
    return score, points


def _mean(known: Sequence[tuple[Floats, npt.NDArray[np.int64]]]) -> Estimate:
    """Return the mean over relations of the mean over their edges, with the bootstrap interval over sentences."""
    count = 1 + max(int(sentences.max()) for _, sentences in known)
    found = np.stack([np.bincount(sentences, weights=points, minlength=count) for points, sentences in known], 1)
    edges = np.stack([np.bincount(sentences, minlength=count) for _, sentences in known], 1).astype(np.float64)
    present = edges.sum(1) > 0
    found, edges = found[present], edges[present]

    def mean(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # a resample without edges of a relation has no value
            return np.asarray((counts @ found / (counts @ edges)).mean(1))

    return bootstrap_statistic(mean, len(found), resampling_seed(found.ravel().tolist()))


def _commonest(offsets: npt.NDArray[np.int64]) -> int:
    return Counter(offsets.tolist()).most_common(1)[0][0]


def relation_section(model: str, trained: RelationScores, untrained: RelationScores) -> ReportSection:
    """Return the table of all relations, beside the best heads of the same network untrained."""
    notes = [
        "How often the word that a head attends to most is the other end of a dependency. The head with its "
        "direction, and the offset, are chosen on one half of the sentences and scored on the other, both ways round: "
        "among many heads one is good by chance on the sentences that chose it. The named head and offset are the best "
        "over all sentences. The lead is over the best fixed offset. Intervals: 95 %, bootstrap over sentences. The "
        "last column is the best head of the same network untrained.",
    ]
    without = untrained.accuracies()
    rows = [
        [
            Quoted(score.relation), f"{score.edges:,}", score.head, percent(score.accuracy), f"{score.offset:+d}",
            f"{100 * score.offset_accuracy:.1f}", percent(score.lead, "+"),
            "–" if (value := without.get(score.relation)) is None else f"{100 * value:.1f}",
        ]
        for score in trained.scores
    ]  # fmt: skip
    header = ["relation", "edges", "best head", "accuracy × 100", "offset", "offset × 100", "lead", "untrained × 100"]
    table = ReportTable("Relations, the most frequent first", header, rows, [False, True, False, *[True] * 5])
    return ReportSection(Quoted(f"Relations that heads of {model} find"), notes, (), [table])
