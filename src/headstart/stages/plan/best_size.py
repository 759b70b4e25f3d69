"""Which size and vocabulary make the most of a time budget on this machine, by a table of measured runs.

The table beside this file holds held-out losses of whole runs, each with its schedule over its own number of tokens;
`python docs/results/scaling_table.py` measures them. How fast each candidate trains is timed here and now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from headstart.core import config
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.plan import forecast
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.budget import Budget

TABLE = Path(__file__).with_name("scaling_table.json")
_REACH = 2
"""How many times the tokens of the longest measured run a slope is followed for a verdict: losses bend."""


@dataclass(frozen=True)
class SizeCandidate:
    """A size and a vocabulary, what they would read within the budget, and the loss that this is expected to give."""

    size: str
    vocab: int
    tokens_per_second: float
    tokens: float
    loss: float
    """In nats per byte of what is predicted, since tokens of different vocabularies are of different length."""
    measured: tuple[float, float]
    """The fewest and the most tokens of a measured run."""
    cores: float = 1.0
    """The share of its cores' time that the timing had."""

    @property
    def beyond(self) -> bool:
        """Say whether the budget lies outside of what was measured."""
        return not self.measured[0] <= self.tokens <= self.measured[1]

    @property
    def far_beyond(self) -> bool:
        """Say whether the budget lies so far outside that the last slope says nothing."""
        return not self.measured[0] / _REACH <= self.tokens <= self.measured[1] * _REACH


def run(recipe: Any, table: Path = TABLE) -> list[SizeCandidate]:
    """Time every size and vocabulary of the table under a filled recipe, and return them, the best first."""
    if not isinstance(recipe, PretrainRecipe):
        raise RecipeError("this is no recipe of `headstart pretrain`", allowed="--best chooses a network to pre-train")
    if not table.is_file():
        raise ArtifactError(
            f"there is no table of measured runs at {table}",
            do="Run `python docs/results/scaling_table.py` in a checkout of Headstart",
        )
    known = json.loads(table.read_text(encoding="utf-8"))
    seconds = _seconds(recipe, known)
    found = []
    for size, vocab in sorted({(row["size"], row["vocab"]) for row in known["rows"]}):
        rows = [row for row in known["rows"] if (row["size"], row["vocab"]) == (size, vocab)]
        points = sorted((row["tokens"], row["loss"] / row["bytes_per_token"]) for row in rows)
        raw = config.apply_overrides(config.to_dict(recipe), [f"backbone.size={size}", f"tokenizer.vocab_size={vocab}"])
        timed = forecast.run(config.fill(PretrainRecipe, raw))
        speed = timed["tokens_per_second"]
        tokens = speed * seconds
        bounds = (points[0][0], points[-1][0])
        found.append(SizeCandidate(size, vocab, speed, tokens, expected(points, tokens), bounds, timed["cores"]))
    return sorted(found, key=lambda candidate: candidate.loss)


def expected(points: Sequence[tuple[float, float]], tokens: float) -> float:
    """Return the loss at so many tokens: straight between measured runs over the logarithm, and by the end's slope."""
    if len(points) == 1:
        return points[0][1]
    spans = list(pairwise(points))
    (left, high), (right, low) = next((span for span in spans if tokens <= span[1][0]), spans[-1])
    share = math.log(tokens / left) / math.log(right / left)
    return high + share * (low - high)


def render(found: Sequence[SizeCandidate]) -> str:
    """Say which is best and why, in lines."""
    best, *others = found
    lines = [
        f"{c.size:<8}{c.vocab:>8,} tokens of vocabulary · {c.tokens_per_second:>8,.0f} tokens a second here · "
        f"{c.tokens / 1e6:>8,.1f} M in the budget · {c.loss:.4f} nats a byte"
        + (" (beyond what was measured)" * c.beyond)
        for c in found
    ]
    if any(candidate.far_beyond for candidate in found[:2]):
        lines.append(
            f"no verdict: the measured runs end at {max(c.measured[1] for c in found) / 1e6:,.1f} M tokens, and losses "
            "bend. `python docs/results/scaling_table.py --tokens …` measures longer runs."
        )
    else:
        lines.append(f"best: backbone.size={best.size} tokenizer.vocab_size={best.vocab}. {_why(best, others)}")
    if min(candidate.cores for candidate in found) < forecast.QUIET:
        lines.append(
            "Others had a part of the cores' time while speeds were measured: run this again on a quiet machine."
        )
    return "\n".join(lines)


def _why(best: SizeCandidate, others: Sequence[SizeCandidate]) -> str:
    if not others:
        return "The table holds no other."
    second = others[0]
    reads = best.tokens / second.tokens
    return (
        f"It reads {reads:.2g} × the tokens of {second.size} with {second.vocab:,}, the next best, and is expected to "
        f"end {second.loss - best.loss:.4f} nats a byte below it."
    )


def _seconds(filled: PretrainRecipe, known: Mapping[str, Any]) -> float:
    """Return the time budget of a recipe that the table can speak of."""
    budget = Budget.parse(filled.training.budget)
    if budget.unit != "seconds":
        raise RecipeError(
            f"training.budget is {filled.training.budget!r}",
            allowed="--best weighs size against speed, within a time: 30 min, 2 h",
            do="Add training.budget='30 min'",
        )
    asked = (getattr(filled.backbone, "kind", None), filled.objective.name)  # type: ignore[attr-defined]
    if asked != (known["kind"], known["objective"]):
        raise RecipeError(
            f"the recipe trains {asked[0]} by {asked[1]}",
            allowed=f"The table holds runs of {known['kind']} by {known['objective']}",
            do="Leave --best out, or measure a table of your own with docs/results/scaling_table.py",
        )
    return budget.amount
