"""Checks of a training curve: is the run healthy, and if not, why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from headstart.training import schedule
from headstart.training.settings import TrainingSettings

Curve = Sequence[Mapping[str, Any]]
"""Lines of a log, such as those of metrics.jsonl."""
_MIN_LINES = 12
"""Lines of a log before trends are judged."""
EARLY = 500
"""Updates before which a network is expected to know token frequencies and little else."""
_CLIPPED = 0.9
"""The fraction of clipped gradients above which clipping sets the size of the updates."""


@dataclass(frozen=True)
class Finding:
    """One sentence about a run, and its level; `status` is neither good nor bad."""

    level: Literal["problem", "warning", "ok", "status"]
    sentence: str


def check_curve(curve: Curve, settings: TrainingSettings, planned: bool = True) -> list[Finding]:
    """Return findings about loss, learning rate, gradient norm and speed.

    `planned` means that the learning rate follows these settings, which an adaptation may replace with its own.
    """
    lines = [line for line in curve if "loss" in line]
    if not lines:
        return [Finding("warning", "Nothing has been logged yet.")]
    if len(lines) < _MIN_LINES:
        few = Finding("warning", f"Only {len(lines)} lines have been logged, which is too few to judge trends.")
        return [few, *_clipping(lines, settings.max_grad_norm, "gradients")]
    gradients = _gradients(lines, settings.max_grad_norm)
    return [*_loss(lines), *_rate(lines, settings, planned), *gradients, *_speed(lines)]


def check_end(curve: Curve, max_grad_norm: float, name: str = "loss") -> list[Finding]:
    """Return what is wrong with the training loss, the gradients and the held-out loss of a finished run."""
    lines = [line for line in curve if "loss" in line]
    findings = _clipping(lines, max_grad_norm, "gradients")
    if len(lines) >= _MIN_LINES:
        findings = [*_loss(lines), *_gradients(lines, max_grad_norm)]
    return [f for f in [*findings, *check_held_out(curve, name)] if f.level != "ok"]


def check_unigrams(
    evaluations: Sequence[tuple[int, float]], name: str, entropy: float, vocab_size: int, finished: bool
) -> Finding:
    """Compare the held-out losses of a run with that of a unigram model, which knows token frequencies only.

    Args:
        evaluations: step and held-out loss of each evaluation.
        name: the name of the loss.
        entropy: the loss of the unigram model.
        vocab_size: the number of tokens, by which uniform guessing is known.
        finished: False for a run that may still learn.
    """
    step, loss = evaluations[-1]
    comparison = f"The held-out {name} is {loss:.2f} nats, and that of a unigram model {entropy:.2f}"
    if loss < entropy - 0.1:
        return Finding("ok", f"{comparison}: the model has learned {entropy - loss:.2f} nats beyond it.")
    if is_early(step, loss, finished):
        return Finding("warning", f"{comparison}. This is normal in the first {EARLY} steps.")
    return Finding("problem", f"{comparison}. {_reason([loss for _, loss in evaluations], vocab_size, step)}")


def is_early(step: int, loss: float, finished: bool) -> bool:
    """True if a run cannot be expected to know more than token frequencies yet."""
    return step < EARLY and not finished and math.isfinite(loss)


def _reason(losses: Sequence[float], vocab_size: int, step: int) -> str:
    """Return why a run is no better than a unigram model, and what to try.

    It has diverged if its loss is NaN or Inf, above its best value, or above that of uniform guessing.
    """
    best = min([math.log(vocab_size), *(loss for loss in losses if math.isfinite(loss))])
    if not losses[-1] <= best + 0.1:
        return "The run has diverged. Lower `training.learning_rate`, or raise `training.warmup_ratio`."
    if step < EARLY:
        return f"The model has not learned more than token frequencies, because {step:,} steps are too few."
    return "The model has not learned more than token frequencies. Try another `training.learning_rate` first."


def _verdict(complaint: str, otherwise: str, level: Literal["problem", "warning"] = "problem") -> list[Finding]:
    """Return the complaint at its level, or what is fine if there is no complaint."""
    return [Finding(level, complaint) if complaint else Finding("ok", otherwise)]


def check_held_out(curve: Curve, name: str = "loss") -> list[Finding]:
    """Return a finding about overfitting: whether a held-out loss is still near its lowest value."""
    key = f"validation/{name}"
    values = [(line["step"], line[key]) for line in curve if key in line]
    if len(values) < 3:
        return []
    finite = [pair for pair in values if math.isfinite(pair[1])] or values
    best_step, best = min(finite, key=lambda pair: pair[1])
    _, last = values[-1]
    if not math.isfinite(last):
        return [Finding("problem", f"The held-out {name} is {last} at the last evaluation. Lower the learning rate.")]
    worse = (last - best) / max(abs(best), 1e-9)
    overfits = (
        f"The held-out {name} was best at step {best_step:,} ({best:.3f}) and is {last:.3f} at the last evaluation: "
        "the model overfits. Use more data, more dropout or a smaller budget."
    )
    fine = f"The held-out {name} is {last:.3f}, at or near its best value."
    return _verdict("" if worse <= 0.02 else overfits, fine, "warning")


def check_records(quarantined: Curve, spikes: Curve, steps: int) -> list[Finding]:
    """Return findings about the steps that changed no weights, and about loss and gradient spikes."""
    findings = [_quarantine(quarantined, steps)]
    if spikes:
        last = spikes[-1]
        rows = ", ".join(str(row["index"]) for row in last.get("rows", [])[:3])
        findings.append(
            Finding(
                "warning" if len(spikes) > max(3, steps / 1000) else "ok",
                f"{len(spikes)} {_steps(len(spikes))} had a spike in loss or gradient norm, most recently step "
                f"{last['step']:,}" + (f", where rows {rows} had the highest loss" if rows else "")
                + " (logs/spikes.jsonl).",
            )
        )  # fmt: skip
    return findings


def _quarantine(quarantined: Curve, steps: int) -> Finding:
    if not quarantined:
        return Finding("ok", "No step had a NaN or Inf loss or gradient.")
    rows = sorted({row["index"] for line in quarantined for row in line.get("rows", [])})
    named = f"; the loss of rows {', '.join(map(str, rows[:5]))} alone is NaN or Inf" if rows else ""
    return Finding(
        "problem" if len(quarantined) > max(1, steps / 100) else "warning",
        f"{len(quarantined)} of {steps:,} steps had a NaN or Inf loss or gradient and changed no weights{named} "
        "(logs/quarantine.jsonl).",
    )


def _steps(count: int) -> str:
    return "step" if count == 1 else "steps"


def _loss(lines: Curve) -> list[Finding]:
    tenth = max(3, len(lines) // 10)
    first = statistics.fmean(line["loss"] for line in lines[:tenth])
    last = statistics.fmean(line["loss"] for line in lines[-tenth:])
    stuck = (
        f"The training loss does not fall: {first:.3f} over the first lines, {last:.3f} over the last. Try a learning "
        "rate ten times lower, then ten times higher, for a minute each."
    )
    return _verdict("" if last < 0.99 * first else stuck, f"The training loss fell from {first:.3f} to {last:.3f}.")


def _rate(lines: Curve, settings: TrainingSettings, planned: bool) -> list[Finding]:
    rates, fractions = [line["learning_rate"] for line in lines], [line["share"] for line in lines]
    if max(rates) == 0:
        return [Finding("problem", f"The learning rate is 0 in all {len(rates)} lines: nothing is learned.")]
    recent = slice(-_MIN_LINES, None)
    if len(set(rates[recent])) == 1 and len(set(fractions[recent])) == 1:
        return [
            Finding(
                "problem",
                f"The learning rate is stuck at {rates[-1]:.2e}: the used fraction of the budget ({fractions[-1]:.1%}) "
                f"has not changed over the last {_MIN_LINES} lines.",
            )
        ]
    if planned and _off_schedule(rates, fractions, settings):
        return [
            Finding("problem", "The learning rate does not follow its schedule: the log does not match the recipe.")
        ]
    if fractions[-1] < settings.warmup_ratio:
        peak = settings.learning_rate
        return [Finding("ok", f"The learning rate is in its warmup ({rates[-1]:.2e}, peak {peak:.2e}).")]
    return [Finding("ok", f"The learning rate follows its schedule (last value {rates[-1]:.2e}).")]


def _off_schedule(rates: Sequence[float], fractions: Sequence[float], settings: TrainingSettings) -> bool:
    """Return True if a rate is outside the range that the schedule takes between its line and the line before."""
    plan = [schedule.rate_factor(f, settings.lr_scheduler_type, settings.warmup_ratio) for f in fractions]
    for rate, (before, after), (start, stop) in zip(rates[1:], pairwise(plan), pairwise(fractions), strict=True):
        # The peak may be between two lines.
        high = 1.0 if start <= settings.warmup_ratio <= stop else max(before, after)
        if not min(before, after) - 0.02 <= rate / settings.learning_rate <= high + 0.02:
            return True
    return False


def _gradients(lines: Curve, limit: float) -> list[Finding]:
    norms = [line["gradient_norm"] for line in lines]
    quarter = max(3, len(norms) // 4)
    before, now = statistics.median(norms[quarter : 2 * quarter]), statistics.median(norms[-quarter:])
    if now < 1e-5:
        return [Finding("problem", f"The gradient has vanished (norm {now:.1e}): the weights hardly change.")]
    if now > 5 * before:
        return [
            Finding(
                "problem",
                f"The gradient norm has grown from {before:.2f} to {now:.2f}, which often precedes a NaN loss. Lower "
                "`training.learning_rate`, or raise `training.warmup_ratio`.",
            )
        ]
    clipped = sum(norm > limit for norm in norms[-quarter:]) / quarter
    fine = f"The gradient norm is {now:.2f}, and {clipped:.0%} of the last gradients were clipped."
    return _clipping(lines[-quarter:], limit, "last gradients") or [Finding("ok", fine)]


def _clipping(lines: Curve, limit: float, which: str) -> list[Finding]:
    """Return a finding if nearly all gradients of three or more lines were clipped."""
    norms = [line["gradient_norm"] for line in lines]
    clipped = sum(norm > limit for norm in norms) / max(len(norms), 1)
    if len(norms) < 3 or clipped <= _CLIPPED:
        return []
    now = statistics.median(norms)
    return [
        Finding(
            "warning",
            f"{clipped:.0%} of the {which} were clipped (median norm {now:.2f}, limit {limit:g}), by a factor of "
            f"{now / limit:.1f}: clipping, not the learning rate, sets the size of the updates.",
        )
    ]


def _speed(lines: Curve) -> list[Finding]:
    # The first lines include compilation and cold caches.
    speeds = [line["tokens_per_second"] for line in lines[2:]]
    quarter = max(3, len(speeds) // 4)
    usual, now = statistics.median(speeds), statistics.median(speeds[-quarter:])
    dropped = (
        f"The speed dropped to {now:,.0f} tokens per second from a median of {usual:,.0f}: another process uses the "
        "machine, or rows have become longer."
    )
    return _verdict(dropped if now < 0.7 * usual else "", f"The speed is {now:,.0f} tokens per second.", "warning")
