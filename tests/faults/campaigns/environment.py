"""Faults of the machine around a run: each ends with one true sentence, or changes nothing, and the run resumes.

Limits, mounts and closed pipes are real. A system call is made to fail inside the process only where no such means
exists: an input/output error, a quota, a lock that is not supported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .report import Found
from .signals import _JUMPS
from .subjects import Ground, differences

_FORBIDDEN = ("Internal error", "Traceback", "Aborted", "Segmentation fault", "core dumped")

# The n-th call of a function of `os` on paths that contain a word fails with a code.
_FAILING = """
import errno, os
original, left = os.{call}, [{call_number}]

def failing(*arguments, **more):
    names = [str(argument) for argument in arguments]
    if {word!r} in " ".join(names):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.{code}, os.strerror(errno.{code}), names[0], None, *names[1:2])
    return original(*arguments, **more)

os.{call} = failing
"""
_FAILING_READ = """
import errno, hashlib, os, pathlib
original = pathlib.Path.open

def failing(self, *arguments, **more):
    if self.name.endswith({word!r}):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
    return original(self, *arguments, **more)

pathlib.Path.open = failing
"""
_NO_LOCKS = """
import errno, fcntl, os

def unsupported(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

fcntl.lockf = unsupported
"""
_NO_FOLDER_FLUSH = """
import errno, os, stat
original = os.fsync

def failing(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return original(descriptor)

os.fsync = failing
"""
# codecarbon looks for the folder when it is imported, which the nursery has done.
_NO_TEMPORARY = """
import sys, tempfile
from headstart.evaluation import energy
tempfile.tempdir, tempfile._candidate_tempdir_list = None, lambda: ["/nonexistent/tmp"]
for name in [name for name in sys.modules if name.partition(".")[0] == "codecarbon"]:
    del sys.modules[name]
energy.carbon_intensity.cache_clear()
energy.full_load_watts.cache_clear()
"""
# The folder is moved away, or deleted, when the run saves for the second time.
_GONE = """
import pathlib, shutil
from headstart.training.checkpoint import CheckpointStore
folder, save, count = pathlib.Path(FOLDER), CheckpointStore.save, [0]

def gone(*arguments, **more):
    count[0] += 1
    if count[0] == 2:
        ACTION
    return save(*arguments, **more)

CheckpointStore.save = gone
"""


@dataclass(frozen=True)
class Fault:
    """A fault, what the run must say or None if the run must end as if nothing had happened, and how it is made."""

    name: str
    sentence: str | None
    code: str = ""
    """Python that runs in the process before the command line."""
    limits: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    shell: str = ""
    """A shell command that is run instead, with the command line as "$@", where the fault must precede Python."""
    place: Callable[[Ground], object] | None = None
    """A context manager that yields the folder of the output."""
    exit_code: int = 0
    """The exit code of a run that is complete nonetheless."""
    resumes: bool = True
    """True if the same command ends like an undisturbed run once the fault is gone."""


@contextmanager
def _read_only(ground: Ground) -> Iterator[Path]:
    disk = ground.fresh("read-only")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,ro", "none", str(disk)], check=True, capture_output=True)
    try:
        yield disk / "run"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _faults() -> list[Fault]:
    missing = "/nonexistent/tmp"
    return [
        Fault("ENOTEMPTY when a folder is renamed", "in use by another process",
              _FAILING.format(call="rename", word=".staging", code="ENOTEMPTY", call_number=3)),
        Fault("EXDEV when a file is renamed", "different file systems",
              _FAILING.format(call="replace", word="model.safetensors", code="EXDEV", call_number=1)),
        Fault("a read-only file system as output", "read-only", place=_read_only, resumes=False),
        Fault("a quota that is used up during a save", "quota",
              _FAILING.format(call="fsync", word="", code="EDQUOT", call_number=30)),
        Fault("an input/output error when the weights are hashed", "failed", _FAILING_READ.format(word=".safetensors")),
        Fault("a file system without locks (ENOLCK)", None, _NO_LOCKS),
        Fault("a folder that cannot be flushed (EINVAL)", None, _NO_FOLDER_FLUSH),
        Fault("16 file descriptors (ulimit -n 16)", "files at a time", limits={"RLIMIT_NOFILE": 16}),
        Fault("2 GB of address space (ulimit -v)", None, shell='ulimit -v 2000000; exec "$@"'),
        Fault("1 GB of address space (ulimit -v)", "address space", shell='ulimit -v 1000000; exec "$@"'),
        Fault("the run's folder is moved during the run", "no longer exists",
              _GONE.replace("ACTION", "folder.rename(str(folder) + '-moved')"), resumes=False),
        Fault("the run's folder is deleted during the run", "no longer exists",
              _GONE.replace("ACTION", "shutil.rmtree(folder)"), resumes=False),
        Fault("TMPDIR that does not exist, HOME that is not set", None,
              shell=f"export TMPDIR={missing}; unset HOME; exec \"$@\""),
        Fault("no folder for temporary files at all", "temporary files", _NO_TEMPORARY),
        Fault("stdout closed by its reader", None, shell="\"$@\" | true; exit ${PIPESTATUS[0]}",
              exit_code=1),  # The run is complete, and nobody has read its summary.
        Fault("a wall clock that jumps by up to a year", None, _JUMPS.format(seed=0)),
    ]  # fmt: skip


def campaign(ground: Ground, count: int = 100, subject: str = "masked_lm") -> Found:
    """Try the first `count` of the faults, each on a run of its own."""
    found = Found("faults of the machine around a run", "ends as if undisturbed, or says what is wrong and resumes")
    for fault in _faults()[:count]:
        found.count += 1
        try:
            with (fault.place or _anywhere)(ground) as folder:
                sentence, failures = _try(ground, fault, folder, subject)
        except subprocess.CalledProcessError as error:
            found.failures.append(f"{fault.name}: cannot be made here ({error})")
            continue
        found.failures += [f"{fault.name}: {failure}" for failure in failures]
        found.messages[fault.name] = sentence.replace(str(folder), "OUTPUT") or "The run ends as if undisturbed."
    ended = sum(message.startswith("The run ends") for message in found.messages.values())
    found.notes = [f"{ended} without an effect on the result, {len(found.messages) - ended} with one sentence (below)"]
    return found


@contextmanager
def _anywhere(ground: Ground) -> Iterator[Path]:
    yield ground.fresh("environment")


def _try(ground: Ground, fault: Fault, folder: Path, subject: str) -> tuple[str, list[str]]:
    """Return the sentence of a run under a fault, and what is wrong with the run."""
    reference = ground.reference(subject)
    command = ground.command(subject, folder)
    if fault.shell:
        code, output = _in_shell(fault, command)
    else:
        trap = fault.code.replace("FOLDER", repr(str(folder)))
        child = ground.nursery.start(command, code=trap, limits=fault.limits, environment=fault.environment)
        code, output = child.wait(), child.output()
    said = next((line for line in output.splitlines() if line.startswith("headstart:")), "").removeprefix("headstart: ")
    failures = [f"the output has {word!r}: {output[-600:]}" for word in _FORBIDDEN if word in output]
    if fault.sentence is None:
        ended = code == fault.exit_code
        failures += differences(folder, reference.folder) if ended else [f"exited with {code}: {output[-600:]}"]
        return "", failures
    if code != 2 or fault.sentence not in said:
        failures.append(f"exited with {code}: {output[-600:]}")
    if fault.resumes and not failures:
        again = ground.nursery.start(command)
        code = again.wait()
        failures += [f"did not resume: {again.output()[-600:]}"] if code else differences(folder, reference.folder)
    return said, failures


def _in_shell(fault: Fault, command: list[str]) -> tuple[int, str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | fault.environment
    line = [shutil.which("bash") or "bash", "-c", fault.shell, "bash", sys.executable, "-m", "headstart", *command]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=240)
    return done.returncode, done.stdout + done.stderr
