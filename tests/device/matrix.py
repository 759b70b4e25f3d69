"""Trains and evaluates the entries of the registry on the stand-in device: `python -m tests.device.matrix`.

Prints one JSON line per case: what ran, the error if there was one, and how often the host waited for the device in a
training step between two log entries. A process of its own, because a backend of torch cannot be removed again.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tests.contracts.conftest import DATA, ToyPretraining, combinations, pairings, settings_of
from tests.device import stand_in
from transformers import PreTrainedTokenizerFast

from headstart.core import registry
from headstart.core.data import Document
from headstart.core.vocabulary import vocabulary_of
from headstart.stages import generate
from headstart.stages.finetune.cell import evaluate_untrained
from headstart.stages.finetune.learner import TaskLearner, build_loop, count_trainable, predict
from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
from headstart.stages.runs.card import input_names
from headstart.tasks.source import CheckpointFolder
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.tokens.tokenizer import TokenizerConfig, add_special, train
from headstart.training import precision
from headstart.training.callbacks import Callback, default_callbacks
from headstart.training.compilation import choose_attention
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings

STEPS, ROWS, LENGTH = 3, 4, 16
WITHOUT = ("bilm", "qlora")
"""What the stand-in cannot run: it has no fused LSTM and none of bitsandbytes' kernels."""
SETTINGS = TrainingSettings(
    budget=f"{STEPS} steps",
    precision="fp32",
    eval_count=1,
    logging_steps=STEPS,
    report_to=[],
    micro_batch_size=2,
    save_interval_minutes=1e6,
)


class CountWaits(Callback):
    """Counts how often the host waits in the steps that log nothing; the first step fills caches and is left out."""

    def __init__(self) -> None:
        self.per_step: list[int] = []
        self._before = 0

    def on_step_end(self, loop: Loop, result: Any) -> None:
        if 1 < loop.progress.step < STEPS:
            self.per_step.append(stand_in.COUNTS["sync"] - self._before)
        self._before = stand_in.COUNTS["sync"]


class Matrix:
    """The text, the tokenizer and the checkpoints that all cases share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with gzip.open(DATA / "kjv.txt.gz", "rt", encoding="utf-8") as file:
            self.verses = [line.rstrip("\n") for line in islice(file, 1200)]
        config = TokenizerConfig.model_validate({"kind": "wordpiece", "vocab_size": 400, "lowercase": False})
        self.tokenizer = train(self.verses, config, seed=0)
        texts = (" ".join(self.verses[start : start + 12]) for start in range(0, 1200, 12))
        (folder / "shards").mkdir()
        documents = (Document(str(number), text) for number, text in enumerate(texts))
        shards.write(documents, self.tokenizer, folder / "shards")
        self.shards = shards.Shards(folder / "shards")
        self.checkpoints: dict[tuple[str, str | None], Path] = {}

    def checkpoint(self, family: str, kind: str | None) -> Path:
        """A plain folder with a tiny model, as pre-training saves it."""
        if (family, kind) not in self.checkpoints:
            name = next(name for name, found, _ in pairings() if found == family)
            objective = registry.build("objectives", settings_of("objectives", name, family=family))
            backbone = registry.build("backbones", settings_of("backbones", family, kind=kind, size="tiny"))
            vocabulary = vocabulary_of(self.tokenizer)
            module = objective.assemble(lambda auto, part="", *a, **k: backbone.build(vocabulary, 64, auto, *a, **k))
            model = objective.parts(module)[""]
            path = self.checkpoints[family, kind] = self.folder / f"{family}-{kind}"
            model.save_pretrained(str(path))
            self.tokenizer.save_pretrained(str(path))
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
            tokenizer.model_input_names = input_names(model)
            tokenizer.save_pretrained(str(path))
        return self.checkpoints[family, kind]

    def pretrain(self, name: str, family: str, kind: str | None) -> list[int]:
        """Pre-train a few steps and evaluate; returns the waits per step."""
        has_teacher = "teacher" in registry.resolve("objectives", name).Config.model_fields
        teacher = self.checkpoint(family, kind) if has_teacher else None
        objective = registry.build("objectives", settings_of("objectives", name, teacher=teacher, family=family))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(self.checkpoint(family, kind)))
        vocabulary = add_special(tokenizer, objective.special_tokens())
        backbone = registry.build("backbones", settings_of("backbones", family, kind=kind, size="tiny"))
        with stand_in.swapping():
            module = objective.assemble(lambda auto, part="", *a, **k: backbone.build(vocabulary, 64, auto, *a, **k))
            for network in objective.parts(module).values():
                choose_attention(network)
            corpora = [CorpusRows("", 1.0, cut(self.shards, vocabulary, objective.row_shape(2 * LENGTH)))]
            learner = PretrainLearner(module, objective, corpora, corpora, vocabulary, 0)
            learner.validate = lambda: PretrainLearner.validate(learner, limit=ROWS)  # type: ignore[method-assign]
            return self._train(
                lambda info, callbacks: Loop(learner, SETTINGS, info, [Phase(0.0, learner, ROWS)], callbacks=callbacks)
            )

    def finetune(self, adaptation: str, task_name: str, family: str, kind: str | None) -> list[int]:
        """Fine-tune a few steps, evaluate, and predict with the finished model; returns the waits per step."""
        texts = [verse for verse in self.verses if len(verse.split()) > 4][:24]
        task = registry.build("tasks", settings_of("tasks", task_name))
        examples = task.toy_examples(texts)
        rows, held_out = examples.take(range(8)), examples.take(range(8, 12))
        task.fit_labels(rows)
        path = self.checkpoint(family, kind)
        source = CheckpointFolder(path, task, 0, lambda folder: ToyPretraining(folder, family, self.shards))
        config = registry.resolve("adaptations", adaptation).Config
        settings = {"name": adaptation}
        if "teacher" in config.model_fields:
            teacher = CheckpointFolder(path, task, 1).pretrained()
            settings["teacher"] = str(self.folder / f"teacher-{task_name}-{family}-{kind}")
            teacher.save_pretrained(settings["teacher"])
        method = registry.build("adaptations", config.model_validate(settings))
        spec = source.input_spec(LENGTH)
        with stand_in.swapping():
            model = method.adapt(source)
            task.prepare_head(model)
            choose_attention(model)
            training = task.encode(rows, spec, training=True) if task.learns else []
            validation = task.encode(held_out, spec)
            learner = TaskLearner(model, task, method, spec, training, validation, held_out.labels)
            if count_trainable(model):
                waits = self._train(lambda info, callbacks: build_loop(learner, SETTINGS, ROWS, info, callbacks))
                learner.solve()
            else:
                evaluate_untrained(learner, SETTINGS)
                waits = []
            predict(method.finish(model), task, validation, spec)
        return waits

    def generate(self, family: str) -> list[int]:
        """Generate with a checkpoint of the family."""
        kind = next(kind for _, found, kind in pairings() if found == family)
        prompt = "And God ___" if family == "encoder" else "And God said"
        with stand_in.swapping():
            generate.run(self.checkpoint(family, kind), [prompt], generate.GenerateSettings(max_new_tokens=4))
        return []

    def _train(self, build: Callable[[RunInfo, list[Callback]], Loop]) -> list[int]:
        counter = CountWaits()
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            loop = build(RunInfo(Path(work), "device"), [*default_callbacks(SETTINGS), counter])
            loop.run()
        for parameter in loop.learner.module.parameters():
            assert parameter.device == stand_in.DEVICE, parameter.device
        return counter.per_step


def cases() -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """Yield every objective, layout, task, adaptation and family at least once, and a pair of each with the others."""
    seen: set[Any] = set()

    def is_new(*keys: Any) -> bool:
        new = not seen.issuperset(keys)
        seen.update(keys)
        return new

    for objective, family, kind in pairings():
        if family not in WITHOUT and is_new((objective, family), ("layout", kind)):
            yield "pretrain", (objective, family, kind)
    for adaptation, task, variant, family, kind in combinations():
        if {adaptation, family}.isdisjoint(WITHOUT) and not variant and is_new(adaptation, task, (family, kind)):
            yield "finetune", (adaptation, task, family, kind)
    for family in ("encoder", "decoder", "encoder-decoder"):
        yield "generate", (family,)


def main(selected: str) -> None:
    """Run the cases whose name contains `selected`."""
    torch.set_num_threads(1)
    precision.default_device = lambda *_: stand_in.DEVICE
    with tempfile.TemporaryDirectory() as folder:
        matrix = Matrix(Path(folder))
        for verb, names in cases():
            case = " ".join(filter(None, (verb, *names)))
            if selected not in case:
                continue
            stand_in.COUNTS.clear()
            line: dict[str, Any] = {"verb": verb, "names": names}
            try:
                line["waits"] = getattr(matrix, verb)(*names)
            except Exception as error:
                place = [f for f in traceback.extract_tb(error.__traceback__) if "headstart" in f.filename][-1]
                line["error"] = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            line["unpinned"] = stand_in.COUNTS["unpinned"]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
