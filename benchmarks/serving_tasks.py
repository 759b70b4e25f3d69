"""Fine-tuned tasks for the benchmarks of serving: a few are trained on MiniLM, and the others are variants of them.

A variant is a copy whose weights were moved by random numbers, with a manifest of its own: another task for the
server, which verifies, loads and computes it like any other. A folder that exists is used again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from finetuning import minilm
from safetensors.torch import load_file, save_file
from side_by_side import DATA

import headstart
from headstart.core import artifact

SST2 = DATA / "tasks/sst2"
ADAPTATIONS = {
    "lora": {"name": "lora", "rank": 8, "targets": ["query", "value"]},
    "adapter": {"name": "adapters"},
    "head": {"name": "features"},
    "full": {"name": "full"},
    "embed": {"name": "full"},
}
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


def prototype(folder: Path, kind: str) -> Path:
    """Fine-tune MiniLM on SST-2, or sentence vectors on STS-B, for two steps; how well it predicts does not matter."""
    task, data = ("embed", DATA / "tasks/stsb/en") if kind == "embed" else ("classify", SST2)
    recipe = {
        "output": str(folder), "model": minilm(), "task": {"kind": task}, "seeds": 1, "compare_with": [],
        "adaptation": ADAPTATIONS[kind],
        "data": {
            "train": str(data / "train.parquet"), "validation": str(data / "validation.parquet"),
            "test": str(data / "validation.parquet"), "allow_overlap": True, "train_rows": 64,
        },
        "training": {"budget": "2 steps", "batch_size": 16, "max_length": 64, "eval_count": 1, "precision": "fp32"},
    }  # fmt: skip
    return headstart.finetune(recipe, quiet=True).path


def variant(source: Path, target: Path, seed: int) -> Path:
    """Copy a fine-tuned folder and move the weights of its adapter, or of the head of a whole model."""
    staging = target.with_name(f".{target.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(source, staging, copy_function=os.link)
    name = next(name for name in WEIGHTS if (staging / name).is_file())
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(staging / name)
    is_model = name == WEIGHTS[1]
    for key, tensor in tensors.items():
        # Only the top of a whole model: two tasks then have the same body, which the server must find out.
        if not is_model or "classifier" in key:
            tensor += 0.02 * torch.randn(tensor.shape, generator=generator)
    # `amended` renames the new file over the link, so the source keeps its own.
    with artifact.amended(staging) as rewritten:
        save_file(tensors, rewritten / name, {"format": "pt"})
    staging.rename(target)
    return target


def make_tasks(folder: Path, name: str, **counts: int) -> Path:
    """Return the folder `name` in `folder`, with `counts` tasks of each kind: `lora=60` gives lora-0 to lora-59."""
    for kind, count in counts.items():
        source = folder / "prototypes" / kind
        if count and not artifact.is_complete(source):
            prototype(source, kind)
        for i in range(count):
            target = folder / name / f"{kind}-{i}"
            if not artifact.is_complete(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                variant(source, target, seed=i)
    return folder / name
