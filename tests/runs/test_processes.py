"""Fine-tuning in several processes gives the result of one process: the same weights, scores and counts."""

from __future__ import annotations

import csv
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart"
BATCH = 16
STEPS = 6
SHARED = (
    "adaptation=full", "seeds=1", "compare_with=[majority]", f"training.budget={STEPS} steps",
    f"training.batch_size={BATCH}", "training.max_length=48", "training.learning_rate=1e-3", "training.eval_count=2",
    "training.logging_steps=1", "training.report_to=none",
)  # fmt: skip
TASKS: dict[str, tuple[str, ...]] = {
    "classify": ("task={kind: classify}",),
    "tag": ("task={kind: tag}",),
    "span_qa": ("task={kind: span_qa, stride: 16}",),
    "embed": ("task={kind: embed, loss: cosine}",),
    "ranking": ("task={kind: embed, loss: ranking, test: retrieval}",),
}


def rows_of(task: str, words: Sequence[str], number: int) -> dict[str, Any]:
    """One row: every third sentence is long, so that parts of a batch are padded to different lengths."""
    sentence = list(words[: 5 if number % 3 else 14])
    text = " ".join(sentence)
    match task:
        case "classify":
            return {"text": text, "label": "long" if len(sentence) > 5 else "short"}
        case "tag":
            return {"tokens": sentence, "tags": ["B-X" if len(word) > 4 else "O" for word in sentence]}
        case "span_qa":
            answer = {"text": [sentence[2]], "answer_start": [len(" ".join(sentence[:2])) + 1]}
            return {"question": f"what {number}", "context": text, "answers": answer}
    other = " ".join(reversed(sentence))
    return {"sentence1": text, "sentence2": f"{other} {number}", "score": (number % 5) / 4}


@pytest.fixture(scope="session")
def rows(tmp_path_factory) -> Path:
    """JSONL files with the rows of each task."""
    folder = tmp_path_factory.mktemp("rows")
    with (QUICKSTART / "data" / "order-train.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"].split() for row in csv.DictReader(file)]
    for task in TASKS:
        for split, numbers in (("train", range(48)), ("validation", range(100, 130)), ("test", range(200, 230))):
            lines = (json.dumps(rows_of(task, texts[number], number)) + "\n" for number in numbers)
            (folder / f"{task}-{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def finetune(nursery, pretrained, rows, tmp_path):
    """Starts a fine-tuning in some processes; returns its children."""

    def start(name: str, task: str, processes: int, *overrides: str, **more: Any) -> list[Any]:
        recipe = tmp_path / f"{name}.yaml"
        data = {split: str(rows / f"{task}-{split}.jsonl") for split in ("train", "validation", "test")}
        recipe.write_text(json.dumps({"data": data}), encoding="utf-8")
        command = (
            "finetune", str(recipe), f"output={tmp_path / name}", f"model={pretrained.folder}", *TASKS[task], *SHARED,
            *overrides,
        )  # fmt: skip
        return nursery.ranks(command, processes, **more) if processes > 1 else [nursery.start(command, **more)]

    return start


def finish(children: list[Any], expect: int = 0) -> str:
    codes = [child.wait() for child in children]
    assert codes == [expect] * len(children), "\n".join(child.output()[-3000:] for child in children)
    return children[0].output()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    names = [folder / name for name in ("model.safetensors", "adapter_model.safetensors") if (folder / name).is_file()]
    return load_file(names[0])


def losses(folder: Path) -> list[float]:
    (path,) = (folder / "logs").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "headstart.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("task", "adaptation"),
    [
        ("classify", "full"), ("classify", "lora"), ("classify", "qlora"), ("tag", "full"), ("span_qa", "full"),
        ("embed", "full"), ("ranking", "full"),
    ],
)  # fmt: skip
def test_two_processes_train_as_one_that_accumulates_to_the_bit(finetune, tmp_path, task, adaptation):
    """Dropout included: the checkpoint has 0.1."""
    given = (f"adaptation={adaptation}",)
    finish(finetune("one", task, 1, *given, f"training.micro_batch_size={BATCH // 2}"))
    output = finish(finetune("two", task, 2, *given))
    one, two = tmp_path / "one", tmp_path / "two"
    assert losses(two) == losses(one)
    expected = weights(one)
    assert weights(two).keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in weights(two).items())
    facts, of_one = manifest(two), manifest(one)
    assert facts["metrics"] == of_one["metrics"] and facts["validation"] == of_one["validation"]
    assert facts["cost"]["tokens"] == of_one["cost"]["tokens"] and facts["cost"]["flops"] == of_one["cost"]["flops"]
    assert facts["cost"]["assumptions"]["processes"] == "2 on 1 machine"
    assert facts["cost"]["peak_memory_mb"] > 1.5 * of_one["cost"]["peak_memory_mb"], "not the sum of both processes"
    assert ("compares the texts of a batch with each other" in output) == (task == "ranking")


@pytest.mark.parametrize(
    ("task", "adaptation", "count"),
    [("classify", "full", 2), ("classify", "lora", 2), ("tag", "full", 2), ("span_qa", "full", 2), ("embed", "full", 2),
     ("classify", "full", 4)],
)  # fmt: skip
def test_sharded_processes_train_as_one_up_to_the_order_of_sums(finetune, tmp_path, task, adaptation, count):
    """The norm of the gradients is summed over shards. Four processes are two groups, each with the whole network."""
    given = (f"adaptation={adaptation}",)
    layout = ("training.parallel=fsdp",) if count == 2 else ("training.parallel=hsdp", "training.shard_size=2")
    finish(finetune("one", task, 1, *given, f"training.micro_batch_size={BATCH // count}"))
    finish(finetune("sharded", task, count, *given, *layout))
    one, sharded = tmp_path / "one", tmp_path / "sharded"
    assert losses(sharded) == pytest.approx(losses(one), rel=1e-5 if count == 2 else 2e-3)
    expected = weights(one)
    assert weights(sharded).keys() == expected.keys()
    for name, value in weights(sharded).items():
        assert value.shape == expected[name].shape and (count == 4 or torch.allclose(value, expected[name], atol=1e-4))
    facts, of_one = manifest(sharded), manifest(one)
    assert facts["metrics"] == of_one["metrics"]
    for name in ("tokens", "flops"):
        assert facts["cost"][name] == of_one["cost"][name]


def test_two_processes_train_several_tasks_as_one_to_the_bit(nursery, pretrained, rows, tmp_path):
    """A process may have no row of a task in its part of a batch."""
    splits = ("train", "validation", "test")
    tasks = {
        name: {"task": {"kind": name}, "data": {split: str(rows / f"{name}-{split}.jsonl") for split in splits}}
        for name in ("classify", "tag")
    }
    (tmp_path / "several.yaml").write_text(json.dumps({"tasks": tasks, "mixing": {"limit": 48}}), encoding="utf-8")

    def command(name: str, *overrides: str) -> tuple[str, ...]:
        where = (f"output={tmp_path / name}", f"model={pretrained.folder}")
        return ("multitask", str(tmp_path / "several.yaml"), *where, *SHARED, *overrides)

    finish([nursery.start(command("one", f"training.micro_batch_size={BATCH // 2}"))])
    finish(nursery.ranks(command("two"), 2))
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    for name in tasks:
        expected = weights(tmp_path / "one" / name)
        assert all(torch.equal(value, expected[key]) for key, value in weights(tmp_path / "two" / name).items())
        assert manifest(tmp_path / "two" / name)["metrics"] == manifest(tmp_path / "one" / name)["metrics"]
    refused = finish(nursery.ranks(command("sharded", "training.parallel=fsdp"), 2), expect=2)
    assert "the networks of several tasks share their weights" in refused


def test_four_processes_train_as_one_up_to_the_order_of_sums(finetune, tmp_path):
    """AdamW turns the last bit of a gradient near zero into a step of another sign, so the difference grows."""
    finish(finetune("one", "classify", 1, f"training.micro_batch_size={BATCH // 4}"))
    finish(finetune("four", "classify", 4))
    assert losses(tmp_path / "four")[:2] == pytest.approx(losses(tmp_path / "one")[:2], rel=1e-5)
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=2e-3)
    assert manifest(tmp_path / "four")["metrics"] == manifest(tmp_path / "one")["metrics"]


def test_a_stopped_fine_tuning_resumes_in_another_number_of_processes(finetune, tmp_path):
    """Two processes stop after three steps, one process continues, and the curve is that of one process."""
    stop = """
from headstart.training.callbacks import LoggingCallback
import os, signal
step_end = LoggingCallback.on_step_end
def stopping(self, loop, result):
    step_end(self, loop, result)
    if loop.progress.step == 3 and loop.world.is_main:
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.stop_signal.requested()
LoggingCallback.on_step_end = stopping
"""
    micro = f"training.micro_batch_size={BATCH // 2}"
    finish(finetune("alone", "classify", 1, micro))
    finish(finetune("both", "classify", 2, micro, code=stop), expect=75)
    assert list((tmp_path / "both" / "work").rglob("step-*")), "nothing was saved"
    finish(finetune("both", "classify", 1, micro))
    assert losses(tmp_path / "both") == losses(tmp_path / "alone")
    expected = weights(tmp_path / "alone")
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path / "both").items())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("adapt_first={texts: train}", "the recipe has `adapt_first`, but 2 processes were started"),
        ("training.batch_size=1", "one step reads 1 samples, but there are 2 processes"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(finetune, override, message):
    output = finish(finetune("refused", "classify", 2, override), expect=2)
    assert message in output


def test_sharded_pre_training_computes_each_weight_where_it_is_needed(nursery, pretrained, tmp_path):
    """No process builds the network whole, and the losses, FLOPs and initial weights are those of one that does."""
    shared = (str(pretrained.folder / "recipe.yaml"), "training.budget=4 steps", "training.report_to=none", "--quiet")
    refuse = """
from headstart.stages.pretrain import build
from headstart.training import deferred
build_model = build.build_model
def only_deferred(*given):
    assert isinstance(__import__("torch").utils._python_dispatch._get_current_dispatch_mode(), deferred._Recorder)
    return build_model(*given)
build.build_model = only_deferred
"""
    finish([nursery.start(("pretrain", *shared, f"output={tmp_path / 'one'}", "training.micro_batch_size=8"))])
    finish(nursery.ranks(("pretrain", *shared, f"output={tmp_path / 'two'}", "training.parallel=fsdp"), 2, code=refuse))
    one, two = tmp_path / "one", tmp_path / "two"
    for name, value in weights(two).items():
        assert torch.allclose(value, weights(one)[name], atol=1e-3), name
    loss = [manifest(folder)["metrics"]["validation"]["loss"] for folder in (one, two)]
    assert loss[1] == pytest.approx(loss[0], rel=1e-5)
    assert manifest(two)["cost"]["flops"] == manifest(one)["cost"]["flops"]


def test_a_method_that_needs_whole_weights_is_refused_under_fsdp(finetune):
    output = finish(finetune("refused", "classify", 2, "training.parallel=fsdp", "adaptation=qlora"), expect=2)
    assert "`training.parallel` is fsdp, but qlora quantizes its weights to four bits" in output


def test_the_command_starts_the_processes_itself(headstart, pretrained, rows, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    data = {split: str(rows / f"classify-{split}.jsonl") for split in ("train", "validation", "test")}
    recipe.write_text(json.dumps({"data": data}), encoding="utf-8")
    done = headstart(
        "finetune", str(recipe), f"output={tmp_path / 'out'}", f"model={pretrained.folder}", *TASKS["classify"],
        *SHARED, "--processes=2",
    )  # fmt: skip
    assert done.stdout.count("cost of all trained models") == 1
    assert manifest(tmp_path / "out")["cost"]["assumptions"]["processes"] == "2 on 1 machine"


@pytest.mark.slow
def test_two_launchers_that_meet_train_as_one_process(start, headstart, pretrained, tmp_path):
    """Each launcher stands for a machine; they are on this one, and find each other by the address alone."""
    shared = (str(pretrained.folder / "recipe.yaml"), "training.budget=10 steps", "--quiet")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes = [
        start("pretrain", *shared, f"output={tmp_path / 'two'}", "--nodes=2", f"--rendezvous=127.0.0.1:{port}")
        for _ in range(2)
    ]
    outputs = [node.communicate(timeout=240) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    headstart("pretrain", *shared, f"output={tmp_path / 'one'}", "training.micro_batch_size=8")
    expected = weights(tmp_path / "one")
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path / "two").items())
