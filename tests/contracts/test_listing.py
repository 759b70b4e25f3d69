"""`headstart list` describes every entry, and the contract tests cover plugins too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.core import registry

ROOT = Path(__file__).parents[2]
WITH_PAPERS = ("objectives", "backbones", "tasks", "adaptations")
HEAVY = ("torch", "transformers", "sklearn", "scipy", "tokenizers")


def python(code, *arguments, extra_path=""):
    """Run code in a new interpreter that finds the same package as this one."""
    path = os.pathsep.join(filter(None, [str(extra_path), *sys.path]))
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_an_entry_has_a_description_and_a_paper(entry):
    group, name = entry
    described = next(entry for entry in registry.describe(group) if entry.name == name)
    assert described.help and "\n" not in described.help
    assert described.help.endswith(".") and len(described.help) <= 120
    assert registry.resolve(group, name).__doc__.startswith(described.help)
    if group in WITH_PAPERS:
        assert any(character.isdigit() for character in described.paper), "a paper is cited by author and year"
        assert registry.resolve(group, name).paper == described.paper


def test_an_entry_is_built_from_its_name_alone(entry):
    group, name = entry
    if group in registry.SELECTOR:
        config = registry.resolve(group, name).Config.model_validate({registry.SELECTOR[group]: name})
        assert type(registry.build(group, config)) is registry.resolve(group, name)
    else:
        assert callable(registry.resolve(group, name))


@pytest.fixture(scope="module")
def listed():
    """The output of the command line for each group, from one interpreter, and the heavy modules it loaded."""
    code = (
        "import sys\nfrom headstart.cli import app\n"
        "for group in sys.argv[1].split(','):\n"
        "    print('#', group, flush=True)\n"
        "    app(args=['list', group], standalone_mode=False)\n"
        f"print('# loaded', *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    result = python(code, ",".join(registry.TABLES))
    assert result.returncode == 0, result.stderr
    sections = result.stdout.split("# ")[1:]
    return {section.partition("\n")[0]: section.partition("\n")[2].splitlines() for section in sections}


def test_list_prints_every_entry(listed):
    for group in registry.TABLES:
        lines = listed[group]
        assert [line.split()[0] for line in lines] == registry.names(group)
        for line, entry in zip(lines, registry.describe(group), strict=True):
            assert entry.help in line and entry.paper in line


def test_list_loads_nothing_heavy(listed):
    assert "loaded" in listed, f"loaded: {[key for key in listed if key.startswith('loaded')]}"


PLUGIN = '''
"""A plugin's objective."""
from headstart.objectives.masked_lm import MaskedLM
from typing import ClassVar, Literal


class HalfHidden(MaskedLM):
    """Predict half of the tokens."""

    paper: ClassVar[str] = "Nobody 2024"

    class Config(MaskedLM.Config):
        name: Literal["half_hidden"] = "half_hidden"
        rate: float = 0.5

    def __init__(self, config=None):
        super().__init__(config or HalfHidden.Config())
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """An installed plugin: a module, and metadata with an entry point."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "half_hidden_plugin.py").write_text(PLUGIN, encoding="utf-8")
    metadata = folder / "half_hidden_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: half-hidden-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headstart.objectives]\nhalf_hidden = half_hidden_plugin:HalfHidden\n")
    return folder


def test_a_plugin_is_listed(plugin):
    result = python("from headstart.cli import app; app(args=['list', 'objectives'])", extra_path=plugin)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^half_hidden +Predict half of the tokens\.  \[Nobody 2024\]$", result.stdout, re.MULTILINE)


def test_the_contract_tests_cover_an_installed_plugin(plugin):
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    suite = Path(__file__).with_name("test_objectives.py")
    arguments = ("-k", "half_hidden and modernbert and (protocol or weight)", "-v", "-p", "no:cacheprovider")
    result = python(code, suite, f"--rootdir={ROOT}", "-c", ROOT / "pyproject.toml", *arguments, extra_path=plugin)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "test_implements_the_protocol[half_hidden-encoder-modernbert] PASSED" in result.stdout
    assert "2 passed" in result.stdout
