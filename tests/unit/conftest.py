"""Fixtures that several folders of unit tests share."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headstart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


DATA = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"


@pytest.fixture
def interrupted_at() -> Callable[[int], AbstractContextManager[None]]:
    """Gives a context in which a training ends with Ctrl-C after a step."""
    from headstart.training.callbacks import LoggingCallback

    step_end = LoggingCallback.on_step_end

    @contextmanager
    def interrupted(step: int) -> Iterator[None]:
        def stopped(self, loop, result):
            step_end(self, loop, result)
            if loop.progress.step == step:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LoggingCallback, "on_step_end", stopped)
            yield

    return interrupted


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, tiny_tokenizer: PreTrainedTokenizerFast) -> Callable[[str], Path]:
    """Gives a plain Hugging Face folder with a tiny untrained encoder of a kind, as pre-training leaves it."""
    import torch
    from transformers import PreTrainedTokenizerFast

    from headstart.backbones.encoder import Encoder
    from headstart.core.vocabulary import vocabulary_of
    from headstart.stages.runs.card import input_names

    known: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in known:
            torch.manual_seed(0)
            encoder = Encoder(Encoder.Config.model_validate({"kind": kind, "size": "tiny", "max_length": 128}))
            model = encoder.build(vocabulary_of(tiny_tokenizer), 64, "AutoModelForMaskedLM")
            folder = known[kind] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(str(folder))
            tiny_tokenizer.save_pretrained(str(folder))
            own = PreTrainedTokenizerFast.from_pretrained(str(folder), model_input_names=input_names(model))
            own.save_pretrained(str(folder))
        return known[kind]

    return make


def write_rows(path: Path, rows: list[tuple[str, Any]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


@pytest.fixture(scope="session")
def labelled_rows() -> list[tuple[str, str]]:
    with (DATA / "kind-train.csv").open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row, _ in zip(csv.DictReader(file), range(120), strict=False)]


@pytest.fixture(scope="session")
def way(tmp_path_factory, verses, labelled_rows) -> Path:
    """A folder with the data and the output of both verbs."""
    folder = tmp_path_factory.mktemp("way")
    for name, some in (("text", verses[:1500]), ("other", verses[1500:1600])):
        (folder / f"{name}.txt").write_text("\n\n".join(v for v in some if v), encoding="utf-8")
    for split, rows in (("train", labelled_rows[:60]), ("test", labelled_rows[60:])):
        write_rows(folder / f"{split}.csv", rows)
    headstart.pretrain(pretrain_recipe(folder), quiet=True)
    headstart.finetune(finetune_recipe(folder), quiet=True)
    return folder


def pretrain_recipe(folder: Path, **sections: Any) -> dict[str, Any]:
    training = {"budget": "6 steps", "seq_length": 32, "batch_tokens": 256, "eval_count": 1}
    return {
        "output": str(folder / "pretrained"), "corpus": {"files": [str(folder / "text.txt")], "validation": 0.1},
        "tokenizer": {"vocab_size": 600}, "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"},
        "objective": {"name": "masked_lm"}, "training": training, **sections,
    }  # fmt: skip


def finetune_recipe(folder: Path, **sections: Any) -> dict[str, Any]:
    return {
        "output": str(folder / "tuned"), "model": str(folder / "pretrained"), "task": {"kind": "classify"}, "seeds": 1,
        "data": {"train": str(folder / "train.csv"), "validation": 20, "test": str(folder / "test.csv")},
        "adaptation": {"name": "full"}, "compare_with": ["majority"],
        "training": {"budget": "3 steps", "max_length": 32, "eval_count": 1, "batch_size": 16}, **sections,
    }  # fmt: skip


@pytest.fixture(scope="session")
def recipe_of():
    return {"pretrain": pretrain_recipe, "finetune": finetune_recipe, "rows": write_rows}
