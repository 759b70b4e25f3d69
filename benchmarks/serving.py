"""One body, 100 tasks (20 heads, 60 LoRA, 20 bottleneck adapters) in mixed batches, against one LoRA task alone.

BERT with 6 layers of width 384 and random weights, 16 rows of 32 tokens in a batch; ranks 4, 8 and 16, 2 to 5 labels.
Measured is the computation of the batches, in rows per second of processor time of one thread. HTTP is not part of it.
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from side_by_side import arguments, in_turns, report
from transformers import BertConfig, BertForSequenceClassification, BertModel

from headstart.adaptation.targets import find
from headstart.stages.serve.adapter_weights import AdapterWeights
from headstart.stages.serve.bodies import BatchRow, SharedBody, Slot
from headstart.stages.serve.heads import Head, Skeleton
from headstart.tasks.classify import Classify

TOKENS, ROWS, WIDTH = 32, 16, 384
TARGETS = {
    "qv": ["query", "value"],
    "linear": ["query", "key", "value", "attention_out", "ffn_in", "ffn_out"],
}
NAMES = {"qv": "LoRA on queries and values", "linear": "LoRA on all linear layers"}
GOALS = {"qv": 0.90, "linear": 0.75}


def lora(body: Any, names: list[str], rank: int) -> AdapterWeights:
    """Return an adapter with random matrices, small enough not to saturate the network."""
    shapes = {name: body.get_submodule(name).weight.shape for name in names}
    return AdapterWeights(
        "lora", {n: (torch.randn(rank, i) * 0.02, torch.randn(o, rank) * 0.02) for n, (o, i) in shapes.items()}
    )


def bottleneck(names: list[str], middle: int) -> AdapterWeights:
    """Return bottleneck adapters with random weights."""
    shapes = ((middle, WIDTH), (middle,), (WIDTH, middle), (WIDTH,))
    return AdapterWeights(
        "bottleneck", {name: tuple(torch.randn(shape) * 0.02 for shape in shapes) for name in names}, "relu"
    )


def make_slots(body: SharedBody, kind: str) -> list[Slot]:
    """Return 100 tasks on a body; the first is a LoRA task of rank 8."""
    skeleton = Skeleton(BertForSequenceClassification, body.body.config)
    named = find(body.body, TARGETS[kind])
    outputs = find(body.body, ["ffn_out"])
    slots = []
    for i in range(100):
        labels = 2 + i % 4
        task = Classify(Classify.Config())
        task.restore({"labels": [str(label) for label in range(labels)]})
        shapes = {
            "classifier.weight": (labels, WIDTH), "classifier.bias": (labels,),
            "bert.pooler.dense.weight": (WIDTH, WIDTH), "bert.pooler.dense.bias": (WIDTH,),
        }  # fmt: skip
        head = Head(skeleton, {name: torch.randn(shape) * 0.05 for name, shape in shapes.items()})
        adapter = None
        if i < 60:
            adapter = lora(body.body, named, (8, 4, 16)[i % 3])
        elif i < 80:
            adapter = bottleneck(outputs, 24)
        spec: Any = SimpleNamespace(pad=0, max_length=TOKENS)
        slots.append(Slot(str(i), str(i), task, spec, body, "", 0, {"kind": "classify"}, adapter, head))
    return slots


def make_rows(slots: list[Slot], count: int, seed: int) -> list[BatchRow]:
    """Return rows of random tokens for random tasks."""
    rng = random.Random(seed)
    return [
        BatchRow(rng.choice(slots), {"input_ids": [rng.randrange(5, 1000) for _ in range(TOKENS)], "labels": 0}, TOKENS)
        for _ in range(count)
    ]


def rate(rows: list[BatchRow]) -> float:
    """Return the rows per second of processor time."""
    start = time.process_time()
    for i in range(0, len(rows), ROWS):
        rows[0].slot.body.run(rows[i : i + ROWS])
    return len(rows) / (time.process_time() - start)


def require_equal(rows: list[BatchRow]) -> float:
    """Return the largest difference between a mixed batch and each row alone; raises above 1e-4."""
    together = rows[0].slot.body.run(rows)
    alone = [row.slot.body.run([row])[0] for row in rows]
    worst = max(float(np.abs(a - b).max()) for a, b in zip(together, alone, strict=True))
    if not worst <= 1e-4:
        raise SystemExit(f"a mixed batch differs from its rows alone by {worst}")
    return worst


def main() -> None:
    """Measure adapters on queries and values, then on all linear layers; print a line of JSON for each."""
    options = arguments(__doc__ or "", repetitions=9)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = ROWS if options.quick else 8 * ROWS
    config = BertConfig(
        vocab_size=1000, hidden_size=WIDTH, num_hidden_layers=6, num_attention_heads=6, intermediate_size=4 * WIDTH,
        attn_implementation="eager",
    )  # fmt: skip
    for kind in TARGETS:
        body = SharedBody(kind, "fp32", BertModel(config))
        slots = make_slots(body, kind)
        worst = require_equal(make_rows(slots, 24, seed=1))
        mixed, single, heads = (
            make_rows(slots, count, 2),
            make_rows(slots[:1], count, 3),
            make_rows(slots[80:81], count, 4),
        )
        rates = in_turns(
            options.repetitions, mixed=lambda r=mixed: rate(r), single=lambda r=single: rate(r),
            plain=lambda r=heads: rate(r),
        )  # fmt: skip
        report(
            f"serving 100 tasks, {NAMES[kind]}, against one task", rates["mixed"], rates["single"], GOALS[kind],
            "rows per processor second",
            without_adapter=round(sorted(rates["plain"])[len(rates["plain"]) // 2], 1), largest_difference=worst,
        )  # fmt: skip


if __name__ == "__main__":
    main()
