"""Names in recipes: looked up without imports, extended by plugins, corrected when misspelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headstart.core import config, registry
from headstart.core.errors import RecipeError
from headstart.core.recipes.schema import schema
from headstart.stages.pretrain.recipe import PretrainRecipe

PLUGIN = '''
from typing import ClassVar, Literal
from headstart.core.config import Section

raise_on_import = False


class Shuffle:
    """Put the tokens of a row back in order.

    More words that a list does not show.
    """

    paper: ClassVar[str] = "Nobody 2030"
    families = ("encoder",)

    class Config(Section):
        name: Literal["shuffle"] = "shuffle"
        width: int = 3

    def __init__(self, config):
        self.config = config


def score(gold, predicted):
    """Count them.

    Paper: Somebody 2031
    """
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Return a function that installs a distribution with entry points, as pip would lay it out."""

    def install(entry_points: str, source: str = PLUGIN, name: str = "hs_plugin") -> Path:
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    yield install
    for module in ("hs_plugin", "hs_plugin_two"):
        sys.modules.pop(module, None)
    registry._source.cache_clear()


@pytest.mark.parametrize("group", registry.TABLES)
def test_every_name_resolves_and_is_described(group):
    for entry in registry.describe(group):
        found = registry.resolve(group, entry.name)
        assert entry.help == (found.__doc__ or "").partition("\n")[0] != ""
        if group in registry.SELECTOR:
            assert entry.paper == found.paper != ""
            assert found.Config.model_fields[registry.SELECTOR[group]].default == entry.name


def test_describing_imports_nothing_heavy():
    code = (
        "import sys\nfrom headstart.core import registry\n"
        "lines = [e for group in registry.TABLES for e in registry.describe(group)]\n"
        "assert all(e.help for e in lines) and any(e.paper for e in lines)\n"
        "print(*(m for m in ('torch', 'transformers', 'sklearn', 'scipy') if m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


@pytest.mark.parametrize(
    ("group", "word", "meant"),
    [
        ("objectives", "mask_lm", "masked_lm"),
        ("adaptations", "feature", "features"),
        ("metrics", "acuracy", "accuracy"),
    ],
)
def test_a_misspelled_name_gets_a_suggestion(group, word, meant):
    with pytest.raises(RecipeError) as caught:
        registry.target(group, word)
    assert f"did you mean {meant!r}?" in str(caught.value) and f"headstart list {group}" in str(caught.value)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RecipeError) as caught:
        registry.resolve("adaptations", "zzz")
    assert "did you mean" not in str(caught.value) and "full, scratch, features" in str(caught.value)
    with pytest.raises(RecipeError, match="did you mean 'objectives'"):
        registry.names("objective")


def test_a_plugin_adds_a_name_that_recipes_can_use(plugin):
    plugin("[headstart.objectives]\nshuffle = hs_plugin:Shuffle\n[headstart.metrics]\ncounted = hs_plugin:score\n")
    assert registry.names("objectives")[-1] == "shuffle"
    described = {e.name: e for e in registry.describe("objectives") + registry.describe("metrics")}
    assert described["shuffle"].help == "Put the tokens of a row back in order."
    assert described["shuffle"].paper == "Nobody 2030" and described["counted"].paper == "Somebody 2031"
    assert "hs_plugin" not in sys.modules, "describing a plugin should not run it"
    raw = {
        "output": "x",
        "corpus": {"files": ["a"]},
        "backbone": "encoder",
        "objective": {"name": "shuffle", "width": 5},
    }
    recipe = config.fill(PretrainRecipe, raw)
    assert recipe.objective.width == 5
    assert registry.build("objectives", recipe.objective).config.width == 5
    with pytest.raises(RecipeError, match=r"objective\.widht is not a known key; did you mean 'width'"):
        config.fill(PretrainRecipe, raw | {"objective": {"name": "shuffle", "widht": 5}})
    kinds = schema(PretrainRecipe)["properties"]["objective"]["oneOf"]
    assert any(kind.get("properties", {}).get("width") for kind in kinds)


def test_a_plugin_may_not_take_a_built_in_name(plugin):
    plugin("[headstart.objectives]\nmasked_lm = hs_plugin:Shuffle\n")
    with pytest.raises(RecipeError, match="adds 'masked_lm' to objectives, a name that Headstart has already"):
        registry.names("objectives")
    assert registry.names("tasks")


def test_two_plugins_may_not_share_a_name(plugin):
    plugin("[headstart.objectives]\nshuffle = hs_plugin:Shuffle\n")
    plugin("[headstart.objectives]\nshuffle = hs_plugin_two:Shuffle\n", name="hs_plugin_two")
    with pytest.raises(RecipeError, match="'shuffle'"):
        registry.names("objectives")


@pytest.mark.parametrize("target", ["hs_plugin:Absent", "no_such_module:X", "no_such_package.module:X"])
def test_a_broken_plugin_is_named_when_used_and_does_not_stop_the_list(plugin, target):
    plugin(f"[headstart.objectives]\nbroken = {target}\n")
    with pytest.raises(RecipeError, match=r"broken.*entry point"):
        registry.resolve("objectives", "broken")
    assert registry.describe("objectives")[-1] == registry.Entry("broken", target, "", "")
