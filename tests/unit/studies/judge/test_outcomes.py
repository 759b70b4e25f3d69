"""Claims on probes: items and seeds are compared by the rule of the other claims."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from headstart.core import config
from headstart.evaluation.intervals import Estimate
from headstart.evaluation.resampling import CrossedDesign
from headstart.stages.finetune import result
from headstart.stages.probe.probe import ProbeScore
from headstart.studies.definition import Study
from headstart.studies.graph import Cell, Graph, Node, cell_dir
from headstart.studies.grid import System
from headstart.studies.judge import looks, outcomes
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.results import Results
from headstart.studies.judge.verdicts import Verdict, judge
from headstart.studies.run.jobs import _figure

RECIPE = {"probe": "cloze", "model": "m", "text": None, "limit": None, "seed": 0, "untrained_seed": None}


def study_of(contrast: str) -> Study:
    axes = {"objective": {name: {"pretrain.objective": name} for name in ("one", "other")}}
    return config.fill(Study, {
        "question": "?", "output": "out", "base": {"pretrain": {}, "probe": {"probes": ["cloze"]}}, "axes": axes,
        "compare": ["objective"], "seed_pretraining": True, "claims": [{"statement": "so it is", "contrast": contrast}],
    })  # fmt: skip


def write(folder: Path, points: dict[str, list[list[float | None]]], other: float = 3.0) -> Graph:
    """Write finished cells: facts with one point for each item, and a figure without items."""
    graph = Graph()
    for name, runs in points.items():
        for seed, items in enumerate(runs):
            node = graph.add(Node("probe", RECIPE, (), {"facts": "a"}, f"probe-{name}-{seed}"))
            graph.cells.append(Cell(System((name,)), (), seed, node.id))
            known = [item for item in items if item is not None]
            facts = {"measure": "facts, answer first", "value": float(np.mean(known)), "scale": 100.0, "points": items}
            single = {"measure": "Depth (nats)", "value": other + seed + (name == "one"), "scale": 1.0, "points": []}
            result.write(cell_dir(folder, node.id), {"scores": [facts, single], "cost": {}}, "cell of a study")
    return graph


def judged(folder: Path, graph: Graph, contrast: str, samples: int = 300) -> Verdict:
    study = study_of(contrast)
    results = Results(outcomes=outcomes.read(graph, folder, {}, study.claims))
    return judge(study, results, Resamples(samples))[0]


def test_items_and_seeds_of_a_probe_are_paired(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {name: [(rng.random(200) < rate).astype(float).tolist() for _ in range(6)]
            for name, rate in (("one", 0.8), ("other", 0.5))}  # fmt: skip
    verdict = judged(tmp_path, write(tmp_path, rows), "one > other on probe.cloze")
    assert verdict.word == "confirmed" and verdict.scale == 100
    assert (verdict.comparison.units, verdict.comparison.examples) == (6, 200)
    assert verdict.comparison.examples_error > 0, "other items would give another difference"


def test_a_figure_is_named_by_the_words_it_begins_with_and_needs_no_items(tmp_path: Path) -> None:
    graph = write(tmp_path, {name: [[1.0, 0.0]] * 6 for name in ("one", "other")})
    verdict = judged(tmp_path, graph, "one > other on probe.cloze.depth")
    assert verdict.word == "confirmed" and verdict.comparison.difference == pytest.approx(1.0)
    assert (verdict.comparison.examples, verdict.comparison.examples_error) == (0, 0.0)
    missing = judged(tmp_path, graph, "one > other on probe.cloze.lambada")
    assert missing.word == "undecided"
    assert "no figure lambada; its figures are: facts_answer_first, depth_nats" in missing.sentence()


def test_only_items_that_all_models_have_are_compared(tmp_path: Path) -> None:
    graph = write(tmp_path, {"one": [[1.0, None, 1.0]], "other": [[0.0, 1.0, 1.0]]})
    verdict = judged(tmp_path, graph, "one > other on probe.cloze")
    assert verdict.comparison.examples == 2
    assert verdict.comparison.difference == pytest.approx(0.5), "not 1 − 2/3"


def test_an_early_look_compares_the_items_of_its_own_seeds(tmp_path: Path) -> None:
    graph = write(tmp_path, {"one": [[1.0, 1.0], [1.0, None]], "other": [[0.0, 1.0], [0.0, 1.0]]})
    (found,) = outcomes.read(graph, tmp_path, {}, study_of("one > other on probe.cloze").claims).values()
    one = System(("one",)), ()
    assert len(found.scores[one][0].gold) == 1
    assert len(looks.until(found, 1).scores[one][0].gold) == 2


def test_items_of_a_table_are_drawn_by_rows_and_columns(tmp_path: Path) -> None:
    """Differences that only depend on the template: three of them are seen, in however many comparisons."""
    names, templates = [f"name {i}" for i in range(12)], ["a", "b", "c"]
    cells = [(name, template) for name in names for template in templates]
    points = {"one": [float(templates.index(template)) for _, template in cells], "other": [0.0] * len(cells)}
    points["other"][5] = math.nan
    errors = {}
    for design in (CrossedDesign(*zip(*cells, strict=True)), None):
        folder, graph = tmp_path / str(design is None), Graph()
        for name, items in points.items():
            for seed in range(6):
                node = graph.add(Node("probe", RECIPE, (), {"bias": "a"}, f"probe-{name}-{seed}"))
                graph.cells.append(Cell(System((name,)), (), seed, node.id))
                score = ProbeScore("m", "association", Estimate(float(np.nanmean(items))), {}, "nats", items, design)
                result.write(cell_dir(folder, node.id), {"scores": [_figure(score)], "cost": {}}, "cell of a study")
        comparison = judged(folder, graph, "one > other on probe.cloze", 2000).comparison
        assert comparison.examples == len(cells) - 1
        assert comparison.difference == pytest.approx(np.mean(points["one"]), abs=0.05)
        errors[design is None] = comparison.examples_error
    assert errors[False] == pytest.approx(np.std([0, 1, 2]) / math.sqrt(3), rel=0.1)
    assert errors[True] == pytest.approx(np.std([0, 1, 2]) / math.sqrt(len(cells)), rel=0.1)


def test_a_probe_that_does_not_apply_is_named_in_the_verdict(tmp_path: Path) -> None:
    graph = write(tmp_path, {"one": [[1.0]], "other": [[0.0]]})
    path = cell_dir(tmp_path, "probe-other-0") / result.RESULT
    path.write_text(json.dumps({"left_out": "the checkpoint has no language-model head"}), encoding="utf-8")
    verdict = judged(tmp_path, graph, "one > other on probe.cloze")
    assert verdict.comparison is None and "other is left out: the checkpoint has no" in verdict.sentence()


@pytest.mark.parametrize("studies", [40, pytest.param(200, marks=pytest.mark.long)])
def test_equal_models_are_seldom_told_apart(studies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models differ by their seeds, and by the items that each objective happens to favor."""
    for name in ("power", "seeds_needed"):
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    confirmed = 0
    for number in range(studies):
        rng, rows = np.random.default_rng(number), {}
        for name in ("one", "other"):
            easy = 0.7 + rng.normal(0, 0.2, 100)
            rates = [np.clip(easy + rng.normal(0, 0.04), 0, 1) for _ in range(6)]
            rows[name] = [(rng.random(100) < rate).astype(float).tolist() for rate in rates]
        folder = tmp_path / str(number)
        confirmed += judged(folder, write(folder, rows), "one > other on probe.cloze", 200).word == "confirmed"
    # The short form has enough studies to detect a rate of one in five.
    assert confirmed <= (0.05 * studies if studies > 100 else stats.binom.ppf(0.99, studies, 0.05)), confirmed
