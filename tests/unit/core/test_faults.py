"""Faults of the operating system as sentences."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from headstart.core import faults
from headstart.core.errors import ArtifactError, DataError, ResourceError


def refused(code: int, *paths: str) -> OSError:
    first, *rest = paths or (None,)
    return OSError(code, os.strerror(code), first, *([None, *rest] if rest else []))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (refused(errno.ENOSPC, "/a"), "the disk filled up"),
        (refused(errno.EDQUOT, "/a"), "the disk quota of this user is used up"),
        (refused(errno.EROFS, "/a"), "the file system is read-only"),
        (refused(errno.EIO, "/a"), r"failed \(/a\): Input/output error"),
        (refused(errno.ESTALE, "/a"), "the network file system failed"),
        (refused(errno.EMFILE), r"too many files are open: .*ulimit -n"),
        (refused(errno.ENFILE), "too many files are open. "),
        (refused(errno.ENOMEM), "the memory ran out"),
        (refused(errno.EXDEV, "/a", "/b"), "/a and /b are on different file systems"),
        (refused(errno.ENOTEMPTY, "/a", "/b"), "/b is in use by another process"),
        (refused(errno.ENOENT, "/a"), "/a does not exist, or no longer exists"),
        (refused(errno.EACCES, "/a"), "refuses access to /a"),
        (MemoryError(), "the memory ran out"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), "the memory ran out"),
        (RuntimeError("can't start new thread"), "starts no more threads"),
        (ImportError("libx.so: failed to map segment from shared object"), "the memory ran out"),
        (Exception("I/O error: Too many open files (os error 24)"), "too many files are open"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "Set TMPDIR"),
    ],
)
def test_a_fault_of_the_machine_is_one_sentence(error, sentence):
    explained = faults.explain(error)
    assert isinstance(explained, ResourceError)
    with pytest.raises(ResourceError, match=sentence):
        raise explained


def test_the_cause_of_an_error_for_users_counts():
    """A folder is not called damaged because this process may not open another file."""
    try:
        try:
            raise refused(errno.EMFILE, "/a")
        except OSError as error:
            raise ArtifactError("/a has no valid token shards", do="Delete the folder") from error
    except ArtifactError as error:
        explained = faults.explain(error)
    assert explained is not None and "files are open" in str(explained)


@pytest.mark.parametrize("error", [DataError("a row is bad"), ValueError("x"), KeyError("y"), OSError("no code")])
def test_other_errors_are_not_explained(error):
    assert faults.explain(error) is None


def test_what_happened_before_an_error_for_users_does_not_count():
    try:
        try:
            raise refused(errno.EIO, "/a")
        except OSError:
            raise DataError("a row is bad") from None
    except DataError as error:
        assert faults.explain(error) is None


def test_too_little_address_space_is_refused_before_libraries_load(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_000_000 * 1024, -1))
    with pytest.raises(ResourceError, match=r"1\.0 GB of address space.*ulimit -v unlimited"):
        faults.require_address_space()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, -1))
    faults.require_address_space()


def test_too_few_open_files_are_refused_before_the_engine_starts(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    with pytest.raises(ResourceError, match="may open 16 files at a time"):
        faults.require_open_files(128)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    faults.require_open_files(128)
