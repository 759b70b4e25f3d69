"""An output folder belongs to one recipe and one process at a time."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import time

import pytest
import yaml

from headstart.core import artifact, config
from headstart.core.errors import ArtifactError
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.run import _inputs
from headstart.stages.runs.folder import RunFolder


def recipe(output, **more) -> PretrainRecipe:
    raw = {"output": str(output), "corpus": {"files": ["a.txt"]}, "backbone": "encoder", "objective": "masked_lm"}
    return config.fill(PretrainRecipe, raw | more)


def claim(path, recipe, inputs=None, **more) -> RunFolder:
    """Enter and leave a run's folder, as a run does that stops at once."""
    with RunFolder(path, recipe, inputs, **more) as folder:
        return folder


def work(path) -> None:
    """Leave a trace of computation in the folder."""
    (path / "logs").mkdir()


def test_new_then_unfinished_then_finished(tmp_path):
    path = tmp_path / "deep" / "run"
    first = claim(path, recipe(path))
    assert first.status == "new"
    assert yaml.safe_load((path / "recipe.yaml").read_text()) == first.recipe == config.to_dict(recipe(path))
    work(path)
    assert claim(path, recipe(path)).status == "unfinished"
    with artifact.published(path, "checkpoint of pretrain"):
        pass
    again = claim(path, recipe(path))
    assert again.status == "finished" and again.fingerprint == first.fingerprint


def test_a_run_of_another_recipe_is_refused_and_unchanged(tmp_path):
    claim(tmp_path / "r", recipe(tmp_path / "r"))
    work(tmp_path / "r")
    before = (tmp_path / "r" / "recipe.yaml").read_text()
    with pytest.raises(ArtifactError) as caught:
        claim(tmp_path / "r", recipe(tmp_path / "r", seed=1, training={"learning_rate": 0.01}))
    message = str(caught.value)
    assert "seed" in message and "training.learning_rate" in message and "another output" in message
    assert (tmp_path / "r" / "recipe.yaml").read_text() == before


def test_a_recipe_that_failed_before_any_work_may_be_corrected(tmp_path):
    claim(tmp_path / "r", recipe(tmp_path / "r"))
    corrected = claim(tmp_path / "r", recipe(tmp_path / "r", seed=1))
    assert corrected.status == "new" and "seed: 1" in (tmp_path / "r" / "recipe.yaml").read_text()


def test_output_and_prices_do_not_change_the_identity(tmp_path):
    first = claim(tmp_path / "r", recipe(tmp_path / "r"))
    work(tmp_path / "r")
    (tmp_path / "r").rename(tmp_path / "moved")
    moved = claim(tmp_path / "moved", recipe(tmp_path / "moved", cost={"price_per_hour": 3}))
    assert moved.status == "unfinished" and moved.fingerprint == first.fingerprint


def test_settings_that_change_the_result_change_the_fingerprint(tmp_path):
    changes = [{}, {"seed": 1}, {"training": {"budget": "1 h"}}, {"objective": {"name": "masked_lm", "rate": 0.2}}]
    prints = [
        claim(tmp_path / str(i), recipe(tmp_path / str(i), **change)).fingerprint for i, change in enumerate(changes)
    ]
    assert len(set(prints)) == len(changes)


def test_a_default_written_out_is_the_same_recipe(tmp_path):
    claim(tmp_path / "r", recipe(tmp_path / "r"))
    work(tmp_path / "r")
    assert claim(tmp_path / "r", recipe(tmp_path / "r", seed=0, training={"seq_length": 128})).status == "unfinished"


def test_a_setting_newer_than_the_run_has_its_default(tmp_path):
    claim(tmp_path / "r", recipe(tmp_path / "r"))
    work(tmp_path / "r")
    path = tmp_path / "r" / "recipe.yaml"
    older = yaml.safe_load(path.read_text())
    del older["training"]["stop_after_bad_steps"]
    path.write_text(yaml.safe_dump(older))
    assert claim(tmp_path / "r", recipe(tmp_path / "r")).status == "unfinished"


def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ArtifactError, match="do not belong to a Headstart run"):
        claim(tmp_path, recipe(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_hidden_files_do_not_count(tmp_path):
    (tmp_path / ".gitkeep").write_text("")
    assert claim(tmp_path, recipe(tmp_path)).status == "new"


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "r").write_text("")
    with pytest.raises(ArtifactError, match="which is a file"):
        claim(tmp_path / "r", recipe(tmp_path / "r"))
    with pytest.raises(ArtifactError, match="cannot be created"):
        claim(tmp_path / "r" / "deeper", recipe(tmp_path / "r" / "deeper"))


@pytest.mark.parametrize("content", ["", "[1, 2]", "a: [", "\x00"])
def test_a_folder_with_an_unreadable_recipe_is_refused(tmp_path, content):
    (tmp_path / "recipe.yaml").write_text(content)
    work(tmp_path)
    with pytest.raises(ArtifactError):
        claim(tmp_path, recipe(tmp_path))


def test_a_changed_input_behind_the_same_path_is_refused(tmp_path):
    path = tmp_path / "r"
    claim(path, recipe(path), {"corpus": "aaaa"})
    (path / "checkpoints").mkdir()
    assert claim(path, recipe(path), {"corpus": "aaaa"}).status == "unfinished"
    with pytest.raises(ArtifactError, match="started with this recipe, but the content of corpus has changed"):
        claim(path, recipe(path), {"corpus": "bbbb"})


def test_a_teacher_and_a_ready_tokenizer_are_inputs(tmp_path):
    (tmp_path / "a.txt").write_text("In the beginning.", encoding="utf-8")
    corpus = {"corpus": {"files": [str(tmp_path / "a.txt")]}}
    assert set(_inputs(recipe(tmp_path / "r", **corpus))) == {"corpus"}, "runs without them keep their fingerprints"
    for name in ("teacher", "tokenizer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
    given = recipe(
        tmp_path / "r", objective={"name": "distillation", "teacher": str(tmp_path / "teacher")},
        tokenizer={"path": str(tmp_path / "tokenizer")}, **corpus,
    )  # fmt: skip
    claim(given.output, given, _inputs(given))
    work(given.output)
    assert claim(given.output, given, _inputs(given)).status == "unfinished"
    for name in ("teacher", "tokenizer"):
        (tmp_path / name / "config.json").write_text('{"other": 1}', encoding="utf-8")
        with pytest.raises(ArtifactError, match=f"the content of {name} has changed"):
            claim(given.output, given, _inputs(given))
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")


def test_inputs_are_part_of_the_fingerprint(tmp_path):
    one = claim(tmp_path / "a", recipe(tmp_path / "a"), {"corpus": "aaaa"})
    other = claim(tmp_path / "b", recipe(tmp_path / "b"), {"corpus": "bbbb"})
    assert one.fingerprint != other.fingerprint


_HOLDER = """
import sys
from pathlib import Path
from headstart.core.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["is killed", "exits"])
def test_two_processes_do_not_share_an_output_and_the_lock_ends_with_its_process(tmp_path, end):
    path = tmp_path / "r"
    claim(path, recipe(path))
    work(path)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    before = {entry: entry.stat().st_mtime_ns for entry in path.iterdir()}
    with pytest.raises(ArtifactError, match=rf"is being written by process {holder.pid} on .*choose another output"):
        claim(path, recipe(path))
    assert {entry: entry.stat().st_mtime_ns for entry in path.iterdir()} == before
    assert claim(path, recipe(path), writes=False).status == "unfinished", "the other ranks only read"
    if end == "is killed":
        holder.kill()
    holder.communicate()
    assert claim(path, recipe(path)).status == "unfinished"


def test_a_finished_output_is_not_written_to(tmp_path):
    path = tmp_path / "r"
    claim(path, recipe(path))
    with artifact.published(path, "checkpoint of pretrain"):
        pass
    time.sleep(0.01)
    before = path.stat().st_mtime_ns
    assert claim(path, recipe(path)).status == "finished" and path.stat().st_mtime_ns == before


def test_a_folder_with_inputs_but_no_recipe_is_new(tmp_path):
    path = tmp_path / "r"
    claim(path, recipe(path), {"corpus": "a"})
    (path / "recipe.yaml").unlink()
    assert claim(path, recipe(path), {"corpus": "a"}).status == "new"
    (path / "inputs.json").write_text('{"corpus": "of a corrected recipe"}')
    assert claim(path, recipe(path), {"corpus": "a"}).status == "new"


def test_the_lock_file_is_removed_at_the_end(tmp_path):
    path = tmp_path / "r"
    with RunFolder(path, recipe(path)):
        assert (path / ".lock").is_file()
    assert not (path / ".lock").exists()
    with pytest.raises(ZeroDivisionError), RunFolder(path, recipe(path)):
        raise ZeroDivisionError
    assert not (path / ".lock").exists()


def test_leftovers_of_a_process_killed_after_it_finished_are_removed(tmp_path):
    path = tmp_path / "r"
    claim(path, recipe(path))
    with artifact.published(path, "checkpoint of pretrain"):
        pass
    (path / ".lock").write_text("process 1 on a machine\n")
    (path / ".model.staging").mkdir()
    assert claim(path, recipe(path)).status == "finished"
    assert not [entry.name for entry in path.iterdir() if entry.name.startswith(".")]


def test_a_file_system_without_locks_is_accepted_with_a_warning(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    assert claim(tmp_path / "r", recipe(tmp_path / "r")).status == "new"
    assert "cannot be locked (No locks available)" in caplog.text
