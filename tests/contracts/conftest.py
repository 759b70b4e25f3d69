"""The cases of the contract suites: all entries of the registry, including plugins, with nothing listed by hand.

An entry is built from its name alone, so every setting of its Config needs a default. If a backbone's Config has a
`kind` with several literals, each is tested; its smallest `size` is "tiny". A task makes its own rows from texts
(`toy_examples`). The entries define what they support: tasks by their families, adaptations by `supports`.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headstart.backbones.layouts import kinds, tiny_config
from headstart.core import registry
from headstart.core.contracts import Objective, RowSource, Task
from headstart.core.data import Document, Examples, Rows, Sample, Vocabulary
from headstart.core.vocabulary import vocabulary_of
from headstart.stages.pretrain.learner import CorpusRows, RowBatches
from headstart.stages.pretrain.reopen import Pretraining
from headstart.stages.runs.card import input_names
from headstart.tasks import source
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.tokens.tokenizer import add_special

DATA = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"
ROW_LENGTH, ROWS = 64, 8
DATA_KINDS = ("label", "number", "labels", "text")
"""Kinds of gold values that have the same form as predictions."""
# Settings that change the rows of a task; a task is tested with those that its Config has.
TASK_VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "pair": {"text": ["text", "other"]},
    "regression": {"regression": True},
    "impossible": {"impossible": True},
    "number": {"gold": "number"},
    "text": {"gold": "text"},
    "answers": {"gold": "answers"},
    "labels": {"gold": "labels"},
}


def settings_of(group: str, name: str, **settings: Any) -> Any:
    """The Config of an entry, with those of the settings that it has."""
    config = registry.resolve(group, name).Config
    known = {key: value for key, value in settings.items() if key in config.model_fields and value is not None}
    return config.model_validate({registry.SELECTOR[group]: name, **known})


@cache
def task_variants(name: str) -> list[str]:
    fields = registry.resolve("tasks", name).Config.model_fields
    return [variant for variant, settings in TASK_VARIANTS.items() if settings.keys() <= fields.keys()]


def pairings() -> Iterator[tuple[str, str, str | None]]:
    for objective in registry.names("objectives"):
        for family in registry.resolve("objectives", objective).families:
            for kind in kinds(family):
                yield objective, family, kind


def combinations() -> Iterator[tuple[str, str, str, str, str | None]]:
    """Every supported combination of adaptation, task and family.

    The first adaptation runs with all variants of a task in a family's default layout, and with the first variant in
    all layouts. The other adaptations run with the first variant in the default layout.
    """
    tasks = registry.names("tasks")
    for i, adaptation in enumerate(registry.names("adaptations")):
        for task in tasks:
            for family in built("tasks", task).families:
                if reason_against(adaptation, task, family) is not None:
                    continue
                layouts = [
                    kind
                    for kind in kinds(family)
                    if has_head(task, family, kind) and supports_kind(adaptation, kind or family)
                ]
                for j, kind in enumerate(layouts[: 1 if i else None]):
                    for variant in task_variants(task)[: None if i == j == 0 else 1]:
                        yield adaptation, task, variant, family, kind


def pairwise(cases: Sequence[tuple[str | None, ...]]) -> set[tuple[str | None, ...]]:
    """Cases in which every two values occur together that do so in any case: a third of them finds most faults."""
    cover, seen = set(), set[Any]()
    for case in random.Random(0).sample(cases, len(cases)):
        pairs = set(itertools.combinations(enumerate(case), 2))
        if not pairs <= seen:
            cover.add(case)
            seen |= pairs
    return cover


@cache
def built(group: str, name: str) -> Any:
    """An entry built from its name alone, cached for the collection of cases."""
    return registry.build(group, settings_of(group, name))


@cache
def has_head(task: str, family: str, kind: str | None) -> bool:
    """Whether transformers has the task's head for a layout."""
    return source.has_head(tiny_config(family, kind), built("tasks", task).auto_class(family))


def supports_kind(adaptation: str, kind: str) -> bool:
    """Whether an adaptation supports a layout; the layouts of Headstart's backbones are named by `model_type`."""
    return built("adaptations", adaptation).supports_kind(kind) is None


def reason_against(adaptation: str, task: str, family: str) -> str | None:
    """The reason why an adaptation does not support a task on a family, or None."""
    reason: str | None = built("adaptations", adaptation).supports(built("tasks", task), family)
    return reason


@cache
def _cases(name: str) -> list[Any] | None:
    """The cases of a fixture name, collected once for all tests; None for other names."""
    cases: dict[str, Callable[[], Any]] = {
        "pairing": pairings,
        "combination": combinations,
        "task_case": lambda: ((name, variant) for name in registry.names("tasks") for variant in task_variants(name)),
        "metric": lambda: registry.names("metrics"),
        "baseline": lambda: registry.names("baselines"),
        "entry": lambda: ((group, name) for group in registry.TABLES for name in registry.names(group)),
    }
    return list(cases[name]()) if name in cases else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with one of these fixtures once for each of its cases."""
    for name in metafunc.fixturenames:
        values = _cases(name)
        if values is not None:
            ids = ["-".join(filter(None, (value,) if isinstance(value, str) else value)) for value in values]
            indirect = name in ("pairing", "combination", "task_case")
            if name == "combination":
                short = pairwise(values)
                values = [pytest.param(value, marks=() if value in short else pytest.mark.long) for value in values]
            metafunc.parametrize(name, values, ids=ids, indirect=indirect, scope="session" if indirect else None)


@dataclass(frozen=True)
class Pairing:
    """An objective, a backbone that it supports, and rows of real text in the objective's shape."""

    objective: Objective
    backbone: Any
    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    all_rows: RowSource
    rows: Rows
    unigram_entropy: float

    def make(self, auto_class: str, part: str = "", scale: float = 1.0, **changes: Any) -> PreTrainedModel:
        """A network of the backbone with random weights."""
        model: PreTrainedModel = self.backbone.build(self.vocabulary, ROW_LENGTH, auto_class, scale, **changes)
        return model

    def model(self) -> Any:
        """The objective's module in evaluation mode, with the same weights each time."""
        torch.manual_seed(0)
        return self.objective.assemble(self.make).eval()

    def batch(self, indices: slice | list[int] = slice(None), seed: int = 0, epoch: int = 0) -> dict[str, torch.Tensor]:
        """The rows at some indices, corrupted."""
        rows = self.rows.take(np.arange(len(self.rows.ids))[indices])
        samples = [Sample(epoch, sample.index) for sample in rows.samples]
        return dict(self.objective.corrupt(dataclasses.replace(rows, samples=samples), self.vocabulary, seed))


@pytest.fixture(scope="session")
def text_shards(
    verses: list[str], tiny_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> shards.Shards:
    """Documents of a dozen verses each, encoded as in pre-training."""
    folder = tmp_path_factory.mktemp("shards")
    texts = (" ".join(verses[start : start + 12]) for start in range(0, len(verses), 12))
    shards.write((Document(str(number), text) for number, text in enumerate(texts)), tiny_tokenizer, folder)
    return shards.Shards(folder)


@pytest.fixture(scope="session")
def pairing(
    request: pytest.FixtureRequest,
    text_shards: shards.Shards,
    tiny_tokenizer: PreTrainedTokenizerFast,
    checkpoint: Callable[[str, str | None], Path],
) -> Pairing:
    name, family, kind = request.param
    tokenizer = copy.deepcopy(tiny_tokenizer)
    # The teacher has the layout of the student.
    has_teacher = "teacher" in registry.resolve("objectives", name).Config.model_fields
    teacher = checkpoint(family, kind) if has_teacher else None
    settings = settings_of("objectives", name, teacher=teacher, family=family)
    objective: Objective = registry.build("objectives", settings)
    vocabulary = add_special(tokenizer, objective.special_tokens())
    all_rows = cut(text_shards, vocabulary, objective.row_shape(ROW_LENGTH))
    return Pairing(
        objective=objective,
        backbone=registry.build("backbones", settings_of("backbones", family, kind=kind, size="tiny")),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        all_rows=all_rows,
        rows=all_rows.rows([Sample(0, 10 + 3 * row) for row in range(ROWS)]),
        unigram_entropy=text_shards.counts["unigram_entropy_nats"],
    )


@dataclass(frozen=True)
class TaskCase:
    """A fitted task, and labeled rows for training and for validation."""

    task: Task
    train: Examples
    validation: Examples
    build: Callable[[], Task]
    """Makes the same task again, without fitting it."""


@pytest.fixture(scope="session")
def make_task_case(verses: list[str]) -> Callable[[str, str], TaskCase]:
    """Makes a task case from rows of real text; every third text is short."""
    texts = [verse for verse in verses if len(verse.split()) > 4]
    texts = [text if i % 3 else " ".join(text.split()[:5]) for i, text in enumerate(texts[:60])]

    def make(name: str, variant: str) -> TaskCase:
        config = settings_of("tasks", name, **TASK_VARIANTS[variant])
        task: Task = registry.build("tasks", config)
        examples = task.toy_examples(texts)
        train, validation = examples.take(range(40)), examples.take(range(40, 60))
        task.fit_labels(train)
        return TaskCase(task, train, validation, lambda: registry.build("tasks", config))

    return make


@pytest.fixture(scope="session")
def task_case(request: pytest.FixtureRequest, make_task_case: Callable[[str, str], TaskCase]) -> TaskCase:
    return make_task_case(*request.param)


@pytest.fixture(scope="session")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast
) -> Callable[[str, str | None], Path]:
    """Makes a plain Hugging Face folder with a tiny model of a family and layout, as pre-training saves it."""
    known: dict[tuple[str, str | None], Path] = {}

    def make(family: str, kind: str | None) -> Path:
        if (family, kind) not in known:
            name = next(name for name, found, _ in pairings() if found == family)
            objective: Objective = registry.build("objectives", settings_of("objectives", name, family=family))
            backbone = registry.build("backbones", settings_of("backbones", family, kind=kind, size="tiny"))
            torch.manual_seed(0)
            vocabulary = vocabulary_of(tiny_tokenizer)
            module = objective.assemble(
                lambda auto, part="", *rest, **k: backbone.build(vocabulary, 128, auto, *rest, **k)
            )
            model = objective.parts(module)[""]
            folder = known[family, kind] = tmp_path_factory.mktemp("checkpoint")
            model.save_pretrained(str(folder))
            tokenizer = PreTrainedTokenizerFast.from_pretrained(_saved(tiny_tokenizer, folder))
            tokenizer.model_input_names = input_names(model)
            tokenizer.save_pretrained(str(folder))
        return known[family, kind]

    return make


class ToyPretraining(Pretraining):
    """The pre-training of a folder without a recipe: an objective of its family, on rows of real text."""

    def __init__(self, folder: Path, family: str, text: shards.Shards) -> None:
        self.folder, self.recipe = folder, SimpleNamespace(seed=0)
        objectives = (
            registry.build("objectives", settings_of("objectives", name, family=family))
            for name, found, _ in pairings()
            if found == family
        )
        self.objective = next(objective for objective in objectives if not objective.special_tokens())
        rows = cut(text, self.vocabulary, self.objective.row_shape(32))
        self.feed = RowBatches([CorpusRows("", 1.0, rows)], self.objective, self.vocabulary, 0)


@pytest.fixture(scope="session")
def toy_pretraining(text_shards: shards.Shards) -> Callable[[str], Callable[[Path], ToyPretraining]]:
    """Returns, for a family, the function that opens the pre-training of a checkpoint."""
    return lambda family: lambda folder: ToyPretraining(folder, family, text_shards)


def _saved(tokenizer: PreTrainedTokenizerFast, folder: Path) -> str:
    tokenizer.save_pretrained(str(folder))
    return str(folder)
