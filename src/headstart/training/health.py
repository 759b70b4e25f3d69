"""Whether a run is healthy, judged by its curve alone and said in sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from headstart.training import schedule
from headstart.training.settings import TrainingSettings

Curve = Sequence[Mapping[str, Any]]
_ENOUGH = 12
"""Lines of a log before trends are spoken of."""


@dataclass(frozen=True)
class Remark:
    """One sentence on a run, and how grave it is."""

    verdict: Literal["good", "look", "bad"]
    sentence: str


def of_curve(curve: Curve, settings: TrainingSettings, planned: bool = True) -> list[Remark]:
    """Judge what was logged: does the loss fall, the rate move, the gradient stay in bounds, the speed hold.

    `planned` says that the rate follows these very settings, which an adaptation may replace by its own.
    """
    lines = [line for line in curve if "loss" in line]
    if not lines:
        return [Remark("look", "Nothing has been logged yet.")]
    if len(lines) < _ENOUGH:
        return [Remark("look", f"Only {len(lines)} lines have been logged: too few to speak of trends.")]
    return [*_loss(lines), *_rate(lines, settings, planned), *_gradients(lines, settings), *_speed(lines)]


def of_held_out(curve: Curve, name: str = "loss", lower_is_better: bool = True) -> list[Remark]:
    """Judge whether the held-out measure still improves."""
    key = f"validation/{name}"
    found = [(line["step"], line[key]) for line in curve if key in line]
    if len(found) < 3:
        return []
    best_step, best = (min if lower_is_better else max)(found, key=lambda pair: pair[1])
    _, last = found[-1]
    worse = (last - best if lower_is_better else best - last) / max(abs(best), 1e-9)
    if worse > 0.02:
        return [
            Remark(
                "look",
                f"The held-out {name} was best at step {best_step:,} ({best:.3f}) and is {last:.3f} now: training goes "
                "on past what the data gives. More data, more dropout or a smaller budget helps.",
            )
        ]
    return [Remark("good", f"The held-out {name} is {last:.3f}, at or near its best.")]


def of_records(quarantined: Curve, spikes: Curve, steps: int) -> list[Remark]:
    """Judge the steps that made no update and those whose loss or gradient stood out."""
    found = [_quarantine(quarantined, steps)]
    if spikes:
        last = spikes[-1]
        rows = ", ".join(str(row["index"]) for row in last.get("rows", [])[:3])
        found.append(
            Remark(
                "look" if len(spikes) > max(3, steps / 1000) else "good",
                f"{len(spikes)} steps stood out by loss or gradient, the last of them step {last['step']:,}"
                + (f", where the rows {rows} had the highest loss" if rows else "")
                + " (logs/spikes.jsonl).",
            )
        )
    return found


def _quarantine(quarantined: Curve, steps: int) -> Remark:
    if not quarantined:
        return Remark("good", "No step had a loss or gradient that was not finite.")
    rows = sorted({row["index"] for line in quarantined for row in line.get("rows", [])})
    named = f"; the rows {', '.join(map(str, rows[:5]))} are bad by themselves" if rows else ""
    return Remark(
        "bad" if len(quarantined) > max(1, steps / 100) else "look",
        f"{len(quarantined)} of {steps:,} steps had a loss or gradient that was not finite and made no update{named} "
        "(logs/quarantine.jsonl).",
    )


def _loss(lines: Curve) -> list[Remark]:
    tenth = max(3, len(lines) // 10)
    first = statistics.fmean(line["loss"] for line in lines[:tenth])
    last = statistics.fmean(line["loss"] for line in lines[-tenth:])
    if not last < 0.99 * first:
        return [
            Remark(
                "bad",
                f"The training loss does not fall: {first:.3f} over the first lines, {last:.3f} over the last. Try a "
                "learning rate ten times lower, then ten times higher, for a minute each.",
            )
        ]
    return [Remark("good", f"The training loss fell from {first:.3f} to {last:.3f}.")]


def _rate(lines: Curve, settings: TrainingSettings, planned: bool) -> list[Remark]:
    rates, shares = [line["learning_rate"] for line in lines], [line["share"] for line in lines]
    if max(rates) == 0:
        return [Remark("bad", f"The learning rate has been 0 in all {len(rates)} lines: nothing is learnt.")]
    recent = slice(-_ENOUGH, None)
    if len(set(rates[recent])) == 1 and len(set(shares[recent])) == 1:
        return [
            Remark(
                "bad",
                f"The learning rate is stuck at {rates[-1]:.2e}: the share of the budget that is spent "
                f"({shares[-1]:.1%}) has not grown over the last {_ENOUGH} lines.",
            )
        ]
    if planned and _strays(rates, shares, settings):
        return [Remark("bad", "The learning rate does not follow its schedule: the log and the recipe do not agree.")]
    if shares[-1] < settings.warmup_ratio:
        return [
            Remark(
                "good", f"The learning rate still rises ({rates[-1]:.2e} of {settings.learning_rate:.2e} at the peak)."
            )
        ]
    return [Remark("good", f"The learning rate follows its schedule, {rates[-1]:.2e} now.")]


def _strays(rates: Sequence[float], shares: Sequence[float], settings: TrainingSettings) -> bool:
    """Say whether a rate lies outside of what the schedule gives between the shares of its line and the line before."""
    plan = [schedule.rate_factor(share, settings.lr_scheduler_type, settings.warmup_ratio) for share in shares]
    for rate, (before, after), (start, stop) in zip(rates[1:], pairwise(plan), pairwise(shares), strict=True):
        # Between two lines the rate may pass its peak.
        high = 1.0 if start <= settings.warmup_ratio <= stop else max(before, after)
        if not min(before, after) - 0.02 <= rate / settings.learning_rate <= high + 0.02:
            return True
    return False


def _gradients(lines: Curve, settings: TrainingSettings) -> list[Remark]:
    norms = [line["gradient_norm"] for line in lines]
    quarter = max(3, len(norms) // 4)
    before, now = statistics.median(norms[quarter : 2 * quarter]), statistics.median(norms[-quarter:])
    clipped = sum(norm > settings.max_grad_norm for norm in norms[-quarter:]) / quarter
    if now < 1e-5:
        return [Remark("bad", f"The gradient has vanished (norm {now:.1e}): nothing reaches the weights.")]
    if now > 5 * before:
        return [
            Remark(
                "bad",
                f"The gradient norm has grown from {before:.2f} to {now:.2f}, which comes before a loss that is no "
                "number. Lower the learning rate, or lengthen the warm-up.",
            )
        ]
    if clipped > 0.9 and now > 10 * settings.max_grad_norm:
        return [
            Remark(
                "look",
                f"Nearly every gradient is cut down, by a factor of {now / settings.max_grad_norm:.0f}: clipping, and "
                "not the learning rate, sets the size of the updates.",
            )
        ]
    return [Remark("good", f"The gradient norm is {now:.2f}, and {clipped:.0%} of the last ones were clipped.")]


def _speed(lines: Curve) -> list[Remark]:
    # The first lines hold compilation and cold caches.
    speeds = [line["tokens_per_second"] for line in lines[2:]]
    quarter = max(3, len(speeds) // 4)
    usual, now = statistics.median(speeds), statistics.median(speeds[-quarter:])
    if now < 0.7 * usual:
        return [
            Remark(
                "look",
                f"It reads {now:,.0f} tokens a second now, where {usual:,.0f} were usual: something else wants the "
                "machine, or rows have become longer.",
            )
        ]
    return [Remark("good", f"It reads {now:,.0f} tokens a second.")]
