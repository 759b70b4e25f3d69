"""An output folder belongs to one recipe, and says how far its run has come."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import yaml

from headstart.core import artifact, config
from headstart.core.errors import ArtifactError
from headstart.stages.pretrain.run import _inputs
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.runs.folder import RunFolder


def recipe(output, **more) -> PretrainRecipe:
    raw = {"output": str(output), "corpus": {"files": ["a.txt"]}, "backbone": "encoder", "objective": "masked_lm"}
    return config.fill(PretrainRecipe, raw | more)


def begun(path) -> None:
    """Leave what a run leaves as soon as it works."""
    (path / "logs").mkdir()


def test_new_then_unfinished_then_finished(tmp_path):
    path = tmp_path / "deep" / "run"
    first = RunFolder(path, recipe(path))
    assert first.status == "new"
    assert yaml.safe_load((path / "recipe.yaml").read_text()) == first.recipe == config.to_dict(recipe(path))
    begun(path)
    assert RunFolder(path, recipe(path)).status == "unfinished"
    with artifact.published(path, "checkpoint of pretrain"):
        pass
    again = RunFolder(path, recipe(path))
    assert again.status == "finished" and again.fingerprint == first.fingerprint


def test_a_run_of_another_recipe_is_refused_and_left_alone(tmp_path):
    RunFolder(tmp_path / "r", recipe(tmp_path / "r"))
    begun(tmp_path / "r")
    before = (tmp_path / "r" / "recipe.yaml").read_text()
    with pytest.raises(ArtifactError) as caught:
        RunFolder(tmp_path / "r", recipe(tmp_path / "r", seed=1, training={"learning_rate": 0.01}))
    message = str(caught.value)
    assert "seed" in message and "training.learning_rate" in message and "another output" in message
    assert (tmp_path / "r" / "recipe.yaml").read_text() == before


def test_a_recipe_that_failed_before_it_worked_may_be_mended(tmp_path):
    RunFolder(tmp_path / "r", recipe(tmp_path / "r"))
    mended = RunFolder(tmp_path / "r", recipe(tmp_path / "r", seed=1))
    assert mended.status == "new" and "seed: 1" in (tmp_path / "r" / "recipe.yaml").read_text()


def test_place_and_price_make_no_other_run(tmp_path):
    first = RunFolder(tmp_path / "r", recipe(tmp_path / "r"))
    begun(tmp_path / "r")
    (tmp_path / "r").rename(tmp_path / "moved")
    moved = RunFolder(tmp_path / "moved", recipe(tmp_path / "moved", cost={"price_per_hour": 3}))
    assert moved.status == "unfinished" and moved.fingerprint == first.fingerprint


def test_what_changes_the_result_changes_the_fingerprint(tmp_path):
    changes = [{}, {"seed": 1}, {"training": {"budget": "1 h"}}, {"objective": {"name": "masked_lm", "rate": 0.2}}]
    prints = [
        RunFolder(tmp_path / str(i), recipe(tmp_path / str(i), **change)).fingerprint
        for i, change in enumerate(changes)
    ]
    assert len(set(prints)) == len(changes)


def test_a_default_written_out_is_the_same_recipe(tmp_path):
    RunFolder(tmp_path / "r", recipe(tmp_path / "r"))
    begun(tmp_path / "r")
    assert (
        RunFolder(tmp_path / "r", recipe(tmp_path / "r", seed=0, training={"seq_length": 128})).status == "unfinished"
    )


def test_a_setting_that_is_newer_than_the_run_counts_as_its_default(tmp_path):
    RunFolder(tmp_path / "r", recipe(tmp_path / "r"))
    begun(tmp_path / "r")
    path = tmp_path / "r" / "recipe.yaml"
    older = yaml.safe_load(path.read_text())
    del older["training"]["stop_after_bad_steps"]
    path.write_text(yaml.safe_dump(older))
    assert RunFolder(tmp_path / "r", recipe(tmp_path / "r")).status == "unfinished"


def test_foreign_files_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ArtifactError, match="no run of Headstart"):
        RunFolder(tmp_path, recipe(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_hidden_files_do_not_count(tmp_path):
    (tmp_path / ".gitkeep").write_text("")
    assert RunFolder(tmp_path, recipe(tmp_path)).status == "new"


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "r").write_text("")
    with pytest.raises(ArtifactError, match="which is a file"):
        RunFolder(tmp_path / "r", recipe(tmp_path / "r"))
    with pytest.raises(ArtifactError, match="cannot be made"):
        RunFolder(tmp_path / "r" / "deeper", recipe(tmp_path / "r" / "deeper"))


@pytest.mark.parametrize("content", ["", "[1, 2]", "a: [", "\x00"])
def test_a_recipe_that_cannot_be_read_is_not_taken_over(tmp_path, content):
    (tmp_path / "recipe.yaml").write_text(content)
    begun(tmp_path)
    with pytest.raises(ArtifactError):
        RunFolder(tmp_path, recipe(tmp_path))


def test_a_changed_input_behind_the_same_path_is_refused(tmp_path):
    path = tmp_path / "r"
    RunFolder(path, recipe(path), {"corpus": "aaaa"})
    (path / "checkpoints").mkdir()
    assert RunFolder(path, recipe(path), {"corpus": "aaaa"}).status == "unfinished"
    with pytest.raises(ArtifactError, match="begun by this recipe with another corpus"):
        RunFolder(path, recipe(path), {"corpus": "bbbb"})


def test_a_teacher_and_a_ready_tokenizer_are_inputs(tmp_path):
    (tmp_path / "a.txt").write_text("In the beginning.", encoding="utf-8")
    corpus = {"corpus": {"files": [str(tmp_path / "a.txt")]}}
    assert set(_inputs(recipe(tmp_path / "r", **corpus))) == {"corpus"}, "runs without them are named as ever"
    for name in ("teacher", "tokenizer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
    given = recipe(
        tmp_path / "r", objective={"name": "distillation", "teacher": str(tmp_path / "teacher")},
        tokenizer={"path": str(tmp_path / "tokenizer")}, **corpus,
    )  # fmt: skip
    RunFolder(given.output, given, _inputs(given))
    begun(given.output)
    assert RunFolder(given.output, given, _inputs(given)).status == "unfinished"
    for name in ("teacher", "tokenizer"):
        (tmp_path / name / "config.json").write_text('{"other": 1}', encoding="utf-8")
        with pytest.raises(ArtifactError, match=f"with another {name}"):
            RunFolder(given.output, given, _inputs(given))
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")


def test_inputs_are_part_of_the_fingerprint(tmp_path):
    one = RunFolder(tmp_path / "a", recipe(tmp_path / "a"), {"corpus": "aaaa"})
    other = RunFolder(tmp_path / "b", recipe(tmp_path / "b"), {"corpus": "bbbb"})
    assert one.fingerprint != other.fingerprint


_HOLDER = """
import sys
from pathlib import Path
from headstart.core.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("death", ["kill", "leave"])
def test_two_processes_do_not_share_an_output_and_the_dead_hold_nothing(tmp_path, death):
    path = tmp_path / "r"
    RunFolder(path, recipe(path))
    begun(path)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    before = {entry: entry.stat().st_mtime_ns for entry in path.iterdir()}
    with pytest.raises(ArtifactError, match=rf"is being written by process {holder.pid} on .*choose another output"):
        RunFolder(path, recipe(path))
    assert {entry: entry.stat().st_mtime_ns for entry in path.iterdir()} == before
    assert RunFolder(path, recipe(path), writes=False).status == "unfinished", "a rank beside the writer looks only"
    if death == "kill":
        holder.kill()
    holder.communicate()
    assert RunFolder(path, recipe(path)).status == "unfinished"


def test_a_finished_output_is_only_looked_at(tmp_path):
    path = tmp_path / "r"
    RunFolder(path, recipe(path))
    with artifact.published(path, "checkpoint of pretrain"):
        pass
    time.sleep(0.01)
    before = path.stat().st_mtime_ns
    assert RunFolder(path, recipe(path)).status == "finished" and path.stat().st_mtime_ns == before


def test_killed_between_the_two_files_of_a_claim_a_folder_is_still_new(tmp_path):
    path = tmp_path / "r"
    RunFolder(path, recipe(path), {"corpus": "a"})
    (path / "recipe.yaml").unlink()
    assert RunFolder(path, recipe(path), {"corpus": "a"}).status == "new"
    (path / "inputs.json").write_text('{"corpus": "of a mended recipe"}')
    assert RunFolder(path, recipe(path), {"corpus": "a"}).status == "new"
