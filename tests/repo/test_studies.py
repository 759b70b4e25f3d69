"""Every shipped study is valid, with or without its data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from headstart.core import config
from headstart.core.errors import RecipeError
from headstart.studies import study as stage
from headstart.studies.definition import Study
from headstart.studies.judge.results import Results
from headstart.studies.judge.verdicts import judge
from headstart.studies.run.expand import build

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").rglob("*.yaml"))


def test_there_are_studies():
    assert {"label-efficiency.yaml", "quickstart.yaml"} <= {path.name for path in STUDIES}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_cell_has_a_valid_recipe(path, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path / "nowhere"))
    study = stage.load(path)
    graph = build(study)
    assert graph.cells and {cell.node for cell in graph.cells} <= graph.nodes.keys()
    for node in graph.nodes.values():
        assert set(node.parents) <= graph.nodes.keys()
    names = {cell.system.name for cell in graph.cells}
    assert study.reference in names
    again = config.fill(Study, config.to_dict(study))
    assert config.to_dict(again) == config.to_dict(study), "the filled study does not read back as itself"
    assert build(again).nodes.keys() == graph.nodes.keys()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_claim_covers_cells_that_exist(path):
    study = stage.load(path)
    systems = {cell.system for cell in build(study).cells}
    from headstart.studies.contrast import Contrast

    for claim in study.claims:
        contrast = Contrast.parse(claim.contrast)
        assert all(any(system.has(side) for system in systems) for side in (contrast.better, contrast.worse)), claim
    assert all(verdict.word == "undecided" for verdict in judge(study, Results(), None)), "nothing was run"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_misspelled_key_is_refused(path):
    with pytest.raises(RecipeError, match="sedes"):
        stage.load(path, ["sedes=1"])


def test_outputs_differ():
    outputs = [yaml.safe_load(path.read_text(encoding="utf-8"))["output"] for path in STUDIES]
    assert len(set(outputs)) == len(outputs)
