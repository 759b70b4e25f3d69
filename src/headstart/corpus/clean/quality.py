"""The quality step: the published rules of Gopher, C4 and FineWeb, with their thresholds in the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.core.data import Bools
from headstart.core.errors import RecipeError
from headstart.core.registry import suggest
from headstart.corpus.clean import counts
from headstart.corpus.clean.c4 import C4
from headstart.corpus.clean.fineweb import FineWeb
from headstart.corpus.clean.gopher import Gopher
from headstart.corpus.clean.repetition import Repetition
from headstart.corpus.clean.rules import Rule, Values, verdict
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.steps import StepOutput, with_text


class QualityConfig(Section):
    """Which families of rules are applied; null turns one off."""

    gopher: Gopher | None = Field(Gopher(), description="words, symbols, bullets, stop words")
    repetition: Repetition | None = Field(Repetition(), description="lines, paragraphs and n-grams that repeat")
    fineweb: FineWeb | None = Field(FineWeb(), description="line ends, repeated and short lines")
    c4: C4 | None = Field(None, description="keep whole sentences only; off by default because it removes lines")


class Quality:
    """Drop each document that fails a rule, under the name of the first such rule."""

    name = "quality"

    def __init__(self, config: QualityConfig, exempt: Mapping[str, Sequence[str]] | None = None) -> None:
        """Build the rules; `exempt` names, for each source, the rules that are not applied to it."""
        self.config = config
        families = (config.gopher, config.repetition, config.fineweb, config.c4)
        self.families = [family for family in families if family is not None]
        self.rules = [rule for family in self.families for rule in family.rules()]
        self.exempt = {source: set(names) for source, names in (exempt or {}).items()}
        self._require_known()

    def apply(self, table: pa.Table) -> StepOutput:
        """Remove C4's bad lines if asked, and return the batch with a verdict on each document."""
        if self.config.c4 is not None:
            table = self._remove_bad_lines(table, self.config.c4)
        values = self.measure(table["text"])
        verdicts = verdict([], values, len(table))
        for rules, rows in self._by_source(table):
            of_source = verdict(rules, values, len(table))
            verdicts = of_source if rows is None else pc.if_else(pa.array(rows), of_source, verdicts)
        return StepOutput(table, verdicts)

    def measure(self, texts: pa.Array | pa.ChunkedArray) -> Values:
        """Return the measures that the rules compare with their thresholds, by name, for each text."""
        needed = dict.fromkeys(name for family in self.families for name in family.counts)
        numbers = counts.count(texts, needed)
        values: Values = {}
        for family in self.families:
            values |= family.measures(numbers)
            if isinstance(family, Repetition):
                values |= family.ngram_measures(texts)
        return values

    def _by_source(self, table: pa.Table) -> list[tuple[list[Rule], Bools | None]]:
        """Return rules with the rows to which they apply; None means all rows."""
        present = set(pc.unique(table["source"]).to_pylist()) if self.exempt else set()
        if not present & self.exempt.keys():
            return [(self.rules, None)]
        by_source: list[tuple[list[Rule], Bools | None]] = []
        for source in present:
            rules = [rule for rule in self.rules if rule.name not in self.exempt.get(source, ())]
            by_source.append((rules, pc.equal(table["source"], source).to_numpy(zero_copy_only=False)))
        return by_source

    def _remove_bad_lines(self, table: pa.Table, rules: C4) -> pa.Table:
        from daft import col

        texts = evaluate(table.select(["text"]), {"text": rules.remove_bad_lines(col("text"))})["text"]
        return with_text(table, texts)

    def _require_known(self) -> None:
        known = [rule.name for rule in self.rules]
        for source, names in self.exempt.items():
            for name in names:
                if name not in known:
                    raise RecipeError(
                        f"source {source!r} turns off the rule {name!r}, which is not used here{suggest(name, known)}",
                        allowed=f"The rules are: {', '.join(known)}",
                    )
