"""The quality step: the published rules of Gopher, C4 and FineWeb by name, each with its threshold in the recipe."""

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
    """Which families of rules are asked; null leaves one out."""

    gopher: Gopher | None = Field(Gopher(), description="words, symbols, bullets, stop words")
    repetition: Repetition | None = Field(Repetition(), description="lines, paragraphs and n-grams that repeat")
    fineweb: FineWeb | None = Field(FineWeb(), description="ends of lines, repeated and short lines")
    c4: C4 | None = Field(None, description="whole sentences only; takes out lines, so it is off unless asked for")


class Quality:
    """Drop a document by the first rule that it fails."""

    name = "quality"

    def __init__(self, config: QualityConfig, exempt: Mapping[str, Sequence[str]] | None = None) -> None:
        """Remember the rules, and for each source the names of those that do not hold for it."""
        self.config = config
        families = (config.gopher, config.repetition, config.fineweb, config.c4)
        self.families = [family for family in families if family is not None]
        self.rules = [rule for family in self.families for rule in family.rules()]
        self.exempt = {source: set(names) for source, names in (exempt or {}).items()}
        self._require_known()

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch, C4's bad lines taken out, with a verdict on each document and its number of words."""
        if self.config.c4 is not None:
            table = self._without_bad_lines(table, self.config.c4)
        values = self.measure(table["text"])
        decided = verdict([], values, len(table))
        for rules, rows in self._by_source(table):
            mine = verdict(rules, values, len(table))
            decided = mine if rows is None else pc.if_else(pa.array(rows), mine, decided)
        return StepOutput(table, decided)

    def measure(self, texts: pa.Array | pa.ChunkedArray) -> Values:
        """Return what the rules look at, by name, for each text."""
        needed = dict.fromkeys(name for family in self.families for name in family.counts)
        numbers = counts.measured(texts, needed)
        values: Values = {}
        for family in self.families:
            values |= family.measures(numbers)
            if isinstance(family, Repetition):
                values |= family.of_ngrams(texts)
        return values

    def _by_source(self, table: pa.Table) -> list[tuple[list[Rule], Bools | None]]:
        """Return the rules, and for which rows they are asked; None where there are no exceptions."""
        present = set(pc.unique(table["source"]).to_pylist()) if self.exempt else set()
        if not present & self.exempt.keys():
            return [(self.rules, None)]
        found: list[tuple[list[Rule], Bools | None]] = []
        for source in present:
            rules = [rule for rule in self.rules if rule.name not in self.exempt.get(source, ())]
            found.append((rules, pc.equal(table["source"], source).to_numpy(zero_copy_only=False)))
        return found

    def _without_bad_lines(self, table: pa.Table, rules: C4) -> pa.Table:
        from daft import col

        texts = evaluate(table.select(["text"]), {"text": rules.without_bad_lines(col("text"))})["text"]
        return with_text(table, texts)

    def _require_known(self) -> None:
        known = [rule.name for rule in self.rules]
        for source, names in self.exempt.items():
            for name in names:
                if name not in known:
                    raise RecipeError(
                        f"source {source!r} is without {name!r}, which is no rule here{suggest(name, known)}",
                        allowed=f"Known: {', '.join(known)}",
                    )
