"""The cells of a study, each made of a filled recipe and addressed by the content of what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config, file_hashes
from headstart.core.config import Section, TaskSection
from headstart.core.data import SPLITS
from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read import mixture, readers
from headstart.corpus.read.built import BuiltCorpus
from headstart.evaluation import glove, static
from headstart.stages.finetune.recipe import LabeledData
from headstart.stages.probe.run import build_one
from headstart.stages.probe.settings import ProbeSettings
from headstart.stages.runs.folder import identity_of
from headstart.studies.graph import ABSENT, Node, cell_dir
from headstart.tasks.table_files import TableSource, locate

SET_BY_STUDY = ("output", "seeds", "compare_with")
"""Settings of a fine-tuning recipe that the study sets."""


class BaselineRecipe(Section):
    """The settings of a fine-tuning recipe that a baseline reads."""

    baseline: str
    seed: int = 0
    task: TaskSection
    data: LabeledData


class ProbeRecipe(Section):
    """One probe of one model."""

    model: str
    probe: str
    text: str | None = None
    limit: int | None = None
    seed: int = 0
    untrained_seed: int | None = None
    """Set for the same network with new weights."""

    @property
    def settings(self) -> ProbeSettings:
        """Return the settings that the probe is built with."""
        return ProbeSettings(probes=[self.probe], text=self.text, limit=self.limit, seed=self.seed)


class OverlapRecipe(Section):
    """The test set to search for, and the corpus to search."""

    task: TaskSection
    test: str | list[str]
    test_rows: int | None = None
    corpus: mixture.Corpus
    words: int = 13


def pretraining_nodes(recipe: dict[str, Any], output: Path) -> list[Node]:
    """Return the cell of a filled recipe of pre-training, after that of the preparation of its text, if it has one.

    `output` is the folder of the study.
    """
    inputs = {"corpus": corpus_hash(recipe["corpus"])}
    tokenizer = (recipe["tokenizer"] or {}).get("path")
    if tokenizer:
        inputs["tokenizer"] = _content(tokenizer)
    if recipe["backbone"].get("path"):
        inputs["checkpoint"] = _content(recipe["backbone"]["path"])
    if recipe["objective"].get("teacher"):
        inputs["teacher"] = _content(recipe["objective"]["teacher"])
    parents = []
    if recipe["corpus"].get("prepared") is None:
        text = {"corpus": _without_paths(recipe["corpus"]), "tokenizer": recipe["tokenizer"], "seed": recipe["seed"]}
        if tokenizer is None and recipe["backbone"].get("path"):
            text["checkpoint"] = inputs["checkpoint"]
        parents = [Node.addressed("prepare", recipe, text, (), inputs)]
        prepared = str(cell_dir(output, parents[0].id))
        recipe = {**recipe, "corpus": {**recipe["corpus"], "prepared": prepared}}
    identity = {**identity_of(recipe), "corpus": _without_paths(recipe["corpus"])}
    identity["objective"] = {key: value for key, value in recipe["objective"].items() if key != "teacher"}
    return [*parents, Node.addressed("pretrain", recipe, identity, parents, inputs)]


def finetune_node(recipe: dict[str, Any], pretraining: Node | None = None) -> Node:
    """Return the cell of a filled fine-tuning recipe; `pretraining` is the node that makes its checkpoint, if any."""
    inputs = _file_hashes(recipe["data"])
    if isinstance(recipe["forgetting"], str):
        inputs["forgetting"] = _content(recipe["forgetting"])
    inputs |= {f"adaptation.{name}": _content(str(path)) for name, path in _paths_of_adaptation(recipe).items()}
    if pretraining is None:
        inputs["model"] = _content(recipe["model"])
    adapt_first = recipe.get("adapt_first")
    if adapt_first and isinstance(adapt_first["texts"], list):
        inputs["texts"] = corpus_hash({"files": adapt_first["texts"]})
    parents = [] if pretraining is None else [pretraining]
    return Node.addressed("finetune", recipe, _identity(recipe), parents, inputs)


def probe_node(recipe: dict[str, Any], pretraining: Node | None = None) -> Node:
    """Return the cell of a filled recipe of a probe; `pretraining` is the node that makes its checkpoint, if any."""
    probe = build_one(recipe["probe"], ProbeRecipe.model_validate(recipe).settings)
    inputs = {name: _content(str(path)) for name, path in probe.files().items()}
    if not inputs and probe.data:
        inputs[probe.data[0]] = ABSENT + probe.data[0]
    if pretraining is None:
        inputs["model"] = _content(recipe["model"])
    identity = {key: value for key, value in recipe.items() if key not in ("model", "text")}
    return Node.addressed("probe", recipe, identity, () if pretraining is None else [pretraining], inputs)


def baseline_node(recipe: dict[str, Any]) -> Node:
    """Return the cell of a filled recipe of a baseline."""
    inputs = _file_hashes(recipe["data"])
    if recipe["baseline"] in ("glove", "glove_cosine"):
        vectors = glove.vectors_path()
        inputs["vectors"] = _content(vectors) if vectors else "none"
    elif recipe["baseline"] == "static":
        files = static.vector_files()
        inputs["vectors"] = _content(str(files[0])) if files else "none"
    return Node.addressed("baseline", recipe, _identity(recipe), (), inputs)


def overlap_node(recipe: Mapping[str, Any], corpus: dict[str, Any]) -> Node:
    """Return the cell that searches a corpus for the test rows of a filled fine-tuning recipe."""
    data = recipe["data"]
    settings = {"task": recipe["task"], "test": data["test"], "test_rows": data["test_rows"], "corpus": corpus}
    own = config.to_dict(config.fill(OverlapRecipe, settings))
    test = own["test"]
    inputs = {"test": _rows_content(tuple(test) if isinstance(test, list) else test), "corpus": corpus_hash(corpus)}
    identity = {key: own[key] for key in ("task", "test_rows", "words")}
    identity["corpus"] = _without_paths(own["corpus"])
    return Node.addressed("overlap", own, identity, (), inputs)


def corpus_hash(corpus: Mapping[str, Any]) -> str:
    """Return a hash of the files of a corpus; their paths, marked as absent, where some do not exist."""
    parts: list[Any] = []
    for part in corpus.get("parts", [corpus]):
        try:
            parts.append(_described_corpus(part["from"]) if "from" in part else _described_files(tuple(part["files"])))
        except (DataError, ArtifactError):
            return ABSENT + ", ".join([part["from"]] if "from" in part else part["files"])
    return config.fingerprint(parts)


def _identity(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without paths, whose content is hashed instead, and without settings that change no result."""
    excluded = (*SET_BY_STUDY, "model", "forgetting")
    kept = {key: value for key, value in identity_of(recipe).items() if key not in excluded}
    kept["data"] = {key: value for key, value in recipe["data"].items() if not _is_path(key, value)}
    hashed = _paths_of_adaptation(recipe)
    if hashed:
        kept["adaptation"] = {key: value for key, value in recipe["adaptation"].items() if key not in hashed}
    kept["forgetting"] = bool(recipe.get("forgetting"))
    if kept.get("adapt_first"):
        section = kept["adapt_first"]
        paths = ["folder", *(["texts"] if isinstance(section["texts"], list) else [])]
        kept["adapt_first"] = {key: value for key, value in section.items() if key not in paths}
    return kept


def _paths_of_adaptation(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an adaptation reads besides the checkpoint: a teacher, and texts without labels."""
    section = recipe.get("adaptation") or {}
    return {name: section[name] for name in ("teacher", "texts") if section.get(name)}


def _is_path(key: str, value: Any) -> bool:
    return key in SPLITS and isinstance(value, str | list)


def _without_paths(corpus: Mapping[str, Any]) -> dict[str, Any]:
    parts = {"parts": [_without_paths(part) for part in corpus["parts"]]} if "parts" in corpus else {}
    excluded = ("files", "from", "prepared", "max_reject_share")
    return {key: value for key, value in corpus.items() if key not in excluded} | parts


def _file_hashes(data: Mapping[str, Any]) -> dict[str, str]:
    labeled = LabeledData.model_validate(data)
    sources = {split: labeled.source(split) for split in SPLITS}
    return {
        split: _rows_content(tuple(source) if isinstance(source, list) else source)
        for split, source in sources.items()
        if source is not None
    }


@lru_cache(maxsize=1024)
def _rows_content(source: TableSource) -> str:
    """Return a hash of labeled rows; where they are, marked as absent, where they cannot be found."""
    try:
        return locate(source).sha256()[:16]
    except DataError:
        return ABSENT + str(source)


@lru_cache(maxsize=256)
def _described_files(files: tuple[str, ...]) -> Any:
    return readers.describe(readers.expand(files))


def _described_corpus(folder: str) -> Any:
    return BuiltCorpus.model_validate({"from": folder}).sources()


@lru_cache(maxsize=1024)
def _content(path: str) -> str:
    """Return a hash of a file or folder; its path, marked as absent, where it does not exist."""
    location = folder_of(path) if path else Path(path)
    if location.is_file():
        return file_hashes.sha256(location)[:16]
    return artifact.identity(location)[:16] if path and location.is_dir() else ABSENT + path
