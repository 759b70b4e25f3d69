"""Rows of different tasks in one batch get the answers that each model gives alone."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.unit.stages.serve.conftest import BODIES, EXTRA, WHOLE, inputs_for

pytest.importorskip("prometheus_client", reason=EXTRA)

from headstart.stages.finetune.finished import Finetuned
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.stages.serve import answers
from headstart.stages.serve.bodies import BatchRow, SharedBody, Slot, WholeModel
from headstart.stages.serve.opening import Opener


@pytest.fixture(scope="module")
def slots(tasks: Path) -> dict[str, Slot]:
    opener = Opener()
    return {folder.name: opener.open(folder.name, folder) for folder in sorted(tasks.iterdir())}


def test_a_body_is_held_once(slots):
    for names in BODIES.values():
        shared = {id(slots[name].body) for name in names if name not in WHOLE}
        assert len(shared) == 1, "tasks of one checkpoint share its body, however each of them was tuned"
    assert isinstance(slots["full"].body, WholeModel) and "changes the weights of the body" in slots["full"].sharing
    assert isinstance(slots["houlsby"].body, WholeModel) and "it also trained" in slots["houlsby"].sharing
    assert slots["lora"].spec.tokenizer is slots["tags-head"].spec.tokenizer


@pytest.mark.parametrize("kind", list(BODIES))
def test_mixed_batches_equal_the_model_alone(slots, tasks, texts, kind):
    rows: list[tuple[BatchRow, np.ndarray]] = []
    alone: dict[str, list[np.ndarray]] = {}
    for name in BODIES[kind]:
        slot = slots[name]
        if not isinstance(slot.body, SharedBody):
            continue
        model = Finetuned(tasks / name, FinetuneManifest.read(tasks / name))
        own = answers.encode(slot, [inputs_for(name, text) for text in texts])
        alone[name] = model._run([row.feature for row in own], by_tokens=False)
        rows += zip(own, alone[name], strict=True)
    random.Random(0).shuffle(rows)
    for start in range(0, len(rows), 19):
        part = rows[start : start + 19]
        outputs = part[0][0].slot.body.run([row for row, _ in part])
        for output, (row, expected) in zip(outputs, part, strict=True):
            np.testing.assert_allclose(output, expected, atol=1e-4, err_msg=row.slot.name)
    # The adapters matter: without its adapter, a task would answer something else.
    first = next(name for name in alone if slots[name].adapter is not None)
    plain = Slot(**{**vars(slots[first]), "adapter": None})
    own = answers.encode(plain, [inputs_for(first, text) for text in texts])
    outputs = plain.body.run(own)
    assert max(np.abs(a - b).max() for a, b in zip(outputs, alone[first], strict=True)) > 1e-3


def test_a_batch_of_one_task_and_of_one_row(slots, texts):
    for name in ("lora", "adapter", "ia3", "head"):
        rows = answers.encode(slots[name], texts[:5])
        together = slots[name].body.run(rows)
        single = [slots[name].body.run([row])[0] for row in rows]
        np.testing.assert_allclose(together, single, atol=1e-4)


def test_threads_compute_batches_of_different_tasks_at_the_same_time(slots, texts):
    """Also with tasks whose heads share a skeleton, and with whole models that keep states during a pass."""
    batches = []
    for seed in range(40):
        chosen = random.Random(seed)
        name = chosen.choice(["full", "houlsby", "lora", "adapter", "ia3", "head"])
        names = [name] if name in WHOLE else chosen.choices(["lora", "adapter", "ia3", "head"], k=3)
        batches.append([row for one in names for row in answers.encode(slots[one], chosen.sample(texts, 2))])
    expected = [rows[0].slot.body.run(rows) for rows in batches]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(3):
                for outputs, wanted in zip(
                    threads.map(lambda rows: rows[0].slot.body.run(rows), batches), expected, strict=True
                ):
                    np.testing.assert_allclose(outputs, wanted, atol=1e-4)
    finally:
        sys.setswitchinterval(interval)


def test_a_slot_cannot_be_modified(slots):
    with pytest.raises(AttributeError):
        slots["lora"].hash = "another"
