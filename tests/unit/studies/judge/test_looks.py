"""Claims that are tested while a study grows: shares of the level, verdicts that stay, and which cells come next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstart.core import artifact, config
from headstart.core.errors import RecipeError
from headstart.studies.definition import Study
from headstart.studies.graph import Cell, Graph, Node, cell_dir
from headstart.studies.grid import System
from headstart.studies.judge import looks
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.results import CellScore, MissingCell, Results
from headstart.studies.judge.verdicts import judge
from headstart.studies.run import next_cells

SYSTEMS = ("one", "other", "third")
EXAMPLES = 300


def study_of(seeds: int, at: list[int], *contrasts: str, output: str = "out") -> Study:
    sections = {
        "question": "?", "output": output, "base": {"finetune": {}}, "compare": ["start"], "reference": "other",
        "axes": {"start": {name: {"finetune.model": name} for name in SYSTEMS}}, "baselines": [], "seeds": seeds,
        "looks": at, "claims": [{"statement": text, "contrast": text} for text in contrasts or ["one > other"]],
    }  # fmt: skip
    return config.fill(Study, sections)


def runs_of(rng: np.random.Generator, rate: float, seeds: int, name: str, sd: float = 0.01) -> dict[int, CellScore]:
    runs = {}
    for seed in range(seeds):
        right = (rng.random(EXAMPLES) < rate + rng.normal(0, sd)).astype(int).tolist()
        score = {"accuracy": float(np.mean(right))}
        runs[seed] = CellScore(f"{name}-{seed}", "accuracy", score, [1] * EXAMPLES, right)
    return runs


def results_of(rates: dict[str, float], seeds: int, seed: int = 0, sd: float = 0.01) -> Results:
    rng = np.random.default_rng(seed)
    return Results({(System((name,)), ()): runs_of(rng, rate, seeds, name, sd) for name, rate in rates.items()})


def test_the_shares_of_the_looks_add_up_to_five_percent() -> None:
    shares = looks.of(study_of(20, [6, 8, 12]))
    assert [look.seeds for look in shares] == [6, 8, 12, 20]
    assert sum(look.level for look in shares) == pytest.approx(0.05) and all(look.level > 0 for look in shares)
    assert looks.of(study_of(5, [])) == [looks.Look(5, 0.05)]


def test_later_seeds_do_not_change_a_verdict() -> None:
    first, reversed_ = results_of({"one": 0.8, "other": 0.6}, 8), results_of({"one": 0.3, "other": 0.9}, 16, seed=1)
    for key, runs in reversed_.scores.items():
        first.scores[key].update({seed: cell for seed, cell in runs.items() if seed >= 8})
    (verdict,) = judge(study_of(16, [8]), first, Resamples(300))
    assert (verdict.word, verdict.seeds, verdict.comparison.units) == ("confirmed", 8, 8)
    assert "Tested after 8 of 16 seeds at p ≤ 0.031." in verdict.sentence()
    assert judge(study_of(16, []), first, Resamples(300))[0].word != "confirmed"


def test_a_look_waits_for_its_cells_but_not_for_failed_ones() -> None:
    results = results_of({"one": 0.8, "other": 0.6}, 7)
    waiting = MissingCell(Cell(System(("one",)), (), 7, "x"), None)
    study = study_of(16, [8])
    (verdict,) = judge(study, replace(results, missing=[waiting]), Resamples(300))
    assert verdict.word == "undecided" and verdict.p_value is None
    assert "It is tested after 8 of 16 seeds" in verdict.sentence() and "can never reach" not in verdict.sentence()
    failed = replace(results, missing=[MissingCell(waiting.cell, "out of memory")])
    assert judge(study, failed, Resamples(300))[0].word == "confirmed"


def test_an_undecided_claim_is_tested_again_with_the_rest_of_the_level() -> None:
    results = results_of({"one": 0.66, "other": 0.64}, 16)
    (verdict,) = judge(study_of(16, [8]), results, Resamples(300))
    assert verdict.seeds == 16 and verdict.level == pytest.approx(0.05 - 0.05 * np.log(1 + (np.e - 1) / 2))


@pytest.mark.parametrize("at", [[1], [4, 4], [6, 4], [8], [9]])
def test_looks_must_increase_and_end_before_the_last_seed(at: list[int]) -> None:
    with pytest.raises(RecipeError, match="increasing numbers of seeds from 2 to 7"):
        study_of(8, at)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("studies", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_looking_three_times_confirms_no_more_than_one_in_twenty(studies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("power", "seeds_needed"):  # they do not change the verdict, and take most of the time
        monkeypatch.setattr(f"headstart.studies.judge.verdicts.{name}", lambda *_, **__: None)
    study = study_of(12, [6, 9])
    found = [judge(study, results_of({"one": 0.7, "other": 0.7}, 12, number, sd=0.05), Resamples(200))[0].word
             for number in range(studies)]  # fmt: skip
    assert found.count("confirmed") / studies <= 0.05, found.count("confirmed")


def graph_with(output: Path, finished: int) -> Graph:
    """Three systems with sixteen seeds; the cells of the first seeds are finished."""
    graph = Graph()
    for name in SYSTEMS:
        for seed in range(16):
            node = graph.add(Node("finetune", {}, id=f"{name}-{seed:02d}"))
            graph.cells.append(Cell(System((name,)), (), seed, node.id))
            if seed < finished:
                with artifact.staged(cell_dir(output, node.id), "cell") as staging:
                    (staging / "result.json").write_text('{"cost": {"seconds": 1.0}}')
    return graph


def test_the_next_cells_are_those_of_undecided_claims_the_likeliest_first(tmp_path: Path) -> None:
    study = study_of(16, [12], "one > other", "third > other", "third > one", output=str(tmp_path))
    assert len(next_cells.select(study, graph_with(tmp_path, 0), 12, []).nodes) == 36, "all cells of twelve seeds"
    graph = graph_with(tmp_path, 12)
    verdicts = judge(study, results_of({"one": 0.9, "other": 0.6, "third": 0.62}, 12), Resamples(300))
    assert [verdict.word for verdict in verdicts] == ["confirmed", "undecided", "refuted"]
    todo = [name for name in next_cells.select(study, graph, 16, verdicts).nodes if int(name[-2:]) >= 12]
    assert todo == [f"{name}-{seed}" for name in ("other", "third") for seed in range(12, 16)]
    clear = [verdicts[0], verdicts[1], replace(verdicts[2], word="undecided")]
    assert next(iter(next_cells.select(study, graph, 16, clear).nodes)) == "one-00", "the larger difference is first"
