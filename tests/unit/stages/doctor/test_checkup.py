"""`headstart doctor RUN` tells a run's state, finished or not, from what lies in its folder."""

from __future__ import annotations

import json
import shutil

import pytest

import headstart
from headstart import verbs
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages.doctor import checkup


@pytest.fixture
def run(way, tmp_path):
    """A copy of a finished pre-training that may be spoilt."""
    return shutil.copytree(way / "pretrained", tmp_path / "run")


def rewrite(run, change) -> None:
    path = run / "logs" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def said(run, verdict=None) -> str:
    return "\n".join(r.sentence for r in checkup.run(run, verbs.recipe_of_run(run)) if verdict in (None, r.verdict))


def test_a_young_run_is_told_what_it_can_be_told(run):
    text = said(run)
    assert "It is finished." in text and "frequencies of tokens alone give" in text and "it is early" in text
    assert "sentences of 8 tokens or more have stood in the text before" in text


def test_only_frequencies_learnt_late_in_a_run_is_a_fault(run):
    rewrite(run, lambda lines: [line | {"step": line["step"] + 5000} for line in lines])
    assert "nothing else has been learnt" in said(run, "bad")


def test_an_unfinished_run_and_its_checkpoints(run, toy_checkpoint):
    (run / artifact.MANIFEST).unlink()
    assert "not finished" in said(run) and "no checkpoint yet" in said(run, "look")
    toy_checkpoint(run, 3)
    assert "checkpoint of step 3 verifies." in said(run, "good")
    (toy_checkpoint(run, 5) / "progress.json").write_text("{")
    assert "step 3 verifies; 1 newer ones are torn" in said(run, "look")


@pytest.fixture
def toy_checkpoint():
    def make(run, step):
        with artifact.staged(run / "checkpoints" / f"step-{step:09d}", "checkpoint", run="x") as staging:
            (staging / "progress.json").write_text("{}")
        return run / "checkpoints" / f"step-{step:09d}"

    return make


def test_text_that_stands_there_twice_is_noticed(tmp_path, verses, recipe_of):
    (tmp_path / "text.txt").write_text("\n\n".join([v for v in verses[:300] if v] * 3), encoding="utf-8")
    headstart.pretrain(recipe_of["pretrain"](tmp_path), quiet=True)
    assert "deduplicate it" in said(tmp_path / "pretrained", "look")


def test_many_passes_over_the_same_text_are_noticed(run):
    rewrite(run, lambda lines: [line | ({"tokens": 1e7} if "tokens" in line else {}) for line in lines])
    assert "passes teach little" in said(run, "look")


def test_without_its_text_a_run_is_judged_by_its_curve(run):
    shutil.rmtree(run / "prepared")
    assert "frequencies" not in said(run) and "It is finished." in said(run)


def test_a_fine_tuning_names_the_cell_that_is_amiss(way, tmp_path):
    run = shutil.copytree(way / "tuned", tmp_path / "run")
    (cell,) = (run / "logs").iterdir()
    line = {"step": 2, "loss": None, "samples": [], "rows": [{"index": 4}]}
    (cell / "quarantine.jsonl").write_text(json.dumps(line) + "\n")
    assert f"{cell.name}: 1 of 3 steps" in said(run)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="holds no run"):
        verbs.recipe_of_run(tmp_path)


def test_the_grave_comes_first(run):
    rewrite(run, lambda lines: [line | {"step": line["step"] + 5000} for line in lines])
    signs = [line[0] for line in checkup.render(checkup.run(run, verbs.recipe_of_run(run))).splitlines()]
    assert signs == sorted(signs, key="✗!✓".index) and {"✗", "✓"} <= set(signs)
