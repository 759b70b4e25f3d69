"""Tiny networks of every layout, and labeled rows for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.adaptation.pretrained import LANGUAGE_MODELS, Pretrained
from transformers import PreTrainedModel

from headstart.core import registry
from headstart.core.data import Examples, Vocabulary
from headstart.tasks.classify import Classify
from headstart.tasks.source import CheckpointFolder

LAYOUTS = {
    "bert": "encoder", "roberta": "encoder", "modernbert": "encoder", "deberta-v2": "encoder", "albert": "encoder",
    "electra": "encoder", "gpt2": "decoder", "llama": "decoder", "modernbert-decoder": "decoder",
    "t5": "encoder-decoder", "bart": "encoder-decoder", "xlnet": "xlnet", "bilm": "bilm", "characters": "bilm",
}  # fmt: skip
"""Layouts and their families; `characters` is a biLM that reads characters."""


@pytest.fixture(scope="session")
def layouts() -> dict[str, str]:
    return LAYOUTS


@pytest.fixture(scope="session")
def network() -> Callable[..., PreTrainedModel]:
    """Builds a network of a layout with random weights."""
    special = np.arange(100) < 5
    vocabulary = Vocabulary(100, 0, 2, 3, 4, special=special, starts_word=~special, tokens=["xy"] * 100)

    def build(layout: str, auto_class: str = "AutoModelForSequenceClassification", **changes: Any) -> PreTrainedModel:
        family = LAYOUTS[layout]
        config = registry.resolve("backbones", family).Config
        settings = (
            {"kind": layout} if "kind" in config.model_fields else {"input": layout if layout != "bilm" else "subword"}
        )
        known = {key: value for key, value in settings.items() if key in config.model_fields}
        backbone = registry.build("backbones", config.model_validate({"family": family, "size": "tiny", **known}))
        torch.manual_seed(0)
        return backbone.build(vocabulary, 32, auto_class, **changes)

    return build


class Given:
    """A checkpoint, a classification task and encoded rows of real text."""

    def __init__(self, folder: Path, verses: list[str], pair: bool = False) -> None:
        self.task = Classify(Classify.Config(text=["a", "b"] if pair else ["a"]))
        texts = [verse for verse in verses if verse][:24]
        columns = {"a": texts, "b": texts[::-1]} if pair else {"a": texts}
        rows = Examples(columns, ["yes", "no"] * 12, "verses")
        self.task.fit_labels(rows)
        self.source = CheckpointFolder(folder, self.task, 0)
        self.spec = self.source.input_spec(48)
        self.encoded = self.task.encode(rows, self.spec)

    def batch(self, *rows: int):
        return self.task.collate([self.encoded[row] for row in rows], self.spec)

    def loss(self, model: PreTrainedModel, *rows: int) -> torch.Tensor:
        return self.task.loss(model, self.batch(*rows))

    def logits(self, model: PreTrainedModel, *rows: int) -> torch.Tensor:
        with torch.no_grad():
            return self.task.logits(model.eval(), self.batch(*rows))


@pytest.fixture(scope="session")
def given_of(checkpoint: Callable[[str], Path], verses: list[str]) -> Callable[..., Given]:
    """Makes a task with rows for a checkpoint of an encoder layout."""
    return lambda kind, **settings: Given(checkpoint(kind), verses, **settings)


@pytest.fixture(scope="session")
def pretrained(network: Callable[..., PreTrainedModel], tmp_path_factory) -> Callable[..., Pretrained]:
    """Makes a pre-trained checkpoint of a layout, loadable with any head; it has no tokenizer."""
    known: dict[str, Path] = {}

    def make(layout: str, *head: Any, **settings: Any) -> Pretrained:
        if layout not in known:
            known[layout] = tmp_path_factory.mktemp(layout)
            network(layout, LANGUAGE_MODELS[LAYOUTS[layout]]).save_pretrained(str(known[layout]))
        return Pretrained(known[layout], *head, **settings)

    return make
