"""A study's grid as a graph of cells: every recipe filled, every file named by its content, nothing twice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart.core import artifact, config, registry
from headstart.core.config import Section, TaskSection
from headstart.core.errors import DataError, RecipeError
from headstart.corpus.read import mixture, readers
from headstart.evaluation import glove
from headstart.stages.finetune.recipe import FinetuneRecipe, LabelledData
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.folder import identity_of
from headstart.studies.definition import SCRATCH, Study
from headstart.studies.graph import ABSENT, Cell, Graph, Node, home
from headstart.studies.grid import Context, Point, System, is_left_out, points, with_settings

_READ = ("train", "validation", "test")
_OWN = ("output", "seeds", "compare_with")
"""Settings of a fine-tuning recipe that a study has in its own hands."""
_NO_SHAPE = ("pretrain.objective", "pretrain.training", "pretrain.warm_start")
"""Settings of a pre-training that leave its network and tokenizer as they are."""


class BaselineRecipe(Section):
    """What a baseline reads of a fine-tuning recipe."""

    baseline: str
    seed: int = 0
    task: TaskSection
    data: LabelledData


class OverlapRecipe(Section):
    """Which test set is looked for in which corpus."""

    task: TaskSection
    test: str
    test_rows: int | None = None
    corpus: mixture.Corpus
    words: int = 13


def build(study: Study) -> Graph:
    """Fill every recipe of a study and return the graph; raises at the first point whose recipe is at fault."""
    graph = Graph()
    seen: set[tuple[System, Context]] = set()
    for point in points(study):
        raw = with_settings(study.base.model_dump(), point.settings)
        _require_own(raw["finetune"])
        context = point.context(study)
        if raw["finetune"].get("adaptation") is not None and not is_left_out(study, point):
            _add(graph, study, point, System(point.compared(study)), raw)
        for entry in study.baselines:
            settings = {"name": entry} if isinstance(entry, str) else dict(entry)
            name = settings["name"]
            if is_left_out(study, point, name) or (name == SCRATCH and "model" not in raw["finetune"] | _made(raw)):
                continue
            levels = [
                _level_read(study, axis, point.levels[axis], name) for axis in study.axes if axis in study.compare
            ]
            system = System(tuple(level for level in levels if level is not None), name)
            if (system, context) in seen:
                continue
            seen.add((system, context))
            if name == SCRATCH:
                _add(graph, study, point, system, with_settings(raw, {"finetune.adaptation": settings}))
            else:
                _add_baseline(graph, study, point, system, raw["finetune"])
    _require_reference(graph, study)
    return graph


def _require_reference(graph: Graph, study: Study) -> None:
    """Refuse a reference that is no row of the table, which would leave every lead empty."""
    names = list(dict.fromkeys(cell.system.name for cell in graph.cells))
    if study.reference not in names:
        raise RecipeError(
            f"the reference {study.reference!r} is no row of the table",
            allowed=f"The rows are: {', '.join(names)}",
            do="Name one of them as `reference`",
        )


def counts_overlap(study: Study) -> bool:
    """Say whether test items are looked for in the corpus: where it is asked for and the engine for it is installed."""
    return study.overlap and find_spec("daft") is not None


def _require_own(finetune: Mapping[str, Any]) -> None:
    """Refuse what the study decides and the recipe may not."""
    found = next((key for key in _OWN if key in finetune), None)
    if found is not None:
        raise RecipeError(
            f"base.finetune has `{found}`",
            allowed="A study gives every cell its output, its seed and its company",
            do=f"Leave out `{found}`; `seeds` and `baselines` stand at the top of a study",
        )


def _made(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": None} if raw["pretrain"] is not None else {}


def _level_read(study: Study, axis: str, level: str, baseline: str) -> str | None:
    """Return the first level that gives a baseline the same to read as this one; None where all levels do."""
    read = {
        name: {key: value for key, value in settings.items() if _reads(baseline, key)}
        for name, settings in study.axes[axis].items()
    }
    alike = [name for name, settings in read.items() if settings == read[level]]
    return None if len(alike) == len(read) else alike[0]


def _reads(baseline: str, key: str) -> bool:
    """Say whether a baseline reads a setting; of a pre-training, scratch takes the network's shape alone."""
    if baseline == SCRATCH:
        return not key.startswith(("finetune.adaptation", *_NO_SHAPE))
    return key.startswith(("finetune.task", "finetune.data"))


def _add(graph: Graph, study: Study, point: Point, system: System, raw: dict[str, Any]) -> None:
    """Add the cells of one trained system, and the pre-training beneath them."""
    finetune = {**raw["finetune"], "output": "cell", "seeds": 1, "compare_with": []}
    if raw["pretrain"] is not None:
        finetune["model"] = "made by this study"
    recipe = config.to_dict(config.fill(FinetuneRecipe, finetune, where=_place(point, system)))
    pretrain = None
    if raw["pretrain"] is not None:
        filled = config.fill(PretrainRecipe, {**raw["pretrain"], "output": "cell"}, where=_place(point, system))
        pretrain = config.to_dict(filled)
    for seed in study.all_seeds:
        parents: list[Node] = []
        own: dict[str, Any] = {**recipe, "seed": seed}
        reads = _files(recipe["data"])
        if isinstance(recipe["forgetting"], str):
            reads["forgetting"] = _content(recipe["forgetting"])
        if pretrain is not None:
            parents = [_pretrained(graph, study, pretrain, seed)]
            own["model"] = str(home(study.output, parents[0].id))
        else:
            reads["model"] = _content(recipe["model"])
        node = graph.add(Node.addressed("finetune", own, _identity(own), parents, reads))
        graph.cells.append(Cell(system, point.context(study), seed, node.id))
    if counts_overlap(study):
        corpus = pretrain["corpus"] if pretrain is not None else _corpus_of(recipe["model"])
        if corpus is not None and pretrain is None and _sources(corpus).startswith(ABSENT):
            if recipe["model"] not in graph.unsearched:
                graph.unsearched.append(recipe["model"])
        elif corpus is not None:
            found = graph.add(_overlap(recipe, corpus))
            graph.overlaps.setdefault(point.context(study), {})[system] = found.id


def _add_baseline(graph: Graph, study: Study, point: Point, system: System, finetune: Mapping[str, Any]) -> None:
    assert system.baseline is not None
    registry.target("baselines", system.baseline)
    asked = {"baseline": system.baseline, **{key: finetune[key] for key in ("task", "data") if key in finetune}}
    recipe = config.to_dict(config.fill(BaselineRecipe, asked, where=_place(point, system)))
    reads = _files(recipe["data"])
    if system.baseline == "glove":
        vectors = glove.vectors_path()
        reads["vectors"] = _content(vectors) if vectors else "none"
    for seed in study.all_seeds:
        own = {**recipe, "seed": seed}
        node = graph.add(Node.addressed("baseline", own, _identity(own), (), reads))
        graph.cells.append(Cell(system, point.context(study), seed, node.id))


def _pretrained(graph: Graph, study: Study, recipe: dict[str, Any], seed: int) -> Node:
    """Add the pre-training that a cell starts from, and the text that it reads as tokens."""
    own = {**recipe, "seed": seed if study.seed_pretraining else recipe["seed"]}
    reads = {"corpus": _sources(own["corpus"])}
    tokenizer = own["tokenizer"].get("path")
    if tokenizer:
        reads["tokenizer"] = _content(tokenizer)
    if own["backbone"].get("path"):
        reads["checkpoint"] = _content(own["backbone"]["path"])
    if own["objective"].get("teacher"):
        reads["teacher"] = _content(own["objective"]["teacher"])
    parents = []
    if own["corpus"].get("prepared") is None:
        asked = {**own, "objective": recipe["objective"]}
        text = {"corpus": _without_paths(own["corpus"]), "tokenizer": own["tokenizer"], "seed": own["seed"]}
        if tokenizer is None and own["backbone"].get("path"):
            text["checkpoint"] = reads["checkpoint"]
        parents = [graph.add(Node.addressed("prepare", asked, text, (), reads))]
        own["corpus"] = {**own["corpus"], "prepared": str(home(study.output, parents[0].id))}
    identity = {**identity_of(own), "corpus": _without_paths(own["corpus"])}
    identity["objective"] = {key: value for key, value in own["objective"].items() if key != "teacher"}
    return graph.add(Node.addressed("pretrain", own, identity, parents, reads))


def _overlap(recipe: Mapping[str, Any], corpus: dict[str, Any]) -> Node:
    data = recipe["data"]
    asked = {"task": recipe["task"], "test": data["test"], "test_rows": data["test_rows"], "corpus": corpus}
    own = config.to_dict(config.fill(OverlapRecipe, asked))
    reads = {"test": _content(own["test"]), "corpus": _sources(corpus)}
    identity = {key: own[key] for key in ("task", "test_rows", "words")}
    identity["corpus"] = _without_paths(own["corpus"])
    return Node.addressed("overlap", own, identity, (), reads)


def _corpus_of(model: str) -> dict[str, Any] | None:
    """Return the corpus that a checkpoint of ours was pre-trained on; other checkpoints do not tell."""
    if not artifact.is_complete(Path(model)):
        return None
    corpus = artifact.read_manifest(Path(model)).get("recipe", {}).get("corpus")
    return corpus if isinstance(corpus, dict) and "sources" not in corpus else None


def _identity(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without paths and without what decides nothing: content stands in their place."""
    kept = {key: value for key, value in identity_of(recipe).items() if key not in (*_OWN, "model", "forgetting")}
    kept["data"] = {key: value for key, value in recipe["data"].items() if not _is_path(key, value)}
    kept["forgetting"] = bool(recipe.get("forgetting"))
    return kept


def _is_path(key: str, value: Any) -> bool:
    return key in _READ and isinstance(value, str)


def _without_paths(corpus: Mapping[str, Any]) -> dict[str, Any]:
    parts = {"parts": [_without_paths(part) for part in corpus["parts"]]} if "parts" in corpus else {}
    aside = ("files", "prepared", "max_reject_share")
    return {key: value for key, value in corpus.items() if key not in aside} | parts


def _files(data: Mapping[str, Any]) -> dict[str, str]:
    return {key: _content(value) for key, value in data.items() if _is_path(key, value)}


def _sources(corpus: Mapping[str, Any]) -> str:
    """Name a corpus by the content of its files."""
    found: list[Any] = []
    for part in corpus.get("parts", [corpus]):
        try:
            found.append(_expanded(tuple(part["files"])))
        except DataError:
            return ABSENT + ", ".join(part["files"])
    return config.fingerprint(found)


@lru_cache(maxsize=256)
def _expanded(files: tuple[str, ...]) -> Any:
    return readers.described(readers.expand(files))


@lru_cache(maxsize=1024)
def _content(path: str) -> str:
    """Return a hash of a file or folder; its path, marked as absent, where there is none."""
    place = Path(path)
    if place.is_file():
        return artifact.sha256(place)[:16]
    return artifact.identity(place)[:16] if path and place.is_dir() else ABSENT + path


def _place(point: Point, system: System) -> str:
    levels = ", ".join(f"{axis} {level}" for axis, level in point.levels.items())
    return f"the study at {levels or 'its only point'} ({system.name})"
