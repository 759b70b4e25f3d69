"""Cloze: what models write into blanks, whether it is true, and after which layer they know it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from headstart.core.errors import DataError
from headstart.core.pages.charts import ChartLine, ChartPoint, legend, line_chart
from headstart.core.pages.svg import Marker
from headstart.evaluation.intervals import Estimate, bootstrap_mean, wilson
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.generate import BLANK
from headstart.stages.probe import fact_frequency
from headstart.stages.probe.blanks import Blank, answered_blank, find_blanks, predictions_by_layer, token_text
from headstart.stages.probe.corpus_counts import CorpusCounter
from headstart.stages.probe.fact_frequency import CountedFact
from headstart.stages.probe.last_words import chance_of_a_word, predicts_last_words
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import (
    Measured,
    Probe,
    ProbeReport,
    ProbeScore,
    data_file,
    percent,
    read_columns,
    read_texts,
    sample,
)

_FACTS, _LAMBADA = "probes/facts.parquet", "probes/lambada.parquet"
_FACTS_PER_RELATION, _PASSAGES = 20, 200
_CANDIDATES = 5
_MOST_SHOWN = 20
"""Blanks on the page if the data is that of the facts."""


@dataclass(frozen=True)
class _Fact:
    relation: str
    pattern: str
    text: str
    subject: str
    answer: str


@dataclass(frozen=True)
class _Filled:
    """A blank of a text: the likeliest tokens with their probabilities, and the likeliest one after each layer."""

    text: str
    candidates: list[tuple[str, float]]
    by_layer: list[str]


@dataclass(frozen=True)
class _Recalled:
    """The rank of the right answer of a fact after each layer (1 is the first), and its final probability."""

    fact: int
    ranks: list[int]
    probability: float


@dataclass(frozen=True)
class _Found:
    blanks: list[_Filled]
    facts: list[_Recalled]
    last_words: list[float]
    folder: Path
    """That of the checkpoint, which records the training corpus."""


class Cloze(Probe):
    """Fill blanks, rank the true answers of facts after each layer, and predict the last words of passages (LAMBADA).

    With `--text`, it fills the blanks (`___`) in the lines of a text file, or in the column `text` of a table. A
    decoder reads the text before the first blank only.
    """

    paper: ClassVar[str] = (
        "Petroni et al. 2019, LAMA; Paperno et al. 2016, LAMBADA; nostalgebraist 2020, the logit lens"
    )
    data: ClassVar[tuple[str, ...]] = (_FACTS, _LAMBADA)
    figures_need_untrained: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Read the blanks, or the facts and the passages."""
        self.facts: list[_Fact] = []
        self.passages: list[str] = []
        self.most_frequent: dict[str, str] = {}
        if self.settings.text is not None:
            texts = _read_blanks(Path(self.settings.text))
            chosen = sample(len(texts), self.settings.limit or len(texts), self.settings.seed, "cloze blanks")
            self.source, self.texts = self.settings.text, [texts[i] for i in chosen]
            return None
        facts, passages = data_file(_FACTS), data_file(_LAMBADA)
        if facts is None and passages is None:
            return f"there is no {_FACTS} in the data folder; set HEADSTART_DATA to it, or pass blanks as --text"
        seed = self.settings.seed
        if facts is not None:
            self._read_facts(facts, self.row_count(_FACTS_PER_RELATION, fewest=4))
        self._counter = CorpusCounter([(fact.subject, fact.answer) for fact in self.facts])
        if passages is not None:
            rows = [row["text"] for row in read_columns(passages, ("text",))]
            selected = sample(len(rows), self.row_count(_PASSAGES, fewest=50), seed, "cloze passages")
            self.passages = [rows[i] for i in selected]
        first = {fact.relation: fact.text for fact in reversed(self.facts)}
        self.source, self.texts = _FACTS, list(reversed(first.values()))[:_MOST_SHOWN]
        return None

    def measure(self, network: ProbedNetwork) -> _Found:
        """Fill the blanks, rank the answers and predict the last words."""
        last_words = predicts_last_words(network, self.passages) if network.family == "decoder" else []
        return _Found(self._fill(network), self._recall(network), last_words, network.folder)

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the filled blanks side by side, and the figures of facts and passages."""
        scores, sections = [], [self._blank_section(measured)]
        for each in measured:
            scores += self.figures(each)
        recalled = [each for each in measured if each.trained.facts]
        reading = [each for each in measured if each.trained.last_words]
        if recalled:
            sections += [self._fact_section(recalled), self._frequencies(recalled), _layer_section(recalled)]
        if reading:
            sections.append(self._passage_section(reading))
        tables = {
            "cloze": [
                {
                    "model": each.model, "network": network, "text": blank.text, "rank": rank, "token": token,
                    "probability": probability,
                }
                for each in measured
                for network, found in (("trained", each.trained), ("untrained", each.untrained))
                for blank in found.blanks
                for rank, (token, probability) in enumerate(blank.candidates, start=1)
            ]
        }  # fmt: skip
        if recalled:
            tables["cloze-facts"] = self._fact_rows(recalled)
        return ProbeReport(scores, sections, self._numbers(measured), {k: rows for k, rows in tables.items() if rows})

    def figures(self, each: Measured) -> list[ProbeScore]:
        """Return how often the answer of a fact is first, and for a decoder the accuracy of last words."""
        scores, found, untrained = [], each.trained, each.untrained
        if found.facts:
            beside = {} if untrained is None else {"untrained": _first(untrained.facts).value}
            beside["most_frequent"] = self._majority(each).value
            hits = {recalled.fact: float(recalled.ranks[-1] == 1) for recalled in found.facts}
            points = [hits.get(i, math.nan) for i in range(len(self.facts))]
            scores.append(ProbeScore(each.model, "facts, answer first", _first(found.facts), beside, points=points))
        if found.last_words:
            beside = {} if untrained is None else {"untrained": _mean(untrained.last_words).value}
            beside["random_word"] = self._random_word()
            words = found.last_words
            scores.append(ProbeScore(each.model, "LAMBADA, last word", _mean(words), beside, points=words))
        return scores

    def sections_over_run(self, points: Sequence[tuple[str, Measured]]) -> list[ReportSection]:
        """Return the likeliest token of each blank along a run."""
        if not points:
            return []
        filled = [{blank.text: blank for blank in found.trained.blanks} for _, found in points]
        rows = [
            [name, *(Quoted(_candidates(blanks.get(text), 1)) for blanks in filled)]
            for text in self.texts
            for name in ([Quoted(text)] if any(text in blanks for blanks in filled) else [])
        ]
        header = ["text", *(Quoted(name) for name, _ in points)]
        table = ReportTable("The likeliest token with its probability, in %", header, rows, [False] * len(header))
        return [ReportSection("Blanks over the run", (), (), [table])]

    def _read_facts(self, path: Path, limit: int) -> None:
        groups: dict[str, list[_Fact]] = {}
        for row in read_columns(path, ("relation", "pattern", "subject", "object")):
            text = row["pattern"].replace("[Y]", BLANK).replace("[X]", row["subject"])
            fact = _Fact(row["relation"], row["pattern"], text, row["subject"], row["object"])
            groups.setdefault(fact.relation, []).append(fact)
        for relation, facts in groups.items():
            self.most_frequent[relation] = Counter(fact.answer for fact in facts).most_common(1)[0][0]
            selected = sample(len(facts), limit, self.settings.seed, f"cloze facts {relation}")
            self.facts += [facts[i] for i in selected]

    def _fill(self, network: ProbedNetwork) -> list[_Filled]:
        texts: list[str] = []
        blanks: list[Blank] = []
        for text in self.texts:
            found = find_blanks(network, text)
            texts += [text if len(found) == 1 else f"{text} (blank {i})" for i in range(1, len(found) + 1)]
            blanks += found
        candidates: list[list[tuple[str, float]]] = [[] for _ in blanks]
        by_layer: list[list[str]] = [[] for _ in blanks]
        for indices, _, log_probs in predictions_by_layer(network, blanks):
            best = log_probs.topk(min(_CANDIDATES, log_probs.shape[-1]))
            for i, tokens, values in zip(indices, best.indices.tolist(), best.values.exp().tolist(), strict=True):
                candidates[i] = [(token_text(network, t), value) for t, value in zip(tokens, values, strict=True)]
                by_layer[i].append(candidates[i][0][0])
        return [_Filled(*parts) for parts in zip(texts, candidates, by_layer, strict=True)]

    def _recall(self, network: ProbedNetwork) -> list[_Recalled]:
        known = [(i, answered_blank(network, fact.text, fact.answer)) for i, fact in enumerate(self.facts)]
        blanks = [(i, blank) for i, blank in known if blank is not None]
        ranks: list[list[int]] = [[] for _ in blanks]
        probabilities = [0.0] * len(blanks)
        answers = torch.tensor([blank.answer for _, blank in blanks], device=network.device)
        for indices, _, log_probs in predictions_by_layer(network, [blank for _, blank in blanks]):
            truth = log_probs.gather(1, answers[indices][:, None])  # (rows, 1)
            above = (log_probs > truth).sum(1).tolist()
            for i, count, value in zip(indices, above, truth[:, 0].exp().tolist(), strict=True):
                ranks[i].append(1 + count)
                probabilities[i] = value
        return [_Recalled(blanks[i][0], ranks[i], probabilities[i]) for i in range(len(blanks))]

    def _counted(self, each: Measured) -> list[CountedFact]:
        """Return the facts of a model with their counts; none if its corpus is not known."""
        counts = self._counter.of(each.trained.folder) if each.trained.facts else ""
        if isinstance(counts, str):
            return []
        pairs = zip(each.trained.facts, each.untrained.facts, strict=True)
        ranked = [(self.facts[known.fact], known.ranks[-1], untrained.ranks[-1]) for known, untrained in pairs]
        return [CountedFact.of(counts, fact.subject, fact.answer, *ranks) for fact, *ranks in ranked]

    def _frequencies(self, measured: Sequence[Measured]) -> ReportSection:
        counted = [(each.model, self._counter.of(each.trained.folder), self._counted(each)) for each in measured]
        return fact_frequency.section(counted)

    def _majority(self, each: Measured) -> Estimate:
        """Return the score of always answering with the most frequent answer of the relation."""
        facts = [self.facts[recalled.fact] for recalled in each.trained.facts]
        return _mean([float(fact.answer == self.most_frequent[fact.relation]) for fact in facts])

    def _random_word(self) -> float:
        return sum(map(chance_of_a_word, self.passages)) / max(1, len(self.passages))

    def _blank_section(self, measured: Sequence[Measured]) -> ReportSection:
        notes = [
            f"The likeliest tokens for each blank with their probabilities, in %. Texts: {self.source}. An encoder "
            "reads both sides of a blank, a decoder only the text before it."
        ]
        without = [each.model for each in measured if self.facts and not each.trained.facts]
        if without:
            notes.append(f"No answer of the {len(self.facts):,} facts is one token of {', '.join(without)}.")
        filled = {each.model: {blank.text: blank for blank in each.trained.blanks} for each in measured}
        columns = {}
        for each in measured:
            columns[each.model] = filled[each.model]
            columns[f"{each.model}, untrained"] = {blank.text: blank for blank in each.untrained.blanks}
        texts = list(dict.fromkeys(text for blanks in filled.values() for text in blanks))
        rows = [
            [Quoted(text), *(Quoted(_candidates(blanks.get(text))) for blanks in columns.values())] for text in texts
        ]
        header = ["text", *(Quoted(name) for name in columns)]
        tables = [ReportTable("Blanks, side by side", header, rows, [False] * len(header))]
        for name, blanks in filled.items():
            layers = max((len(blank.by_layer) for blank in blanks.values()), default=0)
            body = [[Quoted(text), *map(Quoted, blank.by_layer)] for text, blank in blanks.items()]
            caption = Quoted(f"{name}: the likeliest token after each layer (logit lens; 0 is the embeddings)")
            tables.append(ReportTable(caption, ["text", *map(str, range(layers))], body, [False] * (layers + 1)))
        return ReportSection("Blanks", notes, (), tables)

    def _fact_section(self, measured: Sequence[Measured]) -> ReportSection:
        notes = [
            "Facts whose answer is one token of the model's vocabulary, so the facts differ between tokenizers. The "
            "rank of the answer is that among all tokens. A decoder reads the text before the blank only.",
            "Beside each model are the same network untrained, and always answering with the most frequent answer of "
            "the relation. A model that does not beat the latter may have learned the usual answer, not the facts. "
            "Intervals: 95 %.",
        ]
        rows = [
            [
                Quoted(each.model), f"{len(each.trained.facts):,} of {len(self.facts):,}",
                percent(_first(each.trained.facts)), percent(_within(each.trained.facts, 10)),
                f"{_reciprocal(each.trained.facts).value or 0.0:.3f}", percent(_first(each.untrained.facts)),
                percent(self._majority(each)),
            ]
            for each in measured
        ]  # fmt: skip
        header = ["model", "facts", "first × 100", "in the first ten × 100", "mean reciprocal rank"]
        header += ["untrained, first × 100", "most frequent answer × 100"]
        table = ReportTable("Facts", header, rows, [False, *[True] * 6])
        return ReportSection("Facts", notes, (), [table])

    def _passage_section(self, measured: Sequence[Measured]) -> ReportSection:
        rows = [
            [
                Quoted(each.model), f"{len(each.trained.last_words):,}", percent(_mean(each.trained.last_words)),
                percent(_mean(each.untrained.last_words)), f"{100 * self._random_word():.1f}",
            ]
            for each in measured
        ]  # fmt: skip
        header = ["model", "passages", "accuracy × 100", "untrained", "a random word of the passage"]
        notes = ["The last word of a passage, predicted greedily from the text before it. Decoders only."]
        return ReportSection("LAMBADA", notes, (), [ReportTable("Last words", header, rows, [False, *[True] * 4])])

    def _fact_rows(self, measured: Sequence[Measured]) -> list[dict[str, Any]]:
        rows = []
        for each in measured:
            counted: Sequence[CountedFact | None] = self._counted(each) or [None] * len(each.trained.facts)
            for recalled, counts in zip(each.trained.facts, counted, strict=True):
                rows.append({
                    "model": each.model, **asdict(self.facts[recalled.fact]), "rank": recalled.ranks[-1],
                    "probability": recalled.probability, "rank_by_layer": recalled.ranks,
                    **fact_frequency.columns(counts),
                })  # fmt: skip
        return rows

    def _numbers(self, measured: Sequence[Measured]) -> dict[str, Any]:
        models = {}
        for each in measured:
            numbers: dict[str, Any] = {
                "blanks": [asdict(blank) for blank in each.trained.blanks],
                "untrained_blanks": [asdict(blank) for blank in each.untrained.blanks],
            }
            if each.trained.facts:
                numbers["facts"] = {
                    "used": len(each.trained.facts), "of": len(self.facts), "first": asdict(_first(each.trained.facts)),
                    "in_first_ten": asdict(_within(each.trained.facts, 10)),
                    "mean_reciprocal_rank": asdict(_reciprocal(each.trained.facts)),
                    "untrained_first": asdict(_first(each.untrained.facts)),
                    "most_frequent_answer": asdict(self._majority(each)),
                    "first_by_layer": [asdict(estimate) for estimate in _by_layer(each.trained.facts)],
                    "by_frequency": fact_frequency.numbers(counted) if (counted := self._counted(each)) else None,
                }  # fmt: skip
            if each.trained.last_words:
                numbers["lambada"] = {
                    "passages": len(self.passages), "accuracy": asdict(_mean(each.trained.last_words)),
                    "untrained": asdict(_mean(each.untrained.last_words)), "random_word": self._random_word(),
                }  # fmt: skip
            models[each.model] = numbers
        return {"data": self.source, "models": models}


def _read_blanks(path: Path) -> list[str]:
    """Return the texts with blanks in a file; raises if a text has none."""
    texts = read_texts(path)
    without = next((number for number, text in enumerate(texts, start=1) if BLANK not in text), None)
    if without is not None or not texts:
        where = f"{path} has no texts" if without is None else f"{path}, text {without}, has no blank"
        raise DataError(where, allowed="Every text needs a blank", do=f"Write a blank as {BLANK}")
    return texts


def _candidates(blank: _Filled | None, most: int = _CANDIDATES) -> str:
    shown = [] if blank is None else blank.candidates[:most]
    return " · ".join(f"{token} {100 * value:.1f}" for token, value in shown) or "–"


def _mean(values: Sequence[float]) -> Estimate:
    return wilson(sum(values), len(values))


def _within(facts: Sequence[_Recalled], rank: int, layer: int = -1) -> Estimate:
    return _mean([float(fact.ranks[layer] <= rank) for fact in facts])


def _first(facts: Sequence[_Recalled]) -> Estimate:
    return _within(facts, 1)


def _reciprocal(facts: Sequence[_Recalled]) -> Estimate:
    return bootstrap_mean([1 / fact.ranks[-1] for fact in facts])


def _by_layer(facts: Sequence[_Recalled]) -> list[Estimate]:
    return [_within(facts, 1, layer) for layer in range(len(facts[0].ranks))]


def _layer_section(measured: Sequence[Measured]) -> ReportSection:
    """Return the fraction of facts whose answer is ranked first after each layer."""
    lines, entries = [], []
    for number, each in enumerate(measured):
        for facts, suffix in ((each.trained.facts, ""), (each.untrained.facts, ", untrained")):
            points = [
                ChartPoint(
                    layer, 100 * (found.value or 0.0), f"layer {layer}: {percent(found)}",
                    100 * (found.low or 0.0), 100 * (found.high or 0.0),
                )
                for layer, found in enumerate(_by_layer(facts))
            ]  # fmt: skip
            lines.append(ChartLine(f"{each.model}{suffix}", Marker.of(number), points, is_dashed=bool(suffix)))
            entries.append((lines[-1].name, lines[-1].marker, lines[-1].is_dashed))
    title = "Answers ranked first × 100 after each layer"
    notes = [
        "The states after a layer go through the network's final norm and its head (logit lens). Layer 0 is the "
        "embeddings of the blank, which know nothing of the text. The head was trained for the last layer, so earlier "
        "layers may know more than this shows."
    ]
    return ReportSection("Facts by layer", notes, [line_chart(title, "layer", "first × 100", lines), legend(entries)])
