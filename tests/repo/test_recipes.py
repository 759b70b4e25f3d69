"""Every recipe that ships can be followed, with or without the data it names, and travels in the wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import headstart
from headstart.core import config
from headstart.core.config import Section
from headstart.core.errors import RecipeError
from headstart.stages.corpus.recipe import CorpusRecipe
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.multitask.recipe import MultitaskRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.search.recipe import IndexRecipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for pattern in ("*.yaml", "*.yml") for path in (ROOT / "recipes").rglob(pattern))
SETS = re.compile(r"HEADSTART_DATA[^}]*\}/(?:tasks|corpora)/([\w/-]+)/[^/\s]+")
BY_SECTION = {
    "sources": CorpusRecipe, "objective": PretrainRecipe, "task": FinetuneRecipe, "tasks": MultitaskRecipe,
    "passages": IndexRecipe,
}  # fmt: skip


def model_of(path: Path) -> type[Section]:
    """Tell a recipe's stage by the one section that only this stage has."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    stages = [model for section, model in BY_SECTION.items() if section in raw]
    assert len(stages) == 1, f"{path} has {len(stages)} of the sections {', '.join(BY_SECTION)}; a recipe has one"
    return stages[0]


def name(path: Path) -> str:
    return path.relative_to(ROOT / "recipes").as_posix()


def test_the_quickstart_is_there():
    assert {"quickstart/pretrain.yaml", "quickstart/finetune.yaml"} <= {name(path) for path in RECIPES}


@pytest.mark.parametrize("data", [None, "nowhere"], ids=["variable-unset", "folder-missing"])
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_recipe_validates(path, data, monkeypatch, tmp_path):
    if data is None:
        monkeypatch.delenv("HEADSTART_DATA", raising=False)
    else:
        monkeypatch.setenv("HEADSTART_DATA", str(tmp_path / data))
    model = model_of(path)
    recipe = config.load(path, model)
    again = config.fill(model, config.to_dict(recipe))
    assert config.to_dict(again) == config.to_dict(recipe), "the filled recipe does not read back as itself"


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_misspelt_key_is_refused(path):
    with pytest.raises(RecipeError, match="sede"):
        config.load(path, model_of(path), ["sede=1"])


def test_outputs_differ():
    """Two recipes that write to one folder would stop each other."""
    outputs = [yaml.safe_load(path.read_text(encoding="utf-8")).get("output") for path in RECIPES]
    assert len(set(outputs)) == len(outputs), sorted(map(str, outputs))


def test_every_set_that_is_not_shipped_is_described():
    files = [*RECIPES, *(ROOT / "studies").rglob("*.yaml")]
    found = {name for path in files for name in SETS.findall(path.read_text(encoding="utf-8"))}
    described = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert found and not sorted(name for name in found if f"| `{name}` |" not in described)


@pytest.mark.parametrize("folder", ["recipes", "studies"])
def test_the_wheel_carries_recipes_and_studies(folder):
    package = Path(headstart.__file__).resolve().parent
    if package.is_relative_to(ROOT / "src"):
        pytest.skip("headstart is imported from src; un-skipped against an installed wheel, as .ci/run does")
    ours, shipped = ({p.relative_to(top): p.read_bytes() for p in top.rglob("*") if kept(p)} for top in (
        ROOT / folder, package / "shipped" / folder
    ))  # fmt: skip
    assert ours.keys() == shipped.keys()
    assert ours == shipped


def kept(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
