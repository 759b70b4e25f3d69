"""A folder lock belongs to one process, ends with it, and leaves no file behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headstart.core.errors import ArtifactError
from headstart.core.lock import LOCK, FolderLock, lock_beside

_HOLDER = """
import sys
from pathlib import Path
from headstart.core.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path` until it reads a line."""
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_lock_file_exists_only_while_the_lock_is_held(tmp_path):
    with FolderLock(tmp_path / "new") as lock:
        assert lock.path.read_text().startswith("process ")
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(ZeroDivisionError), FolderLock(tmp_path):
        raise ZeroDivisionError
    assert not (tmp_path / LOCK).exists()
    lock.release()


def test_another_process_is_refused_until_the_lock_is_released(tmp_path, holder):
    with pytest.raises(ArtifactError, match=f"is being written by process {holder.pid} on"), FolderLock(tmp_path):
        pytest.fail("two processes hold the lock")
    assert (tmp_path / LOCK).is_file(), "a refused process leaves the lock of the other alone"
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "released\n"
    with FolderLock(tmp_path):
        pass


def test_a_killed_process_holds_no_lock(tmp_path, holder):
    holder.kill()
    holder.wait()
    with FolderLock(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_release_does_not_remove_the_lock_file_of_another_process(tmp_path):
    folder = tmp_path / "x"
    with FolderLock(folder) as lock:
        lock.path.unlink()
        lock.path.write_text("of another process")
    assert lock.path.read_text() == "of another process"


def test_a_folder_that_does_not_exist_is_locked_beside_it(tmp_path):
    with lock_beside(tmp_path / "deep" / "x") as lock:
        assert lock.path == tmp_path / "deep" / ".x.lock" and not (tmp_path / "deep" / "x").exists()
    assert not list((tmp_path / "deep").iterdir())
