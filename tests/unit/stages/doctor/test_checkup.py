"""`headstart doctor RUN` checks a finished or unfinished run from its folder."""

from __future__ import annotations

import json
import shutil

import pytest

import headstart
from headstart import verbs
from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.corpus.read.streamed import StreamedCorpus
from headstart.stages.doctor import checkup


@pytest.fixture
def run(way, tmp_path):
    """Return a copy of a finished pre-training run, to be modified."""
    return shutil.copytree(way / "pretrained", tmp_path / "run")


def rewrite(run, change) -> None:
    path = run / "logs" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def sentences(run, level=None) -> str:
    return "\n".join(f.sentence for f in checkup.run(run, verbs.recipe_of_run(run)) if level in (None, f.level))


def unfinished(run) -> None:
    (run / artifact.MANIFEST).unlink()


def with_losses(*losses: float, first_step: int = 1):
    """Return a change of the log that leaves evaluations with these losses only."""
    return lambda lines: [{"step": first_step + n, "validation/loss": loss} for n, loss in enumerate(losses)]


def test_a_short_finished_run_is_reported_as_not_learned(run):
    text = sentences(run)
    assert "The run is finished." in text and "that of a unigram model" in text
    assert "sentences of 8 tokens or more are repetitions" in text
    assert "has not learned more than token frequencies, because 6 steps are too few" in sentences(run, "problem")
    assert "normal in the first" not in text


def test_a_young_unfinished_run_may_still_learn(run):
    unfinished(run)
    assert "This is normal in the first 500 steps" in sentences(run, "warning")
    assert "token frequencies" not in sentences(run)


@pytest.mark.parametrize("losses", [(5.0, 9.0), (12.0, 12.0), (5.0, float("nan")), (5.0, float("inf"))])
@pytest.mark.parametrize("finished", [True, False])
def test_a_diverged_run_is_reported_as_diverged(run, losses, finished):
    """Above its best loss, above uniform guessing, or NaN; an unfinished run is judged after 500 steps."""
    rewrite(run, with_losses(*losses, first_step=1 if finished else 500))
    if not finished:
        unfinished(run)
    assert "The run has diverged. Lower `training.learning_rate`" in sentences(run, "problem")


def test_a_long_run_that_knows_token_frequencies_only_is_a_problem(run):
    rewrite(run, lambda lines: [line | {"step": line["step"] + 5000} for line in lines])
    assert "has not learned more than token frequencies. Try another" in sentences(run, "problem")


def test_a_run_below_the_unigram_loss_is_fine(run):
    rewrite(run, with_losses(5.0, 2.0))
    assert "nats beyond it" in sentences(run, "ok")


def test_an_unfinished_run_and_its_checkpoints(run, toy_checkpoint):
    unfinished(run)
    assert "The run is not finished." in sentences(run, "status")
    assert "no checkpoint yet" in sentences(run, "warning")
    toy_checkpoint(run, 3)
    assert "checkpoint of step 3 verifies." in sentences(run, "ok")
    (toy_checkpoint(run, 5) / "progress.json").write_text("{")
    assert "step 3 verifies; 1 newer ones do not" in sentences(run, "warning")


@pytest.fixture
def toy_checkpoint():
    def make(run, step):
        with artifact.staged(run / "checkpoints" / f"step-{step:09d}", "checkpoint", run="x") as staging:
            (staging / "progress.json").write_text("{}")
        return run / "checkpoints" / f"step-{step:09d}"

    return make


def test_repeated_text_is_reported(tmp_path, verses, recipe_of):
    (tmp_path / "text.txt").write_text("\n\n".join([v for v in verses[:300] if v] * 3), encoding="utf-8")
    headstart.pretrain(recipe_of["pretrain"](tmp_path), quiet=True)
    assert "deduplicate the text" in sentences(tmp_path / "pretrained", "warning")


def test_many_epochs_are_reported(run):
    rewrite(run, lambda lines: [line | ({"tokens": 1e7} if "tokens" in line else {}) for line in lines])
    assert "more than 4 epochs help little" in sentences(run, "warning")


def test_the_first_window_of_a_streamed_corpus_says_nothing_about_epochs(run, monkeypatch):
    rewrite(run, lambda lines: [line | ({"tokens": 1e7} if "tokens" in line else {}) for line in lines])
    recipe = verbs.recipe_of_run(run)
    shards = checkup._shards(run, recipe)
    monkeypatch.setattr(checkup, "_shards", lambda folder, recipe: shards)
    streamed = StreamedCorpus.model_validate({"files": recipe.corpus.files, "stream": True})
    found = checkup.run(run, recipe.model_copy(update={"corpus": streamed}))
    assert shards and not any("has read its text" in finding.sentence for finding in found)


def test_without_its_text_a_run_is_judged_by_its_curve_only(run):
    shutil.rmtree(run / "prepared")
    assert "unigram" not in sentences(run) and "The run is finished." in sentences(run)


def test_a_finding_about_fine_tuning_names_its_cell(way, tmp_path):
    run = shutil.copytree(way / "tuned", tmp_path / "run")
    (cell,) = (run / "logs").iterdir()
    line = {"step": 2, "loss": None, "samples": [], "rows": [{"index": 4}]}
    (cell / "quarantine.jsonl").write_text(json.dumps(line) + "\n")
    assert f"{cell.name}: 1 of 3 steps" in sentences(run, "warning")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="is not a run folder"):
        verbs.recipe_of_run(tmp_path)


@pytest.mark.parametrize(("finish", "status"), [(True, "The run is finished."), (False, "The run is not finished.")])
def test_the_status_comes_first_without_a_sign_and_then_the_problems(run, finish, status):
    rewrite(run, lambda lines: [line | {"step": line["step"] + 5000} for line in lines])
    if not finish:
        unfinished(run)
    first, *lines = checkup.render(checkup.run(run, verbs.recipe_of_run(run))).splitlines()
    signs = [line[:2] for line in lines]
    assert first == status
    assert signs == sorted(signs, key=["✗ ", "! ", "✓ "].index) and {"✗ ", "✓ "} <= set(signs)
