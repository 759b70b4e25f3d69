"""One tiny way through Headstart, by its real command line, which the tests of this folder share."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.faults.campaigns.nursery import Child, Nursery

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart"
STEPS = 60
# The quickstart's text and recipes, at a size that takes seconds. Every step is logged, and a checkpoint is written
# after nearly every one, so that a run can be stopped anywhere.
TINY_PRETRAIN = (
    "warm_start=null", "tokenizer.vocab_size=1000", "tokenizer.sample_mb=0.5", "backbone.size=tiny",
    "backbone.dropout=0.1", f"training.budget={STEPS} steps", "training.seq_length=32", "training.batch_tokens=512",
    "training.eval_count=2", "training.logging_steps=1", "training.save_interval_minutes=0.001",
)  # fmt: skip
TINY_FINETUNE = (
    "seeds=2", "compare_with=[majority, svm, scratch, features]", "data.train_rows=200", "training.budget=40 steps",
    "training.max_length=48", "training.learning_rate=1e-3", "training.eval_count=2",
)  # fmt: skip

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Finished:
    """A run that the command line finished: the command, its process with the output, and the folder."""

    command: tuple[str, ...]
    process: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def manifest(self) -> dict[str, Any]:
        """What `headstart.json` says."""
        manifest: dict[str, Any] = json.loads((self.folder / "headstart.json").read_text(encoding="utf-8"))
        return manifest


STARTS_PROCESSES = {"study", "corpus", "--processes=2", "--nodes=2", "--on=ray"}
"""Words of commands that start processes of their own, which a forked process cannot do safely."""


def _can_be_forked(arguments: tuple[str, ...]) -> bool:
    has_pool = "predict" in arguments and not {"--processes", "--processes=1"} & set(arguments)
    return STARTS_PROCESSES.isdisjoint(arguments) and not has_pool


def _environment() -> dict[str, str]:
    return os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}


def _arguments(arguments: tuple[str, ...]) -> dict[str, Any]:
    return {"args": [sys.executable, "-m", "headstart", *arguments], "env": _environment(), "text": True}


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A process with Headstart imported, whose forks are commands that start at once."""
    with Nursery(tmp_path_factory.mktemp("commands")) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def headstart(nursery: Nursery) -> Command:
    """Runs the command line to its end; the exit code must be the expected one."""

    def forked(arguments: tuple[str, ...], errors: Path) -> subprocess.CompletedProcess[str]:
        child = nursery.start(arguments, environment=_environment(), errors=errors)
        code = child.wait()
        return subprocess.CompletedProcess(arguments, code, child.output(), errors.read_text(encoding="utf-8"))

    def run(*arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        if _can_be_forked(arguments):
            done = forked(arguments, nursery.logs / "errors.log")
        else:
            done = subprocess.run(**_arguments(arguments), capture_output=True, timeout=240, check=False)
        assert done.returncode == expect, f"{' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done

    return run


class Forked:
    """A fork of the nursery with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, child: Child, errors: Path) -> None:
        self.child, self.errors = child, errors
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return None if self.child.is_alive else self.wait()

    def wait(self, timeout: float = 240.0) -> int:
        """Wait for the end and return the exit code."""
        self.returncode = self.child.wait(timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self.child.signal(number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 240.0) -> tuple[str, str]:
        """Wait for the end and return what the process wrote to stdout and stderr."""
        self.wait(timeout)
        return self.child.output(), self.errors.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def start(nursery: Nursery) -> Callable[..., subprocess.Popen[str] | Forked]:
    """Starts the command line and hands the process over, to be stopped by the test."""
    count = itertools.count()

    def run(*arguments: str) -> subprocess.Popen[str] | Forked:
        if _can_be_forked(arguments):
            errors = nursery.logs / f"errors-{next(count)}.log"
            return Forked(nursery.start(arguments, environment=_environment(), errors=errors), errors)
        return subprocess.Popen(**_arguments(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return run


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def passages(verses: list[str]) -> str:
    """Passages of eight verses each, as JSON lines."""
    lines = [verse for verse in verses if verse]
    texts = ("\n".join(lines[start : start + 8]) for start in range(0, 1600, 8))
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.fixture(scope="session")
def pretrained(headstart: Command, work: Path) -> Finished:
    """A checkpoint of the quickstart's text."""
    folder = work / "pretrained"
    # Shards are shared, because making them takes longer than the training here.
    where = (f"output={folder}", f"corpus.prepared={work / 'prepared'}")
    command = ("pretrain", str(QUICKSTART / "pretrain.yaml"), *TINY_PRETRAIN, *where)
    return Finished(command, headstart(*command), folder)


@pytest.fixture(scope="session")
def finetuned(headstart: Command, work: Path, pretrained: Finished) -> Finished:
    """A classifier from that checkpoint, in the company of baselines, over two seeds."""
    folder = work / "finetuned"
    where = (f"output={folder}", f"model={pretrained.folder}")
    command = ("finetune", str(QUICKSTART / "finetune.yaml"), *TINY_FINETUNE, *where)
    return Finished(command, headstart(*command), folder)
