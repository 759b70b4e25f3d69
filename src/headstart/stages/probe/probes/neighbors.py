"""Neighbors: the nearest occurrences of a word in context by layer, and how much states depend on the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from headstart.core.randomness import generator
from headstart.evaluation.intervals import Estimate, bootstrap_mean
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.probe.hidden.corpus_text import (
    MarkedWord,
    frequent_words,
    marked_word,
    read_sentences,
    select_sentences,
    snippet,
)
from headstart.stages.probe.hidden.layer_charts import decimal, layer_charts
from headstart.stages.probe.hidden.similarity import intra_sentence_similarity, nearest, pair_cosines, self_similarity
from headstart.stages.probe.hidden.states import States, WordStates, spaced_layers, word_states
from headstart.stages.probe.hidden.static_words import glove_words, input_embeddings, nearest_words
from headstart.stages.probe.hidden.word_senses import (
    SenseAreas,
    SenseCosines,
    read_sense_pairs,
    sense_cosines,
    sense_section,
)
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore, data_file

_TEXT, _SENSES = "corpora/wikipedia-en-2015/part-00.parquet", "tasks/wic/validation.parquet"
_SENTENCES = 500
_SENTENCES_PER_WORD, _FEWEST_PER_WORD = 40, 20
_SENSE_PAIRS = 600
_NEAREST, _NEAREST_WORDS = 5, 8
_CANDIDATE_WORDS = 10_000
_FEWEST_OCCURRENCES = 5
"""Sentences in which a word occurs if its self-similarity is measured."""
_PAIRS = 2000
"""Pairs of random words, for anisotropy."""
_SHOWN_LAYERS = 3
_DEFAULT_QUERIES = (
    "The theatre put on a **play** by a young writer .",
    "The children **play** football on the field .",
    "He opened an account and paid the money into the **bank** .",
    "They walked along the **bank** of the river .",
    "The new **plant** employs two hundred workers and builds engines .",
    "This **plant** has small white flowers and long leaves .",
)


@dataclass(frozen=True)
class _Occurrence:
    """An occurrence of a word in the text that is near to a query."""

    word: str
    text: str
    cosine: float


@dataclass(frozen=True)
class _Similarity:
    """The similarities after one layer."""

    layer: int
    anisotropy: Estimate
    self_similarity: Estimate
    intra_sentence: Estimate

    def corrected(self, name: str) -> Estimate:
        """Return a similarity minus anisotropy."""
        found: Estimate = getattr(self, name)
        shift = self.anisotropy.value or 0.0
        ends = (None if end is None else end - shift for end in (found.value, found.low, found.high))
        return Estimate(*ends)


@dataclass(frozen=True)
class _Rows:
    """Which rows of the states are compared."""

    sentences: list[list[int]]
    """The words of each sentence."""
    repeated: list[list[int]]
    """For each word that occurs in enough sentences, one occurrence in each of them."""
    pairs: npt.NDArray[np.int64]
    """(pairs, 2): different words of different sentences."""


@dataclass(frozen=True)
class _Found:
    similarities: list[_Similarity]
    occurrences: dict[int, list[list[_Occurrence]]]
    """For each query that fits the network: the nearest occurrences after each layer."""
    words: dict[str, list[tuple[str, float]]]
    """For the word of each query: the nearest words by input embeddings."""
    searched: int
    """Occurrences among which the nearest ones were found."""
    types: int
    """Words whose self-similarity was measured."""
    sentences: int
    """Sentences over which similarities were measured."""
    senses: SenseCosines | None
    """Cosines of words in the same sense and in two senses; None without their data."""


_MEASURES: dict[str, tuple[str, Callable[[_Similarity], Estimate]]] = {
    "anisotropy": ("Anisotropy", lambda each: each.anisotropy),
    "self_similarity": ("Self-similarity − anisotropy", lambda each: each.corrected("self_similarity")),
    "intra_sentence": ("Intra-sentence similarity − anisotropy", lambda each: each.corrected("intra_sentence")),
}


class Neighbors(Probe):
    """Find the nearest occurrences of words in context after each layer, and measure how contextual states are.

    Searches a text, by default a part of Wikipedia. With `--text`, it searches the lines of a text file or the column
    `text` of a table, for the words that are marked in it (`a **play** in the theatre`) or else for default ones.
    """

    paper: ClassVar[str] = "Ethayarajh 2019, How Contextual are Contextualized Word Representations?"
    data: ClassVar[tuple[str, ...]] = (_TEXT, _SENSES)
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "encoder-decoder")
    needs_head: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Read the text and the marked words, and choose the sentences."""
        path = data_file(_TEXT) if self.settings.text is None else Path(self.settings.text)
        if path is None:
            return f"there is no {_TEXT} in the data folder; set HEADSTART_DATA to it, or pass a text as --text"
        self.source = str(self.settings.text or _TEXT)
        everything, marked = read_sentences(path, has_marks=self.settings.text is not None)
        self.queries = marked or [query for query in map(marked_word, _DEFAULT_QUERIES) if query is not None]
        searched = list(dict.fromkeys(query.word for query in self.queries))
        self.per_word = max(_FEWEST_PER_WORD, round(_SENTENCES_PER_WORD * self.share))
        random, more = select_sentences(
            everything, searched, self.per_word, self.row_count(_SENTENCES, fewest=100), self.settings.seed
        )
        self.random = len(random)
        self.sentences = [everything[i] for i in (*random, *more)]
        self.words = list(dict.fromkeys([*searched, *frequent_words(everything, _CANDIDATE_WORDS)]))
        senses = data_file(_SENSES) if self.settings.text is None else None
        count = self.row_count(_SENSE_PAIRS, fewest=150)
        self.pairs = [] if senses is None else read_sense_pairs(senses, count, self.settings.seed)
        self.glove = glove_words(self.words, searched, _NEAREST_WORDS)
        return None

    def measure(self, network: ProbedNetwork) -> _Found:
        """Return similarities by layer, the nearest occurrences of the queries, and their nearest words."""
        states = word_states(network, self.sentences, self.source)
        vectors = input_embeddings(network, self.words)
        words = {query.word: nearest_words(vectors, self.words, query.word, _NEAREST_WORDS) for query in self.queries}
        rows = self._rows(states)
        similarities = [
            _similarity(layer, values, rows) for layer, values in zip(states.layers, states.values, strict=True)
        ]
        occurrences = self._search(network, states)
        senses = sense_cosines(network, self.pairs) if self.pairs else None
        return _Found(
            similarities, occurrences, words, len(states.positions), len(rows.repeated), len(rows.sentences), senses
        )  # fmt: skip

    def _rows(self, states: WordStates) -> _Rows:
        """Return which rows of the states are compared; only words of the random sentences are."""
        sentences: dict[int, list[int]] = {}
        types: dict[str, dict[int, int]] = {}
        for row, (sentence, position) in enumerate(states.keys()):
            word = self.sentences[sentence][position]
            if sentence < self.random and word[0].isalpha():
                sentences.setdefault(sentence, []).append(row)
                # Cased and byte-level tokenizers have other tokens for a word that begins a sentence.
                if position > 0:
                    types.setdefault(word, {}).setdefault(sentence, row)
        # The draws have the former name of the probe, so that they stay the same.
        rng = generator(self.settings.seed, 0, 0, "neighbours pairs")
        # One occurrence of each word, so that a frequent word is as likely as a rare one.
        rows = np.array([list(found.values())[int(rng.integers(len(found)))] for found in types.values()], np.int64)
        pairs = rows[rng.integers(max(1, len(rows)), size=(_PAIRS if len(rows) else 0, 2))]
        pairs = pairs[states.sentences[pairs[:, 0]] != states.sentences[pairs[:, 1]]]
        repeated = [list(found.values()) for found in types.values() if len(found) >= _FEWEST_OCCURRENCES]
        return _Rows([found for found in sentences.values() if len(found) > 1], repeated, pairs)

    def _search(self, network: ProbedNetwork, states: WordStates) -> dict[int, list[list[_Occurrence]]]:
        asked = word_states(network, [query.words for query in self.queries], "the marked words")
        found: dict[int, list[list[_Occurrence]]] = {}
        for row, (number, position) in enumerate(asked.keys()):
            if position != self.queries[number].position:
                continue
            found[number] = [
                [self._occurrence(states, i, cosine) for i, cosine in nearest(query[row], candidates, _NEAREST)]
                for query, candidates in zip(asked.values, states.values, strict=True)
            ]
        return found

    def _occurrence(self, states: WordStates, row: int, cosine: float) -> _Occurrence:
        words, position = self.sentences[int(states.sentences[row])], int(states.positions[row])
        return _Occurrence(words[position], snippet(words, position), cosine)

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return similarities by layer, and the nearest occurrences and words of each query."""
        sections = [self._similarity_section(measured)]
        sections += [self._occurrence_section(each) for each in measured]
        sections.append(self._word_section(measured))
        areas: dict[str, SenseAreas] = {}
        if self.pairs:
            cosines = {each.model: (each.trained.senses, each.untrained.senses) for each in measured}
            areas = {model: (trained.areas(), untrained.areas()) for model, (trained, untrained) in cosines.items()}
            sections.append(sense_section(_SENSES, len(measured[0].trained.senses.is_same), areas))
        scores = [score for each in measured for score in _scores(each, areas.get(each.model))]
        tables = {
            "neighbors": [row for each in measured for row in _occurrence_rows(each, self.queries)],
            "neighbors-layers": [row for each in measured for row in _layer_rows(each, areas.get(each.model))],
        }
        models = {each.model: self._numbers(each, areas.get(each.model)) for each in measured}
        numbers = {"data": self.source, "glove": self.glove, "models": models}
        return ProbeReport(scores, sections, numbers, {name: rows for name, rows in tables.items() if rows})

    def _numbers(self, each: Measured, areas: SenseAreas | None) -> dict[str, Any]:
        return {
            "sentences": each.trained.sentences, "words_with_self_similarity": each.trained.types,
            "occurrences": each.trained.searched, "layers": [asdict(layer) for layer in each.trained.similarities],
            "untrained_layers": [asdict(layer) for layer in each.untrained.similarities],
            "input_embeddings": each.trained.words,
            "senses": None if areas is None else {
                "pairs": len(each.trained.senses.is_same), "area": [asdict(area) for _, area in areas[0]],
                "untrained_area": [asdict(area) for _, area in areas[1]],
            },
        }  # fmt: skip

    def _similarity_section(self, measured: Sequence[Measured]) -> ReportSection:
        first = measured[0].trained
        notes = [
            f"Text: {self.source}. Cosines of the states of words (the mean over the tokens of a word) in "
            f"{first.sentences:,} random sentences, after each layer; layer 0 is the embeddings. Intervals: 95 %, "
            "bootstrap over words, sentences or pairs.",
            f"Anisotropy is the mean cosine of {_PAIRS:,} pairs of random words in different sentences. "
            f"Self-similarity is that of the occurrences of the same word, a mean over the {first.types:,} words that "
            f"occur in {_FEWEST_OCCURRENCES} sentences or more: the lower, the more a state depends on the context. "
            "Intra-sentence similarity is the mean cosine of a word with the mean vector of its sentence. Anisotropy "
            "is subtracted from both (Ethayarajh 2019): where all states point in one direction, all cosines are high.",
        ]
        if not first.types:
            notes.append(f"No word occurs in {_FEWEST_OCCURRENCES} sentences, so there is no self-similarity.")
        charts = {
            f"{title}, by layer": {
                each.model: (_by_layer(each.trained, of), _by_layer(each.untrained, of)) for each in measured
            }
            for title, of in _MEASURES.values()
        }
        tables = [_similarity_table(each) for each in measured]
        return ReportSection("Similarity of states by layer", notes, layer_charts(charts, "cosine"), tables)

    def _occurrence_section(self, each: Measured) -> ReportSection:
        layers = [layer.layer for layer in each.trained.similarities]
        shown = spaced_layers(len(layers), _SHOWN_LAYERS)
        notes = [
            f"The {_NEAREST} nearest of {each.trained.searched:,} occurrences of words by the cosine of their states, "
            f"found by exact search. The sentences are {self.random:,} random ones, and up to {self.per_word} "
            "more with each of the words. Beside the layers is the last layer of the same network untrained, which "
            "mixes the words of a sentence without having learned how."
        ]
        tables = []
        for number, found in each.trained.occurrences.items():
            columns = [*(found[row] for row in shown), each.untrained.occurrences[number][-1]]
            body = [
                [str(rank + 1), *(Quoted(_shown(column[rank])) for column in columns)]
                for rank in range(min(map(len, columns)))
            ]
            header = ["", *(f"layer {layers[row]}" for row in shown), f"untrained, layer {layers[-1]}"]
            caption = Quoted(self.queries[number].text())
            tables.append(ReportTable(caption, header, body, [False] * len(header)))
        return ReportSection(Quoted(f"Nearest occurrences in {each.model}"), notes, (), tables)

    def _word_section(self, measured: Sequence[Measured]) -> ReportSection:
        columns = {each.model: each.trained.words for each in measured} | ({"GloVe": self.glove} if self.glove else {})
        words = list(dict.fromkeys(query.word for query in self.queries))
        rows = [
            [Quoted(word), *(Quoted(", ".join(f"{w} {c:.2f}" for w, c in found.get(word, [])) or "–")
                             for found in columns.values())]
            for word in words
        ]  # fmt: skip
        notes = [
            f"The nearest of the {len(self.words):,} most frequent words of the text by vectors that do not depend on "
            "the context, with their cosines: the mean of the input embeddings of a word's tokens"
            + (", and GloVe." if self.glove else ". There is no file of GloVe vectors.")
        ]
        header = ["word", *(Quoted(name) for name in columns)]
        table = ReportTable("Nearest words", header, rows, [False] * len(header))
        return ReportSection("Nearest words by static vectors", notes, (), [table])


def _similarity(layer: int, values: States, rows: _Rows) -> _Similarity:
    cosines = pair_cosines(values[rows.pairs[:, 0]], values[rows.pairs[:, 1]])
    own = [self_similarity(values[found]) for found in rows.repeated]
    intra = [intra_sentence_similarity(values[found]) for found in rows.sentences]
    return _Similarity(layer, _mean(cosines.tolist()), _mean(own), _mean(intra))


def _mean(values: Sequence[float]) -> Estimate:
    return bootstrap_mean(values) if len(values) else Estimate(None)


def _shown(occurrence: _Occurrence) -> str:
    return f"{occurrence.cosine:.2f} {occurrence.text}"


def _scores(each: Measured, areas: SenseAreas | None) -> list[ProbeScore]:
    """Return the main figures of the last layer, beside those of layer 0 and of the untrained network."""
    scores = []
    if each.trained.types:
        first, last = (each.trained.similarities[i].corrected("self_similarity") for i in (0, -1))
        untrained = each.untrained.similarities[-1].corrected("self_similarity")
        baselines = {"untrained": untrained.value, "layer_0": first.value}
        scores.append(ProbeScore(each.model, "self-similarity − anisotropy, last layer", last, baselines))
    if areas is not None:
        (_, first), (_, last), (_, untrained) = areas[0][0], areas[0][-1], areas[1][-1]
        baselines = {"untrained": untrained.value, "layer_0": first.value}
        scores.append(ProbeScore(each.model, "WiC, area under the curve, last layer", last, baselines))
    return scores


def _by_layer(found: _Found, of: Callable[[_Similarity], Estimate]) -> list[tuple[int, Estimate]]:
    return [(layer.layer, of(layer)) for layer in found.similarities]


def _similarity_table(each: Measured) -> ReportTable:
    rows = [
        [
            str(layer.layer), decimal(layer.anisotropy), decimal(layer.self_similarity),
            decimal(layer.corrected("self_similarity")), decimal(layer.intra_sentence),
            decimal(layer.corrected("intra_sentence")), *(decimal(of(other)) for _, of in _MEASURES.values()),
        ]
        for layer, other in zip(each.trained.similarities, each.untrained.similarities, strict=True)
    ]  # fmt: skip
    header = ["layer", "anisotropy", "self-similarity", "self-similarity − anisotropy", "intra-sentence"]
    header += ["intra-sentence − anisotropy", "untrained: anisotropy", "untrained: self-similarity − anisotropy"]
    header += ["untrained: intra-sentence − anisotropy"]
    return ReportTable(Quoted(each.model), header, rows, [True] * len(header))


def _occurrence_rows(each: Measured, queries: Sequence[MarkedWord]) -> list[dict[str, Any]]:
    layers = [layer.layer for layer in each.trained.similarities]
    return [
        {
            "model": each.model, "is_trained": found is each.trained, "query": queries[number].text(),
            "word": queries[number].word, "layer": layer, "rank": rank, "nearest": occurrence.word,
            "text": occurrence.text, "cosine": occurrence.cosine,
        }
        for found in (each.trained, each.untrained)
        for number, by_layer in found.occurrences.items()
        for layer, occurrences in zip(layers, by_layer, strict=True)
        for rank, occurrence in enumerate(occurrences, start=1)
    ]  # fmt: skip


def _layer_rows(each: Measured, areas: SenseAreas | None) -> list[dict[str, Any]]:
    rows = [
        {
            "model": each.model, "is_trained": found is each.trained, "layer": layer.layer, "measure": name,
            **asdict(getattr(layer, name)), "corrected": layer.corrected(name).value if name != "anisotropy" else None,
        }
        for found in (each.trained, each.untrained)
        for layer in found.similarities
        for name in _MEASURES
    ]  # fmt: skip
    for is_trained, found in zip((True, False), areas or (), strict=False):
        rows += [
            {
                "model": each.model, "is_trained": is_trained, "layer": layer, "measure": "sense_area", **asdict(area),
                "corrected": None,
            }
            for layer, area in found
        ]  # fmt: skip
    return rows
