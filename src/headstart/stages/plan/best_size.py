"""`headstart plan --best`: the size and vocabulary with the lowest expected loss for a time budget on this machine.

`scaling_table.json` holds the held-out losses of complete runs, each with a schedule over its own number of tokens;
`python docs/results/scaling_table.py` measures them. The speed of each candidate is timed on this machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from headstart.core import config, registry
from headstart.core.errors import ArtifactError, RecipeError
from headstart.stages.plan import forecast
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.training.budget import Budget

TABLE = Path(__file__).with_name("scaling_table.json")
_MAX_EXTRAPOLATION = 2
"""Factor beyond the measured tokens up to which a recommendation is made: the loss is not linear in log tokens."""


@dataclass(frozen=True)
class SizeCandidate:
    """A size and a vocabulary, the tokens that they would read within the budget, and the expected loss."""

    size: str
    vocab: int
    tokens_per_second: float
    tokens: float
    loss: float
    """In nats per byte of predicted text, because tokens of different vocabularies differ in length."""
    measured: tuple[float, float]
    """The smallest and the largest number of tokens of a measured run."""
    cores: float = 1.0
    """The fraction of its cores' time that the timed process got."""

    @property
    def extrapolated(self) -> bool:
        """True if the budget is outside the measured range."""
        return not self.measured[0] <= self.tokens <= self.measured[1]

    @property
    def too_far(self) -> bool:
        """True if the budget is too far outside the measured range for a recommendation."""
        low, high = self.measured[0] / _MAX_EXTRAPOLATION, self.measured[1] * _MAX_EXTRAPOLATION
        return not low <= self.tokens <= high


def run(recipe: Any, table: Path = TABLE) -> list[SizeCandidate]:
    """Time every size and vocabulary of the table under a filled recipe; return the candidates, best first."""
    if not isinstance(recipe, PretrainRecipe):
        raise RecipeError(
            "this is not a recipe of `headstart pretrain`", allowed="`--best` chooses a network to pre-train"
        )
    if recipe.tokenizer is None:
        raise RecipeError(
            "`tokenizer` is not set, because corpus.from may bring its own tokenizer",
            allowed="`--best` compares vocabularies of several sizes",
            do="Use raw files, or a corpus without token shards and a tokenizer section",
        )
    if not table.is_file():
        raise ArtifactError(
            f"the table of measured runs {table} does not exist",
            do="Run `python docs/results/scaling_table.py` in a checkout of Headstart",
        )
    measured = json.loads(table.read_text(encoding="utf-8"))
    seconds = _seconds(recipe, measured)
    candidates = []
    for size, vocab in sorted({(row["size"], row["vocab"]) for row in measured["rows"]}):
        rows = [row for row in measured["rows"] if (row["size"], row["vocab"]) == (size, vocab)]
        points = sorted((row["tokens"], row["loss"] / row["bytes_per_token"]) for row in rows)
        raw = config.apply_overrides(config.to_dict(recipe), [f"backbone.size={size}", f"tokenizer.vocab_size={vocab}"])
        plan = forecast.run(config.fill(PretrainRecipe, raw))
        speed = plan["tokens_per_second"]
        tokens = speed * seconds
        bounds = (points[0][0], points[-1][0])
        candidates.append(
            SizeCandidate(size, vocab, speed, tokens, expected_loss(points, tokens), bounds, plan["cores"])
        )
    return sorted(candidates, key=lambda candidate: candidate.loss)


def expected_loss(points: Sequence[tuple[float, float]], tokens: float) -> float:
    """Return the loss at a number of tokens, by linear interpolation over log tokens; outside, by the end's slope."""
    if len(points) == 1:
        return points[0][1]
    spans = list(pairwise(points))
    (left, high), (right, low) = next((span for span in spans if tokens <= span[1][0]), spans[-1])
    fraction = math.log(tokens / left) / math.log(right / left)
    return high + fraction * (low - high)


def render(candidates: Sequence[SizeCandidate]) -> str:
    """Return the candidates and the recommended one as lines of text."""
    best, *others = candidates
    lines = [
        f"{c.size:<8}{c.vocab:>8,} tokens of vocabulary · {c.tokens_per_second:>8,.0f} tokens per second here · "
        f"{c.tokens / 1e6:>8,.1f} M in the budget · {c.loss:.4f} nats per byte" + (" (extrapolated)" * c.extrapolated)
        for c in candidates
    ]
    if any(candidate.too_far for candidate in candidates[:2]):
        lines.append(
            f"no recommendation: the longest measured run has {max(c.measured[1] for c in candidates) / 1e6:,.1f} M "
            "tokens, which is too few to extrapolate from. `python docs/results/scaling_table.py --tokens …` measures "
            "longer runs."
        )
    else:
        lines.append(f"best: backbone.size={best.size} tokenizer.vocab_size={best.vocab}. {_reason(best, others)}")
    if min(candidate.cores for candidate in candidates) < forecast.QUIET:
        lines.append("Other processes used the CPU while the speeds were measured. Run this again on an idle machine.")
    return "\n".join(lines)


def _reason(best: SizeCandidate, others: Sequence[SizeCandidate]) -> str:
    if not others:
        return "The table has no other candidate."
    second = others[0]
    ratio = best.tokens / second.tokens
    return (
        f"It reads {ratio:.2g} × the tokens of the next best, {second.size} with a vocabulary of {second.vocab:,}, and "
        f"its expected loss is {second.loss - best.loss:.4f} nats per byte lower."
    )


def _seconds(filled: PretrainRecipe, measured: Mapping[str, Any]) -> float:
    """Return the time budget of a recipe; raise if the table has no runs of its kind."""
    budget = Budget.parse(filled.training.budget)
    if budget.unit != "seconds":
        raise RecipeError(
            f"`training.budget` is {filled.training.budget!r}",
            allowed="`--best` needs a budget in time, such as 30 min or 2 h",
            do="Add training.budget='30 min'",
        )
    kind, objective = getattr(filled.backbone, "kind", None), registry.name_of("objectives", filled.objective)
    if (kind, objective) != (measured["kind"], measured["objective"]):
        raise RecipeError(
            f"the recipe trains {kind} with {objective}",
            allowed=f"The table has runs of {measured['kind']} with {measured['objective']}",
            do="Omit `--best`, or measure your own table with docs/results/scaling_table.py",
        )
    return budget.amount
