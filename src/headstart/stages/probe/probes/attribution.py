"""Attribution: which words moved a prediction, and whether the prediction falls without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.stats import spearmanr

from headstart.core import artifact, config
from headstart.core.errors import DataError, ResourceError
from headstart.core.pages.charts import ChartLine, ChartPoint, legend, line_chart
from headstart.core.pages.svg import Marker
from headstart.core.randomness import generator
from headstart.evaluation.intervals import Estimate, bootstrap_mean
from headstart.evaluation.report.content import Quoted, ReportSection, ReportTable
from headstart.stages.generate import BLANK
from headstart.stages.probe import gradients
from headstart.stages.probe.blanks import token_text
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
from headstart.stages.runs.manifest import FinetuneManifest

_FACTS = "probes/facts.parquet"
_TEXTS = 40
_SHOWN, _MOST_WORDS = 6, 24
"""Texts on the page, and the words of the longest of them."""
_RANDOM_ORDERS = 10
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""The fractions of the words that are deleted."""


@dataclass(frozen=True)
class _Explained:
    """A text, its prediction, the attributions of its words, and the drops of the prediction without them."""

    text: str
    words: list[str]
    prediction: str
    attribution: gradients.Attribution
    top: list[float]
    """The drop at each fraction, the words with the largest attributions first."""
    random: list[float]
    """The same for words in random order, a mean over several orders."""

    @property
    def lead(self) -> float:
        """The mean over fractions of the drop without the top words minus that without random ones."""
        return float(np.mean(self.top) - np.mean(self.random))


@dataclass(frozen=True)
class _Found:
    texts: list[_Explained]
    skipped: int
    source: str
    is_number: bool


class Attribution(Probe):
    """Attribute predictions to words by integrated gradients, and check them by deleting words (faithfulness).

    Explains the label of a classifier of texts, or the token that a language model predicts for a blank (`___`). With
    `--text`, it reads the lines of a text file, or the column `text` of a table. By default, it reads the test rows of
    the run that trained a classifier, and facts with blanks for a language model.
    """

    paper: ClassVar[str] = "Sundararajan et al. 2017, integrated gradients; DeYoung et al. 2020, ERASER (deletion)"
    data: ClassVar[tuple[str, ...]] = (_FACTS,)
    needs_head: ClassVar[bool] = False
    over_run: ClassVar[bool] = False

    def prepare(self) -> str | None:
        """Read the texts of the user, and check that captum is installed."""
        self._texts: dict[Path, tuple[str, list[str]]] = {}
        self._own = None if self.settings.text is None else read_texts(self.settings.text)
        if self._own == []:
            raise DataError(f"{self.settings.text} has no texts", do="Write one text per line")
        try:
            gradients.load_captum()
        except ResourceError as error:
            return str(error).rstrip(".")
        return None

    def reason_against(self, network: ProbedNetwork) -> str | None:
        """Return why there is nothing to explain: no head, no texts, or texts without blanks."""
        reason = super().reason_against(network)
        if reason is not None:
            return reason
        if network.outputs is None and not network.has_head:
            return "the checkpoint has neither a classifier of texts nor a language-model head, so it predicts nothing"
        source, texts = self._read(network)
        if not texts:
            return source
        if all(gradients.prediction_of(network, text) is None for text in texts):
            return f"no text of {source} fits the model" + ("" if network.outputs else f" and has one blank ({BLANK})")
        self._texts[network.folder] = (source, texts)
        return None

    def measure(self, network: ProbedNetwork) -> _Found:
        """Explain the prediction of each text, and delete its words in two orders."""
        source, texts = self._texts[network.folder]
        inputs = [(i, text, gradients.prediction_of(network, text)) for i, text in enumerate(texts)]
        explained = [self._explain(network, i, text, found) for i, text, found in inputs if found is not None]
        is_number = network.outputs is not None and network.outputs.kind == "number"
        return _Found(explained, len(texts) - len(explained), source, is_number)

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the check of each model, its curves, and the words of some texts."""
        scores = [
            ProbeScore(
                each.model, "deletion, drop without top words − random words", _lead(each.trained),
                {"untrained": _lead(each.untrained).value},
            )
            for each in measured
        ]  # fmt: skip
        sections = [_section(measured), *(_text_section(each) for each in measured)]
        numbers = {each.model: _numbers(each) for each in measured}
        tables = {
            "attribution": [row for each in measured for row in _word_rows(each)],
            "attribution-deletion": [row for each in measured for row in _curve_rows(each)],
        }
        return ProbeReport(scores, sections, {"models": numbers}, tables)

    def _read(self, network: ProbedNetwork) -> tuple[str, list[str]]:
        """Return the name of the texts and a sample of them, or the reason why there are none."""
        if self._own is not None:
            source, texts = str(self.settings.text), self._own
        else:
            source, texts = _test_rows(network.folder) if network.outputs is not None else _blanks()
        limit = self.row_count(_TEXTS, fewest=6)
        return source, [texts[i] for i in sample(len(texts), limit, self.settings.seed, "attribution texts")]

    def _explain(self, network: ProbedNetwork, index: int, text: str, found: gradients.Prediction) -> _Explained:
        attribution = gradients.attribute(network, found)
        words = [word for word, positions in enumerate(found.tokens) if positions]
        orders = [sorted(words, key=lambda word: -attribution.words[word])]
        rng = generator(self.settings.seed, 0, index, "attribution deletion")
        orders += [[words[i] for i in rng.permutation(len(words))] for _ in range(_RANDOM_ORDERS)]
        top, *random = gradients.drops(network, found, attribution.target, orders, FRACTIONS)
        means = [float(value) for value in np.mean(random, axis=0)]
        name = _name(network, attribution)
        return _Explained(text, found.words, name, attribution, top, means)


def _name(network: ProbedNetwork, attribution: gradients.Attribution) -> str:
    if network.outputs is None:
        return token_text(network, attribution.target)
    is_number = network.outputs.kind == "number"
    return f"{attribution.value:.3f}" if is_number else network.outputs.labels[attribution.target]


def _test_rows(folder: Path) -> tuple[str, list[str]]:
    """Return the file of the test or validation rows of the run that wrote a folder, and their texts."""
    values = artifact.read_manifest(folder) if artifact.is_complete(folder) else {}
    recipe = values.get("recipe", {}) if values.get("kind") == FinetuneManifest.KIND else {}
    data, columns = recipe.get("data", {}), recipe.get("task", {}).get("text", [])
    # The page names a file as the recipe does: variables keep folders of this machine out of it.
    written = [data[split] for split in ("test", "validation") if isinstance(data.get(split), str)]
    found = ((name, Path(config.expand_saved(name, folder))) for name in written)
    name, path = next(((name, path) for name, path in found if path.is_file()), ("", None))
    if path is None or len(columns) != 1:
        return "the texts of its training are not known, or are pairs; pass texts as --text", []
    return name, [row[columns[0]] for row in read_columns(path, columns)]


def _blanks() -> tuple[str, list[str]]:
    """Return the first fact of each relation as a text with a blank."""
    path = data_file(_FACTS)
    if path is None:
        return f"there is no {_FACTS} in the data folder; set HEADSTART_DATA to it, or pass texts as --text", []
    texts: dict[str, str] = {}
    for row in read_columns(path, ("relation", "pattern", "subject")):
        texts.setdefault(row["relation"], row["pattern"].replace("[X]", row["subject"]).replace("[Y]", BLANK))
    return _FACTS, list(texts.values())


def _lead(found: _Found) -> Estimate:
    return bootstrap_mean([text.lead for text in found.texts])


def _mean_drop(found: _Found, order: str) -> Estimate:
    return bootstrap_mean([float(np.mean(getattr(text, order))) for text in found.texts])


def _curve(found: _Found, order: str) -> list[Estimate]:
    """Return the mean drop at each fraction."""
    return [bootstrap_mean([getattr(text, order)[k] for text in found.texts]) for k in range(len(FRACTIONS))]


def _agreement(each: Measured) -> Estimate:
    """Return the mean rank correlation of the absolute attributions with those of the untrained network."""
    values = []
    for trained, untrained in zip(each.trained.texts, each.untrained.texts, strict=True):
        pair = [np.abs(text.attribution.words) for text in (trained, untrained)]
        if len(pair[0]) > 2 and all(np.ptp(part) > 0 for part in pair):
            values.append(float(spearmanr(*pair).statistic))
    return bootstrap_mean(values) if values else Estimate(None)


def _incomplete(found: _Found) -> int:
    """Return the number of texts whose attributions do not sum to the change of the prediction within the tolerance."""
    return sum(text.attribution.error > gradients.TOLERANCE for text in found.texts)


def _section(measured: Sequence[Measured]) -> ReportSection:
    notes = [
        "Integrated gradients (Sundararajan et al. 2017) divide the change of a prediction's log-odds, from the text "
        "with all words replaced to the text itself, among its words. They describe this network on this text, and "
        "depend on what replaces a word: the mask token where there is one.",
        "Check: the words with the largest attributions are replaced, then as many random words (mean of "
        f"{_RANDOM_ORDERS} orders). If attributions are faithful, the probability of the prediction falls more without "
        f"the former. The lead is the difference of the two drops, a mean over {_shown(FRACTIONS)} % of the words, "
        "with its bootstrap interval over texts (95 %). A text with replaced words is unlike those of training, so "
        "part of every drop is due to that (Hooker et al. 2019); random words show how large a part.",
        "The last column is the rank correlation of attributions (absolute values) with those of the untrained "
        "network. Where it is high, attributions show the architecture and the text rather than what was learned "
        "(Adebayo et al. 2018).",
    ]
    notes += [f"Texts of {each.model}: {each.trained.source}." for each in measured]
    notes += [
        f"{each.model}: {each.trained.skipped:,} of {each.trained.skipped + len(each.trained.texts):,} texts were left "
        "out, because they are too long or have no blank."
        for each in measured
        if each.trained.skipped
    ]
    notes += [
        f"{each.model}: the attributions of {_incomplete(each.trained):,} texts sum to the change of the prediction "
        f"with an error of more than {gradients.TOLERANCE:.0%}."
        for each in measured
        if _incomplete(each.trained)
    ]
    rows = [
        [
            Quoted(each.model), f"{len(each.trained.texts):,}",
            percent(_mean_drop(each.trained, "top")), percent(_mean_drop(each.trained, "random")),
            percent(_lead(each.trained), "+"), percent(_lead(each.untrained), "+"), _correlation(_agreement(each)),
        ]
        for each in measured
    ]  # fmt: skip
    header = ["model", "texts", "drop × 100, top words", "drop × 100, random words", "lead × 100"]
    header += ["lead × 100, untrained", "correlation with untrained"]
    table = ReportTable("Deletion of words", header, rows, [False, *[True] * 6])
    return ReportSection("Attribution", notes, [part for each in measured for part in _charts(each)], [table])


def _shown(fractions: Sequence[float]) -> str:
    return ", ".join(f"{100 * value:.0f}" for value in fractions)


def _correlation(estimate: Estimate) -> str:
    if estimate.value is None:
        return "–"
    return f"{estimate.value:+.2f} ({estimate.low or 0.0:+.2f} to {estimate.high or 0.0:+.2f})"


def _charts(each: Measured) -> list[Any]:
    """Return the curves of deletion with their legend."""
    lines, entries = [], []
    series = [("top words", each.trained, "top", 0, False), ("random words", each.trained, "random", 1, False)]
    series += [("top words, untrained", each.untrained, "top", 2, True)]
    for name, found, order, number, is_dashed in series:
        points = [
            ChartPoint(
                100 * part, 100 * (value.value or 0.0), f"{name}, {100 * part:.0f} %: {percent(value)}",
                100 * (value.low or 0.0), 100 * (value.high or 0.0),
            )
            for part, value in zip(FRACTIONS, _curve(found, order), strict=True)
        ]  # fmt: skip
        lines.append(ChartLine(name, Marker.of(number), [ChartPoint(0.0, 0.0), *points], is_dashed=is_dashed))
        entries.append((name, lines[-1].marker, is_dashed))
    title = f"{each.model}: drop of the {'number' if each.trained.is_number else 'probability'} × 100"
    return [line_chart(title, "% of the words deleted", "drop × 100", lines), legend(entries)]


def _text_section(each: Measured) -> ReportSection:
    """Show the words of some texts, shaded by their attribution to the prediction."""
    shown = [i for i, text in enumerate(each.trained.texts) if len(text.words) <= _MOST_WORDS][:_SHOWN]
    tables = []
    for i in shown:
        text, untrained = each.trained.texts[i], each.untrained.texts[i]
        rows, shades = [], []
        most = max(text.attribution.words + untrained.attribution.words, default=0.0)
        for name, one in (("trained", text), ("untrained", untrained)):
            values = one.attribution.words
            rows.append([f"{name}: {one.prediction}", *(f"{value:+.2f}" for value in values)])
            shades.append([round(9 * max(0.0, value) / most) if most > 0 else 0 for value in values])
        start, end = text.attribution.baseline, text.attribution.value
        caption = f"{text.prediction}: {start:+.2f} with all words replaced, {end:+.2f} with them"
        header = ["prediction", *map(Quoted, text.words)]
        tables.append(ReportTable(Quoted(caption), header, rows, [False, *[True] * len(text.words)], shades))
    notes = [
        "What each word adds to the log-odds of the prediction, in nats. Words that speak for it are shaded, those "
        "against it are negative."
    ]
    return ReportSection(Quoted(f"Words that moved predictions of {each.model}"), notes, (), tables)


def _numbers(each: Measured) -> dict[str, Any]:
    found = each.trained
    return {
        "data": found.source, "texts": len(found.texts), "skipped": found.skipped, "fractions": list(FRACTIONS),
        "lead": asdict(_lead(found)), "untrained_lead": asdict(_lead(each.untrained)),
        **{f"drop_{order}": [asdict(value) for value in _curve(found, order)] for order in ("top", "random")},
        "correlation_with_untrained": asdict(_agreement(each)),
        "completeness": {
            "tolerance": gradients.TOLERANCE, "beyond": _incomplete(found),
            "largest_error": max(text.attribution.error for text in found.texts),
            "most_steps": max(text.attribution.steps for text in found.texts),
        },
    }  # fmt: skip


def _word_rows(each: Measured) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model, "index": i, "text": text.text, "prediction": text.prediction, "word_index": k,
            "word": word, "attribution": text.attribution.words[k], "untrained": untrained.attribution.words[k],
        }
        for i, (text, untrained) in enumerate(zip(each.trained.texts, each.untrained.texts, strict=True))
        for k, word in enumerate(text.words)
    ]  # fmt: skip


def _curve_rows(each: Measured) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model, "network": network, "order": order, "fraction": fraction, "drop": value.value,
            "drop_low": value.low, "drop_high": value.high,
        }
        for network, found in (("trained", each.trained), ("untrained", each.untrained))
        for order in ("top", "random")
        for fraction, value in zip(FRACTIONS, _curve(found, order), strict=True)
    ]  # fmt: skip
