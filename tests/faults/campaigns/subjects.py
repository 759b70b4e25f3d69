"""The runs that are disturbed: small, but with everything that makes a resume hard. And how runs are compared."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .nursery import Nursery

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "recipes" / "quickstart"
STEPS = 16

# Every step is logged, and saved if due: saves take about as long as steps.
_COMMON = (
    "warm_start=null", "tokenizer.vocab_size=1000", "tokenizer.sample_mb=0.5", f"training.budget={STEPS} steps",
    "training.eval_count=2",
    "training.logging_steps=1", "training.save_interval_minutes=0.0005", "training.micro_batch_size=8",
    "training.precision=fp32", "corpus.files=[{corpus}]", "corpus.prepared={prepared}", "training.batch_tokens=512",
)  # fmt: skip
_LENGTHS = "training.seq_length=[{length: 32, share: 0.5}, {length: 64, share: 0.5}]"
SUBJECTS: dict[str, tuple[str, ...]] = {
    "masked_lm": (
        "backbone={family: encoder, kind: modernbert, size: tiny, dropout: 0.1}", "objective=masked_lm", _LENGTHS,
    ),
    "causal_lm": (
        "backbone={family: decoder, kind: gpt2, size: tiny, dropout: 0.1}", "objective=causal_lm",
        "training.seq_length=32", "training.optim=muon",
    ),
    "encoder-decoder": (
        "backbone={family: encoder-decoder, kind: t5, size: tiny, dropout: 0.1}", "training.seq_length=32",
        "objective={name: mixture, objectives: [{name: span_corruption, weight: 2}, {name: prefix_lm, weight: 1}]}",
    ),
}  # fmt: skip
FINETUNED = "gradual unfreezing"
"""The fine-tuned subject, whose layers are unfrozen one after the other."""
_FINETUNED = (
    "seeds=1", "compare_with=[]", "data.train_rows=100", "adaptation=gradual_unfreezing",
    f"training.budget={STEPS} steps", "training.batch_size=16", "training.micro_batch_size=8",
    "training.max_length=32", "training.eval_count=4",
    "training.logging_steps=1", "training.save_interval_minutes=0.0005", "training.precision=fp32",
)  # fmt: skip


@dataclass
class Reference:
    """An undisturbed run: its folder and its duration."""

    folder: Path
    seconds: float


@dataclass
class Ground:
    """A working folder, the process server, and the undisturbed runs, each made once."""

    work: Path
    nursery: Nursery
    references: dict[Any, Reference] = field(default_factory=dict)
    _count: int = 0

    def command(self, subject: str, output: Path, *more: str) -> list[str]:
        """Return the arguments of a subject's run."""
        if subject == FINETUNED:
            model = self.reference("masked_lm").folder
            recipe = str(QUICKSTART / "finetune.yaml")
            return ["finetune", recipe, *_FINETUNED, f"model={model}", *more, f"output={output}", "--quiet"]
        paths = {"corpus": self.corpus(), "prepared": self.work / "prepared"}
        common = [setting.format(**paths) if "{" in setting else setting for setting in _COMMON]
        recipe = str(QUICKSTART / "pretrain.yaml")
        return ["pretrain", recipe, *common, *SUBJECTS[subject], *more, f"output={output}", "--quiet"]

    def corpus(self) -> Path:
        """Return a file with the beginning of the quickstart text: preparing all of it takes longer than training."""
        path = self.work / "text.txt"
        if not path.exists():
            import gzip

            with gzip.open(QUICKSTART / "data" / "kjv.txt.gz", "rt", encoding="utf-8") as file:
                path.write_text(file.read(400_000).rpartition("\n\n")[0], encoding="utf-8")
        return path

    def reference(self, subject: str, *more: str) -> Reference:
        """Return the undisturbed run of a subject."""
        key = (subject, *more)
        if key not in self.references:
            folder = self.fresh(f"{subject}-undisturbed")
            # The first run prepares the text; the second is timed.
            for _ in range(1 if self.references else 2):
                folder = self.fresh(f"{subject}-undisturbed")
                start = time.monotonic()
                self.nursery.run(self.command(subject, folder, *more))
                seconds = time.monotonic() - start
            self.references[key] = Reference(folder, seconds)
        return self.references[key]

    def fresh(self, name: str) -> Path:
        """Return the path of a folder that does not exist yet."""
        self._count += 1
        return self.work / f"{name}-{self._count:04d}"


def curve(folder: Path) -> list[dict[str, Any]]:
    """Return everything in the curves of a run or its cells that does not depend on the clock."""
    paths = sorted((folder / "logs").rglob("metrics.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def differences(folder: Path, reference: Path) -> list[str]:
    """Return how two finished runs differ, to the bit; empty if they are identical."""
    if not (folder / "headstart.json").is_file():
        return [f"{folder} is not finished"]
    found: list[str] = []
    for number, (line, expected) in enumerate(zip_longest(curve(folder), curve(reference)), start=1):
        if line != expected:
            found.append(f"{folder}: the curve differs from line {number}: {line}, expected {expected}")
            break
    names = [path.name for path in reference.glob("*.safetensors")]
    assert names, "nothing to compare"
    return found + [
        f"{folder}: {name} differs" for name in names if (folder / name).read_bytes() != (reference / name).read_bytes()
    ]


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))
