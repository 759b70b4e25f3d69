"""A small study with results, a failed cell and a cell that has not run."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.core import config
from headstart.stages.finetune.result import MethodDetails
from headstart.studies.definition import Study
from headstart.studies.graph import Cell
from headstart.studies.grid import System
from headstart.studies.judge import tables
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.results import CellScore, MissingCell, Results

TRAIN_ROWS = (32, 128, 512)
FULL, SVM = System(("full",)), System((), "svm")


@pytest.fixture(scope="module")
def study():
    axes = {
        "task": {"a|b": {"finetune.x": 1}, "c": {"finetune.x": 2}},
        "labels": {"finetune.data.train_rows": [*TRAIN_ROWS]},
        "method": {"full": {"finetune.adaptation": "full"}},
    }
    claims = [{"statement": "full wins", "contrast": "full > svm on mean(score)"}]
    sections = {"base": {"finetune": {}}, "axes": axes, "compare": ["method"], "baselines": ["svm"], "claims": claims}
    return config.fill(Study, {"question": "Who wins?", "output": "out", "seeds": 4, **sections})


@pytest.fixture(scope="module")
def results():
    rng, results = np.random.default_rng(0), Results()
    for task in ("a|b", "c"):
        for index, rows in enumerate(TRAIN_ROWS):
            for system, rate in ((FULL, 0.55 + 0.15 * index), (SVM, 0.65 + 0.02 * index)):
                for seed in range(4):
                    cell = Cell(system, (task, str(rows)), seed, f"{task}-{rows}-{system.name}-{seed}")
                    if (task, rows, system, seed) == ("c", 512, FULL, 3):
                        results.missing.append(MissingCell(cell, "ValueError: <boom> & more (2 attempts)"))
                        continue
                    right = (rng.random(200) < rate).astype(int).tolist()
                    cost = {"flops": 1e12 if system is FULL else 0.0, "seconds": 2.0 + index, "kwh": None, "money": 0.1}
                    results.scores.setdefault((system, cell.context), {})[seed] = CellScore(
                        cell.node, "accuracy", {"accuracy": float(np.mean(right))}, [1] * 200, right,
                        MethodDetails(train_rows=rows), cost, task,
                    )  # fmt: skip
    results.missing.append(MissingCell(Cell(System(("lora",)), ("c", "512"), 0, "later"), None))
    return results


@pytest.fixture(scope="module")
def scores(study, results):
    return tables.scores(study, results, Resamples(300))
