"""An output folder belongs to one recipe and one process at a time."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import time

import pytest
import yaml

import headstart
from headstart.core import artifact, config
from headstart.core.errors import ArtifactError
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.stages.pretrain.run import inputs_of
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
    assert set(inputs_of(recipe(tmp_path / "r", **corpus))) == {"corpus"}, "runs without them keep their fingerprints"
    for name in ("teacher", "tokenizer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
    given = recipe(
        tmp_path / "r", objective={"name": "distillation", "teacher": str(tmp_path / "teacher")},
        tokenizer={"path": str(tmp_path / "tokenizer")}, **corpus,
    )  # fmt: skip
    claim(given.output, given, inputs_of(given))
    work(given.output)
    assert claim(given.output, given, inputs_of(given)).status == "unfinished"
    for name in ("teacher", "tokenizer"):
        (tmp_path / name / "config.json").write_text('{"other": 1}', encoding="utf-8")
        with pytest.raises(ArtifactError, match=f"the content of {name} has changed"):
            claim(given.output, given, inputs_of(given))
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


SECRET = "/s3cr3t/of-this-machine"
WITH_VARIABLES = """
output: {output}
corpus: {{files: ["${{HS_TEST_DATA}}/a.txt", "${{here}}/b.txt"]}}
tokenizer: {{vocab_size: "${{HS_TEST_SIZE:-500}}"}}
backbone: encoder
objective: masked_lm
"""


def with_variables(folder, monkeypatch, value=SECRET) -> PretrainRecipe:
    monkeypatch.setenv("HS_TEST_DATA", value)
    (folder / "recipes").mkdir(exist_ok=True)
    path = folder / "recipes" / "pretrain.yaml"
    path.write_text(WITH_VARIABLES.format(output=folder / "runs" / "x"))
    return config.load(path, PretrainRecipe)


def test_variables_are_written_as_they_were(tmp_path, monkeypatch):
    """The value of a variable may be a secret; the number is written, because a saved recipe must stay valid."""
    loaded = with_variables(tmp_path, monkeypatch)
    path = loaded.output
    folder = claim(path, loaded, {"corpus": "123"})
    with artifact.published(path, "checkpoint of pretrain", recipe=folder.recipe, note=f"{SECRET}/a.txt"):
        pass
    for file in path.iterdir():
        assert SECRET not in file.read_text() and str(tmp_path / "recipes") not in file.read_text(), file.name
    saved = yaml.safe_load((path / "recipe.yaml").read_text())
    assert saved["corpus"]["files"] == ["${HS_TEST_DATA}/a.txt", "${here}/./../../recipes/b.txt"]
    assert saved["tokenizer"]["vocab_size"] == 500
    facts = artifact.read_manifest(path)
    assert facts["recipe"] == saved and facts["note"] == "${HS_TEST_DATA}/a.txt"
    again = config.fill_saved(PretrainRecipe, facts["recipe"], str(path))
    assert again.corpus.files[0] == f"{SECRET}/a.txt"
    (tmp_path / "recipes" / "b.txt").write_text("x")
    assert (tmp_path / "recipes" / "b.txt").samefile(again.corpus.files[1])
    monkeypatch.delenv("HS_TEST_DATA")
    unset = config.fill_saved(PretrainRecipe, facts["recipe"], str(path))
    assert unset.corpus.files[0] == "${HS_TEST_DATA}/a.txt", "a run can be read where the variable is not set"


def test_another_value_of_a_variable_is_noticed(tmp_path, monkeypatch):
    loaded = with_variables(tmp_path, monkeypatch)
    first = claim(loaded.output, loaded, {"corpus": "123"})
    work(loaded.output)
    assert claim(loaded.output, with_variables(tmp_path, monkeypatch), {"corpus": "123"}).status == "unfinished"
    other = with_variables(tmp_path, monkeypatch, "/another/place")
    with pytest.raises(ArtifactError, match="variable HS_TEST_DATA has changed") as caught:
        claim(loaded.output, other, {"corpus": "123"})
    assert "another/place" not in str(caught.value) and SECRET not in str(caught.value)
    assert SECRET not in (loaded.output / "inputs.json").read_text()
    plain = config.fill(PretrainRecipe, yaml.safe_load(yaml.safe_dump(loaded.model_dump(mode="json"))))
    with RunFolder(tmp_path / "plain", plain, {"corpus": "123"}) as folder:
        assert folder.fingerprint == first.fingerprint, "hashes are computed over the expanded recipe"


def test_a_run_from_before_variables_were_kept_is_resumed(tmp_path, monkeypatch):
    """Its recipe has the values, and its inputs have no hashes of variables."""
    loaded = with_variables(tmp_path, monkeypatch)
    claim(loaded.output, loaded, {"corpus": "123"})
    (loaded.output / "recipe.yaml").write_text(yaml.safe_dump(loaded.model_dump(mode="json")))
    (loaded.output / "inputs.json").write_text('{"corpus": "123"}')
    work(loaded.output)
    assert claim(loaded.output, loaded, {"corpus": "123"}).status == "unfinished"
    with pytest.raises(ArtifactError, match=r"differs in corpus\.files"):
        claim(loaded.output, with_variables(tmp_path, monkeypatch, "/another/place"), {"corpus": "123"})


def test_a_dictionary_has_no_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("HS_TEST_DATA", SECRET)
    literal = recipe(tmp_path / "r", corpus={"files": ["${HS_TEST_DATA}/a.txt"]})
    assert literal.corpus.files == ["${HS_TEST_DATA}/a.txt"]
    claim(tmp_path / "r", literal)
    work(tmp_path / "r")
    assert claim(tmp_path / "r", literal).status == "unfinished"


def test_a_larger_budget_of_a_finished_run_says_how_to_continue(tmp_path):
    path = tmp_path / "r"
    claim(path, recipe(path, training={"budget": "6 steps"}))
    work(path)
    longer = recipe(path, training={"budget": "12 steps"})
    with pytest.raises(ArtifactError, match=r"differs in training\.budget"):
        claim(path, longer)
    with artifact.published(path, "checkpoint of pretrain"):
        pass
    with pytest.raises(ArtifactError) as caught:
        claim(path, longer)
    message = str(caught.value)
    assert "finished run with training.budget '6 steps', and the recipe now has '12 steps'" in message
    assert f"`backbone: {{family: checkpoint, path: {path}}}`" in message and "another output" in message
    for other in ({"budget": "3 steps"}, {"budget": "12 steps", "learning_rate": 0.01}):
        with pytest.raises(ArtifactError, match="contains a run of another recipe"):
            claim(path, recipe(path, training=other))


def test_the_way_to_continue_a_finished_run_works(way, recipe_of, tmp_path):
    """What the message says: the same recipe with a larger budget, another output and the checkpoint as backbone."""
    backbone = {"family": "checkpoint", "path": str(way / "pretrained")}
    longer = recipe_of["pretrain"](way, output=str(tmp_path / "longer"), backbone=backbone)
    longer["training"] = longer["training"] | {"budget": "8 steps"}
    assert headstart.pretrain(longer, quiet=True).manifest["progress"]["steps"] == 8


def test_a_larger_budget_of_a_finished_fine_tuning_names_its_model(way, recipe_of):
    longer = recipe_of["finetune"](way)
    longer["training"] = longer["training"] | {"budget": "9 steps"}
    with pytest.raises(ArtifactError, match=rf"set another output and `model: {way / 'tuned'}`"):
        headstart.finetune(longer, quiet=True)
