"""Artifacts: folders that are either complete or absent.

Files are staged beside their target, hashed into a manifest, flushed to disk together with their folder, and only then
renamed into place. `headstart.json` is that manifest: a folder that has it is complete.

    with artifact.staged(target, "checkpoint", seed=0) as staging:
        save_file(weights, staging / "model.safetensors")
        staging.facts["metrics"] = {"accuracy": 0.9}
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from headstart.core.errors import ArtifactError, ResourceError
from headstart.core.faults import SPACE_ADVICE, full_disk
from headstart.core.file_hashes import FileFacts, describe, matches, sha256
from headstart.core.lock import FolderLock, lock_beside, require_in_place
from headstart.core.recipes.variables import written

Folder = str | os.PathLike[str]
MANIFEST = "headstart.json"
FORMAT = 2
"""Since format 2 the manifest contains a seal, a hash of itself. Folders of format 1 have none and are still read."""
_RECORDED_PACKAGES = ("headstart", "torch", "transformers", "tokenizers", "numpy", "scikit-learn")
_RESTORE = "Restore the folder or create it again"
_THREADS, _MANY_BYTES = 8, 1 << 30


@dataclass
class Staging:
    """The folder that an artifact is written into, and what its manifest will record.

    `staging / "model.safetensors"` is a path in that folder, and `str(staging)` or `os.fspath(staging)` is the folder.
    """

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    """Entries of the manifest: recipe, parents, seed, metrics, cost, … They may be added until the block ends."""
    hashed: dict[str, FileFacts] = field(default_factory=dict)
    """Size and hash of files whose writers have computed them already, by relative path. The others are hashed."""

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


@contextmanager
def staged(target: Path, kind: str, *, size_hint: int = 0, **facts: Any) -> Iterator[Staging]:
    """Yield a folder to write into; when the block ends it becomes `target`, and after an exception it is removed.

    Args:
        target: the folder to create. An existing one is replaced only by the final rename.
        kind: what the artifact is, for `verify`.
        size_hint: the expected size in bytes, which is compared with the free disk space first.
        **facts: entries of the manifest that are known in advance; see `Staging.facts` for later ones.
    """
    require_space(target.parent, size_hint)
    with _staging(target, target, facts) as staging:
        yield staging
        _seal(staging, kind)
        _replace(staging.path, target)


def make_once(target: Path, kind: str, write: Callable[[Staging], Any], **facts: Any) -> bool:
    """Create `target` as `staged` does, with `write` filling the folder, unless it is complete; True if it was created.

    If several processes ask for the same target, one creates it and the others wait.
    """
    if is_complete(target):
        _clear_leftovers(target)
        return False
    with lock_beside(target):
        if is_complete(target):
            return False
        with staged(target, kind, **facts) as staging:
            write(staging)
    return True


def _clear_leftovers(target: Path) -> None:
    """Remove what a process left beside a complete artifact when it was killed just after the final rename."""
    path = lock_beside(target).path
    if path.exists():
        # Another process may hold the lock, or the folder may be read-only: then everything stays.
        with suppress(ArtifactError, OSError), FolderLock(target, path=path):
            for leftover in (_staging_path(target), _outgoing(target)):
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def published(folder: Path, kind: str, *, size_hint: int = 0, **facts: Any) -> Iterator[Staging]:
    """Like `staged`, but into a run's folder, whose other files (recipe, logs, …) are kept.

    Files are moved one by one and the manifest last, so that a folder with a manifest is complete.
    """
    require_space(folder, size_hint)
    with _staging(folder / _PUBLISHING, folder, facts) as staging:
        yield staging
        _seal(staging, kind)
        entries = sorted(staging.path.iterdir(), key=lambda path: path.name == MANIFEST)
        for entry in entries:
            destination = folder / entry.name
            if destination.is_dir():
                shutil.rmtree(destination)
            os.replace(entry, destination)
        flush(folder)


@contextmanager
def amended(folder: Path, **facts: Any) -> Iterator[Staging]:
    """Rewrite some files of a finished artifact and update its manifest with `facts`; the other files stay.

    If the process is killed in between, the folder has new files under the old manifest until this is repeated.
    """
    manifest = read_manifest(folder)
    with _staging(folder / _PUBLISHING, folder, facts) as staging:
        yield staging
        for path in sorted(staging.path.iterdir()):
            flush(path)
            manifest["files"][path.name] = describe(path)
            os.replace(path, folder / path.name)
        manifest = json.loads(json.dumps(written(manifest | staging.facts)))
        manifest["seal"] = _hash_of(manifest)
        write_whole(folder / MANIFEST, _text(manifest))


def discard_staging(folder: Path) -> None:
    """Remove what `published` or `amended` staged in a folder before it was killed."""
    shutil.rmtree(_staging_path(folder / _PUBLISHING), ignore_errors=True)


def is_complete(folder: Folder) -> bool:
    """True if a folder is a finished artifact, which its manifest alone decides."""
    return (Path(folder) / MANIFEST).is_file()


def read_manifest(folder: Folder) -> dict[str, Any]:
    """Return the manifest of an artifact."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ArtifactError(
            f"there is no folder {folder}",
            allowed=f"An artifact is a folder with a {MANIFEST}",
            do="Check the path",
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{folder} has no {MANIFEST}", allowed="A finished artifact has one", do="Finish the run first"
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read ({error})", do=_RESTORE) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ArtifactError(f"{path} is not a Headstart manifest", do=_RESTORE)
    return manifest


def verify(
    folder: Folder, kind: str | None = None, trusted: Collection[str] = (), absent: Collection[str] = (),
    whole_bytes: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Check an artifact's manifest against its seal and every file against the manifest; return the manifest.

    Files in `trusted` were hashed by another process a moment ago: only their size is checked. Files in `absent` are
    not checked, because they are not in this copy of the artifact. If the files to be hashed have more than
    `whole_bytes` together, only samples of the large ones are hashed.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    sealed = manifest.get("format") == FORMAT and manifest.get("seal") == _hash_of(manifest)
    # To the last byte: a manifest that lost its final newline may be about to lose more.
    sealed = sealed and (folder / MANIFEST).read_text(encoding="utf-8") == _text(manifest)
    if not sealed and (manifest.get("format") != 1 or "seal" in manifest):
        raise ArtifactError(f"{folder / MANIFEST} was modified after it was written (its seal differs)", do=_RESTORE)
    if kind is not None and manifest.get("kind") != kind:
        raise ArtifactError(f"{folder} is a {manifest.get('kind')}; a {kind} is needed here")
    files = {name: recorded for name, recorded in manifest["files"].items() if name not in absent}
    for name, recorded in files.items():
        if not isinstance(recorded, dict) or not {"bytes", "sha256"} <= recorded.keys():
            raise ArtifactError(f"{folder / MANIFEST} does not record the size and hash of {name}", do=_RESTORE)
        if not (folder / name).is_file():
            raise ArtifactError(f"{folder} lacks {name}", do=_RESTORE)
    _compare(folder, files, trusted, whole_bytes)
    return manifest


def _compare(folder: Path, files: Mapping[str, FileFacts], trusted: Collection[str], whole_bytes: int | None) -> None:
    """Raise if a file differs from what the manifest records; large artifacts are read by several threads."""
    hashed = sum(recorded["bytes"] for name, recorded in files.items() if name not in trusted)
    sampled = whole_bytes is not None and hashed > whole_bytes

    def is_unchanged(name: str) -> bool:
        path, recorded = folder / name, files[name]
        return path.stat().st_size == recorded["bytes"] if name in trusted else matches(path, recorded, sampled)

    with ThreadPoolExecutor(_THREADS if hashed > _MANY_BYTES else 1) as pool:
        for name, unchanged in zip(files, pool.map(is_unchanged, files), strict=True):
            if not unchanged:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ArtifactError(
                    f"{folder / name} was modified after it was written (its hash differs)", do=_RESTORE
                )


def identity(folder: Folder) -> str:
    """Return a hash of an artifact's content, from the file hashes in its manifest or else from the files."""
    folder = Path(folder)
    if is_complete(folder):
        return content_hash(read_manifest(folder))
    # Sentence encoders have layers in subfolders; hidden ones, such as .git, are not of the model.
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and not _is_in_hidden_folder(p.relative_to(folder))]
    parts = [f"{p.relative_to(folder).as_posix()}:{sha256(p)}" for p in paths]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _is_in_hidden_folder(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts[:-1])


def content_hash(manifest: Mapping[str, Any]) -> str:
    """Return what `identity` gives for the artifact with this manifest."""
    files = manifest["files"]
    parts = [f"{name}:{files[name]['sha256']}" for name in sorted(files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect a result."""
    return dict(_versions())


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """Look the versions up once, because parsing takes 20 ms, which the smallest cells of a study would notice."""
    # Imported here because it takes 40 ms, which `headstart --help` does not need.
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def require_space(folder: Path, size: int) -> None:
    """Raise before writing if the disk that contains `folder` has less than 1.1 times `size` bytes free."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < size * 1.1:
        raise ResourceError(
            f"{folder} needs {size * 1.1 / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB free", do=SPACE_ADVICE
        )


def write_whole(path: Path, text: str) -> None:
    """Write a small file atomically: readers see the old text or the new one, never a part."""
    staging = path.with_name(f".{path.name}.staging")
    staging.write_text(text, encoding="utf-8")
    flush(staging)
    staging.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _staging(target: Path, reported: Path, facts: Mapping[str, Any]) -> Iterator[Staging]:
    """Yield an empty staging folder beside the target and remove it at the end; name a full disk in the error."""
    staging = Staging(_staging_folder(target), dict(facts))
    try:
        yield staging
    except Exception as error:
        if (reason := full_disk(error)) is not None:
            raise ResourceError(f"{reason} while {reported} was written", do=SPACE_ADVICE) from error
        raise
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)


def _staging_folder(target: Path) -> Path:
    """Create an empty staging folder beside the target; clear or restore what a killed process left there."""
    require_in_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    outgoing = _outgoing(target)
    if outgoing.exists() and not target.exists():
        os.rename(outgoing, target)
    shutil.rmtree(outgoing, ignore_errors=True)
    staging = _staging_path(target)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    return staging


def _staging_path(target: Path) -> Path:
    return target.parent / f".{target.name}.staging"


def _outgoing(target: Path) -> Path:
    """Return where the old target is between the two renames that replace it."""
    return target.parent / f".{target.name}.outgoing"


def _seal(staging: Staging, kind: str) -> None:
    """Write the manifest of a staged folder and flush every file to disk."""
    folder = staging.path
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    names = {path.relative_to(folder).as_posix(): path for path in files}
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **staging.facts,
        "versions": versions(),
        "files": {name: staging.hashed.get(name) or describe(path) for name, path in names.items()},
    }
    # In the form in which it will be read back: keys are strings, tuples are lists, variables are not expanded.
    manifest = json.loads(json.dumps(written(manifest)))
    manifest["seal"] = _hash_of(manifest)
    (folder / MANIFEST).write_text(_text(manifest), encoding="utf-8")
    mode = (folder / MANIFEST).stat().st_mode
    for path in [*files, folder / MANIFEST]:
        # safetensors creates files that only their owner can read; the manifest has the mode of the user's umask.
        if path.stat().st_mode != mode:
            path.chmod(mode)
        flush(path)
    for path in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        flush(path)
    flush(folder)


def _replace(staging: Path, target: Path) -> None:
    if target.exists():
        outgoing = _outgoing(target)
        os.rename(target, outgoing)
        os.rename(staging, target)
        shutil.rmtree(outgoing, ignore_errors=True)
    else:
        os.rename(staging, target)
    flush(target.parent)


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def _hash_of(manifest: dict[str, Any]) -> str:
    """Return the hash of a manifest without its seal."""
    rest = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


_PUBLISHING = "model"
"""Names the staging folder of a run's folder: `.model.staging`."""
