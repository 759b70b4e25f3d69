"""Expand a study into a graph of cells: every recipe filled, no node twice."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from headstart.core import artifact, config, registry, renames
from headstart.core.config import Section
from headstart.core.errors import RecipeError
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.studies.contrast import Contrast
from headstart.studies.definition import SCRATCH, Study
from headstart.studies.graph import ABSENT, Cell, Graph, Node, cell_dir
from headstart.studies.grid import Point, System, is_excluded, points, with_settings
from headstart.studies.run.nodes import (
    SET_BY_STUDY,
    BaselineRecipe,
    ProbeRecipe,
    baseline_node,
    corpus_hash,
    finetune_node,
    overlap_node,
    pretraining_nodes,
    probe_node,
)

_ANY_MODEL = "made by this study"
_NOT_SHAPE = ("pretrain.objective", "pretrain.training", "pretrain.warm_start")
"""Settings of pre-training that do not change the network or the tokenizer."""


class ProbeSection(Section):
    """The settings of `headstart probe` that a study has."""

    probes: list[str] = Field(min_length=1, description="names of probes, as `headstart list probes` names them")
    model: str | None = Field(None, description="the model, if the study neither pre-trains nor fine-tunes one")
    text: str | None = Field(None, description="a file of your own that the probe reads in place of its data")
    limit: int | None = Field(None, ge=1, description="rows of each group of the data; null: the probe's default")
    seed: int = Field(0, ge=0, description="chooses the rows; they are the same for all cells")


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
    key = next((key for key in SET_BY_STUDY if key in finetune), None)
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
        if corpus is not None and pretrain is None and corpus_hash(corpus).startswith(ABSENT):
            if recipe["model"] not in graph.unsearched:
                graph.unsearched.append(recipe["model"])
        elif corpus is not None and isinstance(recipe["data"]["test"], str | list) and "dataset" not in recipe["data"]:
            overlap = graph.add(overlap_node(recipe, corpus))
            graph.overlaps.setdefault(point.context(study), {})[system] = overlap.id


def _add_pretraining(graph: Graph, study: Study, recipe: dict[str, Any], seed: int) -> Node:
    """Add the pre-training that a cell starts from, and the preparation of its text."""
    own = {**recipe, "seed": seed if study.seed_pretraining else recipe["seed"]}
    return [graph.add(node) for node in pretraining_nodes(own, study.output)][-1]


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


def _add_baseline(graph: Graph, study: Study, point: Point, system: System, finetune: Mapping[str, Any]) -> None:
    assert system.baseline is not None
    registry.target("baselines", system.baseline)
    settings = {"baseline": system.baseline, **{key: finetune[key] for key in ("task", "data") if key in finetune}}
    recipe = config.to_dict(config.fill(BaselineRecipe, settings, where=_describe(point, system)))
    for seed in study.all_seeds:
        node = graph.add(baseline_node({**recipe, "seed": seed}))
        graph.cells.append(Cell(system, point.context(study), seed, node.id))


def _corpus_of(model: str) -> dict[str, Any] | None:
    """Return the corpus that a Headstart checkpoint was pre-trained on; None for all other checkpoints."""
    if not artifact.is_complete(Path(model)):
        return None
    saved = config.expand_saved(artifact.read_manifest(Path(model)).get("recipe", {}), Path(model))
    corpus = renames.upgrade(saved).get("corpus")
    return corpus if isinstance(corpus, dict) and "sources" not in corpus else None


def _describe(point: Point, system: System) -> str:
    """Return where in the study a recipe is, for error messages."""
    levels = ", ".join(f"{axis} {level}" for axis, level in point.levels.items())
    return f"the study at {levels or 'its only point'} ({system.name})"
