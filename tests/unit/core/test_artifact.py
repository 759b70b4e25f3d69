"""An artifact is complete or absent, whatever happens while it is written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.core import artifact
from headstart.core.errors import ArtifactError, ResourceError
from headstart.core.lock import FolderLock


def make(target: Path, content: str = "weights", hashed=None, **facts) -> Path:
    with artifact.staged(target, "thing", **facts) as staging:
        staging.hashed |= hashed or {}
        (staging / "a.bin").write_text(content)
        (staging / "deep" / "er").mkdir(parents=True)
        (staging / "deep" / "er" / "b.txt").write_text("b" * 10_000)
    return target


def hidden(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_a_written_artifact_verifies(tmp_path):
    target = make(tmp_path / "new" / "x", seed=3, parents={"m": "abc"})
    manifest = artifact.verify(target, "thing")
    assert manifest["seed"] == 3 and manifest["parents"] == {"m": "abc"} and manifest["kind"] == "thing"
    assert set(manifest["files"]) == {"a.bin", "deep/er/b.txt"}
    assert {"python", "torch", "transformers"} <= set(manifest["versions"])
    assert artifact.is_complete(target) and not hidden(target.parent)


def test_facts_may_be_added_until_the_block_ends(tmp_path):
    with artifact.staged(tmp_path / "x", "thing", seed=1) as staging:
        (staging / "a.bin").write_text("w")
        staging.facts["metrics"] = {"accuracy": 0.5}
        assert os.fspath(staging) == str(staging) == str(staging.path) and staging / "a.bin" == staging.path / "a.bin"
    manifest = artifact.verify(tmp_path / "x")
    assert manifest["seed"] == 1 and manifest["metrics"] == {"accuracy": 0.5}


def test_files_get_the_permissions_of_the_umask(tmp_path):
    """safetensors writes files that only their owner can read."""
    with artifact.staged(tmp_path / "x", "thing") as staging:
        (staging / "private").write_text("w")
        (staging / "private").chmod(0o600)
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "x" / "private").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_system_that_cannot_flush_folders_is_accepted(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuses_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuses_folders)
    artifact.verify(make(tmp_path / "x"))


def test_a_file_hashed_by_its_writer_is_not_hashed_again(tmp_path):
    other = tmp_path / "other"
    other.write_text("WEIGHTS")
    target = make(tmp_path / "x", hashed={"a.bin": artifact.describe(other)})
    assert artifact.read_manifest(target)["files"]["a.bin"] == artifact.describe(other)
    with pytest.raises(ArtifactError, match="its hash differs"):
        artifact.verify(target)
    artifact.verify(target, trusted=["a.bin"])
    with (target / "a.bin").open("a") as file:
        file.write("!")
    with pytest.raises(ArtifactError, match="was modified after it was written"):
        artifact.verify(target, trusted=["a.bin"])


def test_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), artifact.staged(tmp_path / "x", "thing") as staging:
        (staging / "a").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_an_exception_leaves_the_old_target_unchanged(tmp_path):
    target = make(tmp_path / "x", "old")
    before = artifact.identity(target)
    with pytest.raises(KeyboardInterrupt), artifact.staged(target, "thing") as staging:
        (staging / "a.bin").write_text("new")
        raise KeyboardInterrupt
    assert artifact.identity(target) == before and artifact.verify(target)
    assert not hidden(tmp_path)


def test_a_new_target_replaces_all_files_of_the_old_one(tmp_path):
    target = make(tmp_path / "x", "old")
    with artifact.staged(target, "thing") as staging:
        (staging / "other").write_text("new")
    assert {p.name for p in target.iterdir()} == {"other", artifact.MANIFEST}
    assert not hidden(tmp_path)


_KILLED = """
import os, pathlib, sys
from headstart.core import artifact
target, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
def wait(*_):
    print("ready", flush=True)
    sys.stdin.read()
if moment == "sealing":
    artifact.flush = wait
elif moment == "renaming":
    os.rename = wait
elif moment == "between renames":
    rename = os.rename
    os.rename = lambda a, b: wait() if pathlib.Path(b) == target else rename(a, b)
with artifact.staged(target, "thing") as staging:
    (staging / "a.bin").write_text("new")
    if moment == "writing":
        wait()
"""


def kill_while(moment: str, target: Path) -> None:
    """Run a process that writes the target, and kill it at that moment."""
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(target), moment], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize("moment", ["writing", "sealing", "renaming"])
def test_a_killed_writer_leaves_no_target(tmp_path, moment):
    target = tmp_path / "x"
    kill_while(moment, target)
    assert not target.exists() and hidden(tmp_path), "the kill came too late to show anything"
    make(target)
    artifact.verify(target)
    assert not hidden(tmp_path), "the next writer clears what the killed one left"


@pytest.mark.parametrize("moment", ["writing", "sealing", "renaming"])
def test_a_killed_writer_does_not_touch_the_old_target(tmp_path, moment):
    target = make(tmp_path / "x", "old")
    kill_while(moment, target)
    assert (target / "a.bin").read_text() == "old"
    artifact.verify(target)
    make(target, "new")
    assert (target / "a.bin").read_text() == "new"
    assert not hidden(tmp_path)


_MAKER = """
import sys, pathlib
from headstart.core import artifact
def write(staging):
    (staging / "a.bin").write_text("first")
    print("writing", flush=True)
    sys.stdin.readline()
artifact.make_once(pathlib.Path(sys.argv[1]), "thing", write)
"""


@pytest.mark.parametrize("fate", ["finishes", "is killed"])
def test_of_two_processes_one_creates_the_folder_and_the_other_waits(tmp_path, fate):
    target, created = tmp_path / "shared" / "x", []
    command = [sys.executable, "-c", _MAKER, str(target)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "writing\n"
    write = threading.Thread(
        target=lambda: created.append(
            artifact.make_once(target, "thing", lambda staging: (staging / "a.bin").write_text("second"))
        )
    )
    write.start()
    write.join(0.3)
    assert write.is_alive() and (target.parent / ".x.staging" / "a.bin").read_text() == "first"
    if fate == "is killed":
        first.kill()
    first.communicate("continue\n")
    write.join(60)
    assert created == [fate == "is killed"]
    assert (target / "a.bin").read_text() == ("second" if created[0] else "first")
    assert artifact.verify(target) and not hidden(target.parent)


def test_a_writer_killed_between_its_two_renames_does_not_lose_the_old_target(tmp_path):
    """The target is absent for a moment, never incomplete; the next writer restores the old one first."""
    target = make(tmp_path / "x", "old")
    kill_while("between renames", target)
    assert not target.exists()
    with pytest.raises(ZeroDivisionError), artifact.staged(target, "thing"):
        raise ZeroDivisionError
    artifact.verify(target)
    assert (target / "a.bin").read_text() == "old" and not hidden(tmp_path)


def test_a_stale_staging_folder_is_cleared(tmp_path):
    stale = tmp_path / ".x.staging"
    stale.mkdir()
    (stale / "rubbish").write_text("from a killed run")
    make(tmp_path / "x")
    assert not (tmp_path / "x" / "rubbish").exists() and not stale.exists()


@pytest.mark.parametrize("damage", ["bit", "truncation", "missing", "longer", "empty manifest", "cut manifest"])
def test_damage_is_detected(tmp_path, damage):
    target = make(tmp_path / "x")
    victim, manifest = target / "deep" / "er" / "b.txt", target / artifact.MANIFEST
    content = victim.read_bytes()
    if damage == "bit":
        victim.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "truncation":
        victim.write_bytes(content[:-1])
    elif damage == "longer":
        victim.write_bytes(content + b"x")
    elif damage == "missing":
        victim.unlink()
    else:
        manifest.write_bytes(b"" if damage == "empty manifest" else manifest.read_bytes()[:-20])
    with pytest.raises(ArtifactError):
        artifact.verify(target)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_flipped_bit_in_the_manifest_raises_no_other_error(tmp_path, where, bit):
    """It raises an ArtifactError, or it changed nothing that the files depend on."""
    target = tmp_path / "x"
    if not target.exists():
        make(target)
    manifest = target / artifact.MANIFEST
    whole = manifest.read_bytes()
    i = int(where * len(whole))
    manifest.write_bytes(whole[:i] + bytes([whole[i] ^ (1 << bit)]) + whole[i + 1 :])
    try:
        artifact.verify(target, "thing")
    except ArtifactError:
        pass
    finally:
        manifest.write_bytes(whole)


@pytest.mark.parametrize("files", ["[]", '{"a": 3}', '{"a": {}}', '{"a": {"bytes": 1}}', "null"])
def test_a_manifest_with_another_structure_is_refused(tmp_path, files):
    (tmp_path / "a").write_text("x")
    (tmp_path / artifact.MANIFEST).write_text(f'{{"kind": "thing", "files": {files}}}')
    with pytest.raises(ArtifactError):
        artifact.verify(tmp_path)


def test_another_kind_and_a_missing_manifest_are_errors(tmp_path):
    with pytest.raises(ArtifactError, match=r"no headstart\.json.*Finish the run"):
        artifact.verify(tmp_path)
    with pytest.raises(ArtifactError, match="is a thing; a checkpoint is needed"):
        artifact.verify(make(tmp_path / "x"), "checkpoint")


def test_too_little_space_is_an_error_before_writing(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    refusal = pytest.raises(ResourceError, match=r"MB and the disk has .* MB free.*Free some space")
    with refusal, artifact.staged(tmp_path / "deep" / "x", "thing", size_hint=free * 2):
        pytest.fail("nothing should be started")
    assert list(tmp_path.iterdir()) == []
    artifact.require_space(tmp_path / "not" / "there" / "yet", 1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("write", [artifact.staged, artifact.published])
def test_a_disk_that_fills_up_is_named_in_the_error(tmp_path, code, write):
    with (
        pytest.raises(ResourceError, match=r"disk filled up|quota of this user is used up"),
        write(tmp_path / "x", "thing"),
    ):
        raise OSError(code, os.strerror(code))
    assert not artifact.is_complete(tmp_path / "x")


def test_other_errors_of_the_disk_are_not_translated(tmp_path):
    with pytest.raises(PermissionError), artifact.staged(tmp_path / "x", "thing"):
        raise PermissionError(errno.EACCES, "no")


def test_publishing_keeps_other_files_and_writes_the_manifest_last(tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: 0\n")
    with artifact.published(tmp_path, "model", seed=1) as staging:
        (staging / "model.bin").write_text("w")
        (staging / "sub").mkdir()
        (staging / "sub" / "x").write_text("x")
        assert not (tmp_path / "model.bin").exists()
    manifest = artifact.verify(tmp_path, "model")
    assert set(manifest["files"]) == {"model.bin", "sub/x"}, "the run's own files are not part of the artifact"
    assert (tmp_path / "recipe.yaml").exists() and not hidden(tmp_path)


def test_publishing_that_fails_is_incomplete_and_can_be_repeated(tmp_path, monkeypatch):
    moved = []
    replace = os.replace

    def failing(source, destination):
        moved.append(Path(destination).name)
        if len(moved) == 4:
            raise OSError(errno.EIO, "the disk went away")
        replace(source, destination)

    def publish():
        with artifact.published(tmp_path, "model") as staging:
            for name in ("a", "b", "c"):
                (staging / name).mkdir()
                (staging / name / "f").write_text(name)

    with monkeypatch.context() as patch:
        patch.setattr(artifact.os, "replace", failing)
        with pytest.raises(OSError, match="went away"):
            publish()
    assert moved[-1] == artifact.MANIFEST and not artifact.is_complete(tmp_path)
    publish()
    artifact.verify(tmp_path, "model")


def test_identity_depends_on_the_content_alone(tmp_path):
    a, b = make(tmp_path / "a"), make(tmp_path / "b", seed=9)
    c = make(tmp_path / "c", "other")
    assert artifact.identity(a) == artifact.identity(b) != artifact.identity(c)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text("{}")
    before = artifact.identity(plain)
    (plain / "config.json").write_text("{ }")
    changed = artifact.identity(plain)
    (plain / ".git").mkdir()
    (plain / ".git" / "HEAD").write_text("main")
    assert artifact.identity(plain) == changed != before
    (plain / "1_Pooling").mkdir()
    (plain / "1_Pooling" / "config.json").write_text("{}")
    assert artifact.identity(plain) != changed


def test_the_manifest_is_json_with_unescaped_letters(tmp_path):
    make(tmp_path / "x", note="größer")
    text = (tmp_path / "x" / artifact.MANIFEST).read_text(encoding="utf-8")
    assert "größer" in text and json.loads(text)["format"] == artifact.FORMAT
    assert abs(time.time() - (tmp_path / "x" / artifact.MANIFEST).stat().st_mtime) < 60


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_of_the_manifest_is_detected(tmp_path, index, bit):
    target = tmp_path / "x"
    if not target.exists():
        make(target, run="3f", numbers={1: (0.1, float("nan")), 10: "é"})
    path = target / artifact.MANIFEST
    content = path.read_bytes()
    artifact.verify(target, "thing")
    damaged = bytearray(content)
    damaged[index % len(damaged)] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        with pytest.raises(ArtifactError):
            artifact.verify(target, "thing")
    finally:
        path.write_bytes(content)


def test_folders_of_format_1_without_a_seal_are_read(tmp_path):
    path = make(tmp_path / "x") / artifact.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["seal"]
    path.write_text(json.dumps(manifest | {"format": 1}))
    assert artifact.verify(tmp_path / "x", "thing")
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="its seal differs"):
        artifact.verify(tmp_path / "x", "thing")


def test_what_a_killed_process_left_beside_a_complete_artifact_is_removed(tmp_path):
    target = tmp_path / "x"

    def write(staging):
        (staging / "a.bin").write_text("a")

    assert artifact.make_once(target, "thing", write)
    (tmp_path / ".x.lock").write_text("process 1 on another machine\n")
    (tmp_path / ".x.staging").mkdir()
    assert not artifact.make_once(target, "thing", write)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("moved", [True, False])
def test_the_folder_of_a_run_that_was_moved_or_deleted_is_not_created_again(tmp_path, moved):
    folder = tmp_path / "run"
    with FolderLock(folder):
        with artifact.staged(folder / "checkpoints" / "step-1", "thing"):
            pass
        folder.rename(tmp_path / "elsewhere") if moved else shutil.rmtree(folder)
        refusal = pytest.raises(ArtifactError, match="no longer exists where it was")
        with refusal, artifact.staged(folder / "checkpoints" / "step-2", "thing"):
            pytest.fail("nothing should be started")
        assert not folder.exists()
