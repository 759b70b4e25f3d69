"""Expand a study into a graph of cells: every recipe filled, every input file hashed, no node twice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from headstart.checkpoint.names import folder_of
from headstart.core import artifact, config, file_hashes, registry, renames
from headstart.core.config import Section, TaskSection
from headstart.core.data import SPLITS
from headstart.core.errors import ArtifactError, DataError, RecipeError
from headstart.corpus.read import mixture, readers
from headstart.corpus.read.built import BuiltCorpus
from headstart.evaluation import glove, static
from headstart.stages.finetune.recipe import FinetuneRecipe, LabeledData
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.probe.run import build_one
from headstart.stages.probe.settings import ProbeSettings
from headstart.stages.runs.folder import identity_of
from headstart.studies.contrast import Contrast
from headstart.studies.definition import SCRATCH, Study
from headstart.studies.graph import ABSENT, Cell, Graph, Node, cell_dir
from headstart.studies.grid import Point, System, is_excluded, points, with_settings
from headstart.tasks.table_files import TableSource, locate

_SET_BY_STUDY = ("output", "seeds", "compare_with")
"""Settings of a fine-tuning recipe that the study sets."""
_ANY_MODEL = "made by this study"
_NOT_SHAPE = ("pretrain.objective", "pretrain.training", "pretrain.warm_start")
"""Settings of pre-training that do not change the network or the tokenizer."""


class BaselineRecipe(Section):
    """The settings of a fine-tuning recipe that a baseline reads."""

    baseline: str
    seed: int = 0
    task: TaskSection
    data: LabeledData


class ProbeSection(Section):
    """The settings of `headstart probe` that a study has."""

    probes: list[str] = Field(min_length=1, description="names of probes, as `headstart list probes` names them")
    model: str | None = Field(None, description="the model, if the study neither pre-trains nor fine-tunes one")
    text: str | None = Field(None, description="a file of your own that the probe reads in place of its data")
    limit: int | None = Field(None, ge=1, description="rows of each group of the data; null: the probe's default")
    seed: int = Field(0, ge=0, description="chooses the rows; they are the same for all cells")


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
    test: str
    test_rows: int | None = None
    corpus: mixture.Corpus
    words: int = 13


def build(study: Study) -> Graph:
    """Fill every recipe of a study and return the graph; raises at the first point with an invalid recipe."""
    graph = Graph()
    for point in points(study):
        recipes = with_settings(study.base.model_dump(), point.settings)
        finetune, system = recipes["finetune"], System(point.compared(study))
        _require_free_settings(finetune or {})
        if finetune and finetune.get("adaptation") is not None and not is_excluded(study, point):
            _add(graph, study, point, system, recipes)
        if recipes["probe"] is not None and not is_excluded(study, point):
            _add_probes(graph, study, point, system, recipes)
        _add_baselines(graph, study, point, recipes)
    _require_reference(graph, study)
    return graph


def _add_baselines(graph: Graph, study: Study, point: Point, recipes: dict[str, Any]) -> None:
    """Add the baselines of a point; one that several points share is added once."""
    present = {(cell.system, cell.context) for cell in graph.cells}
    has_model = recipes["pretrain"] is not None or any("model" in (recipes[key] or {}) for key in ("finetune", "probe"))
    needs_untrained = recipes["probe"] is not None and _compares_untrained(study)
    for entry in study.baselines:
        settings = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = settings["name"]
        if is_excluded(study, point, name) or (name == SCRATCH and not has_model):
            continue
        compared = [axis for axis in study.axes if axis in study.compare]
        levels = [_level_read(study, axis, point.levels[axis], name) for axis in compared]
        system = System(tuple(level for level in levels if level is not None), name)
        if (system, point.context(study)) in present:
            continue
        if name == SCRATCH:
            if recipes["finetune"] is not None:
                _add(graph, study, point, system, with_settings(recipes, {"finetune.adaptation": settings}))
            if needs_untrained:
                _add_probes(graph, study, point, system, recipes)
        else:
            _add_baseline(graph, study, point, system, recipes["finetune"])


def _require_reference(graph: Graph, study: Study) -> None:
    """Refuse a reference that is not a row of the table, because every lead would be empty."""
    names = list(dict.fromkeys(cell.system.name for cell in graph.cells))
    if study.reference not in names:
        raise RecipeError(
            f"the reference {study.reference!r} is not a row of the table",
            allowed=f"The rows are: {', '.join(names)}",
            do="Set `reference` to one of them",
        )


def counts_overlap(study: Study) -> bool:
    """Return True if the study searches the corpus for test items and the engine for it is installed."""
    return study.overlap and find_spec("daft") is not None


def _require_free_settings(finetune: Mapping[str, Any]) -> None:
    """Refuse settings of the base recipe that the study sets."""
    key = next((key for key in _SET_BY_STUDY if key in finetune), None)
    if key is not None:
        raise RecipeError(
            f"base.finetune has `{key}`",
            allowed="A study sets the output, the seed and the baselines of every cell",
            do=f"Remove `{key}`; `seeds` and `baselines` are keys of the study itself",
        )


def _level_read(study: Study, axis: str, level: str, baseline: str) -> str | None:
    """Return the first level that looks the same to a baseline as this one; None where all levels do."""
    visible = {
        name: {key: value for key, value in settings.items() if _reads(baseline, key)}
        for name, settings in study.axes[axis].items()
    }
    same = [name for name, settings in visible.items() if settings == visible[level]]
    return None if len(same) == len(visible) else same[0]


def _reads(baseline: str, key: str) -> bool:
    """Return True if a setting affects a baseline; of pre-training, `scratch` reads only the network's shape."""
    if baseline == SCRATCH:
        return not key.startswith(("finetune.adaptation", *_NOT_SHAPE))
    return key.startswith(("finetune.task", "finetune.data"))


def _add(graph: Graph, study: Study, point: Point, system: System, recipes: dict[str, Any]) -> None:
    """Add the cells of one trained system, and the pre-training that they start from."""
    where = _describe(point, system)
    finetune = {**recipes["finetune"], "output": "cell", "seeds": 1, "compare_with": []}
    if recipes["pretrain"] is not None:
        finetune["model"] = _ANY_MODEL
    recipe = config.to_dict(config.fill(FinetuneRecipe, finetune, where=where))
    pretrain = _filled_pretraining(recipes, where)
    for seed in study.all_seeds:
        own: dict[str, Any] = {**recipe, "seed": seed}
        parent = None
        if pretrain is not None:
            parent = _add_pretraining(graph, study, pretrain, seed)
            own["model"] = str(cell_dir(study.output, parent.id))
        node = graph.add(finetune_node(own, parent))
        graph.cells.append(Cell(system, point.context(study), seed, node.id))
    if counts_overlap(study):
        corpus = pretrain["corpus"] if pretrain is not None else _corpus_of(recipe["model"])
        if corpus is not None and pretrain is None and _corpus_hash(corpus).startswith(ABSENT):
            if recipe["model"] not in graph.unsearched:
                graph.unsearched.append(recipe["model"])
        elif corpus is not None and isinstance(recipe["data"]["test"], str) and "dataset" not in recipe["data"]:
            overlap = graph.add(_overlap(recipe, corpus))
            graph.overlaps.setdefault(point.context(study), {})[system] = overlap.id


def _filled_pretraining(recipes: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    if recipes["pretrain"] is None:
        return None
    return config.to_dict(config.fill(PretrainRecipe, {**recipes["pretrain"], "output": "cell"}, where=where))


def _add_probes(graph: Graph, study: Study, point: Point, system: System, recipes: dict[str, Any]) -> None:
    """Add the probe cells of one model: one for each pre-training, whose seeds are the only ones that a probe has."""
    where = _describe(point, system)
    section = config.fill(ProbeSection, recipes["probe"], where=where)
    pretrain = _filled_pretraining(recipes, where)
    model = section.model or (recipes["finetune"] or {}).get("model")
    if pretrain is None and not model:
        raise RecipeError(
            f"{where} has no model to probe", do="Set `base.probe.model`, or add `base.pretrain`, whose model is probed"
        )
    is_untrained = system.baseline == SCRATCH
    seeds = (
        study.all_seeds if is_untrained or (pretrain is not None and study.seed_pretraining) else study.all_seeds[:1]
    )
    for seed in seeds:
        parent = None if pretrain is None else _add_pretraining(graph, study, pretrain, seed)
        path = str(model) if parent is None else str(cell_dir(study.output, parent.id))
        for name in section.probes:
            settings = {key: value for key, value in section.model_dump().items() if key not in ("probes", "model")}
            own = {**settings, "probe": name, "model": path, "untrained_seed": seed if is_untrained else None}
            node = graph.add(probe_node(config.to_dict(config.fill(ProbeRecipe, own, where=where)), parent))
            graph.cells.append(Cell(system, point.context(study), seed, node.id))


def _compares_untrained(study: Study) -> bool:
    """Return whether the untrained network is probed: in a study of probes alone, or if a claim on a probe names it."""
    contrasts = [Contrast.parse(claim.contrast) for claim in study.claims]
    return study.base.finetune is None or any(SCRATCH in each.parts for each in contrasts if each.probe is not None)


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


def _add_baseline(graph: Graph, study: Study, point: Point, system: System, finetune: Mapping[str, Any]) -> None:
    assert system.baseline is not None
    registry.target("baselines", system.baseline)
    settings = {"baseline": system.baseline, **{key: finetune[key] for key in ("task", "data") if key in finetune}}
    recipe = config.to_dict(config.fill(BaselineRecipe, settings, where=_describe(point, system)))
    for seed in study.all_seeds:
        node = graph.add(baseline_node({**recipe, "seed": seed}))
        graph.cells.append(Cell(system, point.context(study), seed, node.id))


def finetune_node(recipe: dict[str, Any], pretraining: Node | None = None) -> Node:
    """Return the cell of a filled fine-tuning recipe; `pretraining` is the node that makes its checkpoint, if any."""
    inputs = _file_hashes(recipe["data"])
    if isinstance(recipe["forgetting"], str):
        inputs["forgetting"] = _content(recipe["forgetting"])
    if pretraining is None:
        inputs["model"] = _content(recipe["model"])
    adapt_first = recipe.get("adapt_first")
    if adapt_first and isinstance(adapt_first["texts"], list):
        inputs["texts"] = _corpus_hash({"files": adapt_first["texts"]})
    parents = [] if pretraining is None else [pretraining]
    return Node.addressed("finetune", recipe, _identity(recipe), parents, inputs)


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


def _add_pretraining(graph: Graph, study: Study, recipe: dict[str, Any], seed: int) -> Node:
    """Add the pre-training that a cell starts from, and the preparation of its text."""
    own = {**recipe, "seed": seed if study.seed_pretraining else recipe["seed"]}
    inputs = {"corpus": _corpus_hash(own["corpus"])}
    tokenizer = (own["tokenizer"] or {}).get("path")
    if tokenizer:
        inputs["tokenizer"] = _content(tokenizer)
    if own["backbone"].get("path"):
        inputs["checkpoint"] = _content(own["backbone"]["path"])
    if own["objective"].get("teacher"):
        inputs["teacher"] = _content(own["objective"]["teacher"])
    parents = []
    if own["corpus"].get("prepared") is None:
        text = {"corpus": _without_paths(own["corpus"]), "tokenizer": own["tokenizer"], "seed": own["seed"]}
        if tokenizer is None and own["backbone"].get("path"):
            text["checkpoint"] = inputs["checkpoint"]
        parents = [graph.add(Node.addressed("prepare", dict(own), text, (), inputs))]
        own["corpus"] = {**own["corpus"], "prepared": str(cell_dir(study.output, parents[0].id))}
    identity = {**identity_of(own), "corpus": _without_paths(own["corpus"])}
    identity["objective"] = {key: value for key, value in own["objective"].items() if key != "teacher"}
    return graph.add(Node.addressed("pretrain", own, identity, parents, inputs))


def _overlap(recipe: Mapping[str, Any], corpus: dict[str, Any]) -> Node:
    data = recipe["data"]
    settings = {"task": recipe["task"], "test": data["test"], "test_rows": data["test_rows"], "corpus": corpus}
    own = config.to_dict(config.fill(OverlapRecipe, settings))
    inputs = {"test": _content(own["test"]), "corpus": _corpus_hash(corpus)}
    identity = {key: own[key] for key in ("task", "test_rows", "words")}
    identity["corpus"] = _without_paths(own["corpus"])
    return Node.addressed("overlap", own, identity, (), inputs)


def _corpus_of(model: str) -> dict[str, Any] | None:
    """Return the corpus that a Headstart checkpoint was pre-trained on; None for all other checkpoints."""
    if not artifact.is_complete(Path(model)):
        return None
    saved = config.expand_saved(artifact.read_manifest(Path(model)).get("recipe", {}), Path(model))
    corpus = renames.upgrade(saved).get("corpus")
    return corpus if isinstance(corpus, dict) and "sources" not in corpus else None


def _identity(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without paths, whose content is hashed instead, and without settings that change no result."""
    excluded = (*_SET_BY_STUDY, "model", "forgetting")
    kept = {key: value for key, value in identity_of(recipe).items() if key not in excluded}
    kept["data"] = {key: value for key, value in recipe["data"].items() if not _is_path(key, value)}
    kept["forgetting"] = bool(recipe.get("forgetting"))
    if kept.get("adapt_first"):
        section = kept["adapt_first"]
        paths = ["folder", *(["texts"] if isinstance(section["texts"], list) else [])]
        kept["adapt_first"] = {key: value for key, value in section.items() if key not in paths}
    return kept


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


def _corpus_hash(corpus: Mapping[str, Any]) -> str:
    """Return a hash of the files of a corpus; their paths, marked as absent, where some do not exist."""
    parts: list[Any] = []
    for part in corpus.get("parts", [corpus]):
        try:
            parts.append(_described_corpus(part["from"]) if "from" in part else _described_files(tuple(part["files"])))
        except (DataError, ArtifactError):
            return ABSENT + ", ".join([part["from"]] if "from" in part else part["files"])
    return config.fingerprint(parts)


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


def _describe(point: Point, system: System) -> str:
    """Return where in the study a recipe is, for error messages."""
    levels = ", ".join(f"{axis} {level}" for axis, level in point.levels.items())
    return f"the study at {levels or 'its only point'} ({system.name})"
