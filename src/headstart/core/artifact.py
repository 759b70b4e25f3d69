"""A folder that is complete or absent.

Files are staged beside their target, hashed into a manifest, flushed to disk with their folder, and only
then renamed into place. `headstart.json` is that manifest: whoever finds it finds the whole artifact.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from headstart.core.errors import ArtifactError, ResourceError
from headstart.core.lock import held

FileFacts = dict[str, Any]
"""Size and hash of a file, as a manifest states them."""
MANIFEST = "headstart.json"
FORMAT = 2
"""2: the manifest bears a seal, a hash of itself. Folders of format 1 have none, and are read as before."""
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
_RECORDED_PACKAGES = ("headstart", "torch", "transformers", "tokenizers", "numpy", "scikit-learn")


@contextmanager
def staged(
    target: Path, kind: str, *, size_hint: int = 0, known: Mapping[str, FileFacts] | None = None, **facts: Any
) -> Iterator[Path]:
    """Yield a folder to write into; on leaving, it becomes `target`, whole, or nothing remains of it.

    `facts` (recipe, parents, seed, metrics, cost, …) go into the manifest. An existing target is replaced
    only by the final rename. `size_hint` in bytes is checked against the free space first. `known` describes
    files that whoever wrote them has hashed; it may be filled before the block ends.
    """
    require_space(target.parent, size_hint)
    staging = _staging_folder(target)
    try:
        yield staging
        seal(staging, kind, known, **facts)
        _replace(staging, target)
    except Exception as error:
        if is_disk_full(error):
            raise ResourceError(f"the disk filled up while {target} was written", do=_SPACE_ADVICE) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def make_once(target: Path, kind: str, write: Callable[[Path], Any], **facts: Any) -> bool:
    """Let `write` fill the folder that becomes `target`, as in `staged`, unless it is complete; say whether it did.

    Of several processes that want the same target one makes it, and the others wait for it.
    """
    if is_complete(target):
        return False
    with held(target):
        if is_complete(target):
            return False
        with staged(target, kind, **facts) as staging:
            write(staging)
    return True


@contextmanager
def published(folder: Path, kind: str, *, size_hint: int = 0, **facts: Any) -> Iterator[Path]:
    """Like `staged`, but into a folder that already holds a run's own records, which stay.

    Files are moved one by one and the manifest last, so that a folder with a manifest is complete.
    `facts` may be extended by writing to the dictionary that it names before the block ends.
    """
    require_space(folder, size_hint)
    staging = _staging_folder(folder / "model")
    try:
        yield staging
        seal(staging, kind, **facts)
        entries = sorted(staging.iterdir(), key=lambda path: path.name == MANIFEST)
        for entry in entries:
            destination = folder / entry.name
            if destination.is_dir():
                shutil.rmtree(destination)
            os.replace(entry, destination)
        flush(folder)
    except Exception as error:
        if is_disk_full(error):
            raise ResourceError(f"the disk filled up while {folder} was written", do=_SPACE_ADVICE) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def amended(folder: Path, **facts: Any) -> Iterator[Path]:
    """Write some files of a finished artifact anew, with other facts in its manifest; the others stay as they are.

    Killed in between, the folder holds new files under the old manifest until the same is done again.
    """
    manifest = read_manifest(folder)
    staging = _staging_folder(folder / "model")
    try:
        yield staging
        for path in sorted(staging.iterdir()):
            flush(path)
            manifest["files"][path.name] = describe(path)
            os.replace(path, folder / path.name)
        manifest = json.loads(json.dumps(manifest | facts))
        manifest["seal"] = _seal(manifest)
        write_whole(folder / MANIFEST, _text(manifest))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def seal(folder: Path, kind: str, known: Mapping[str, FileFacts] | None = None, **facts: Any) -> None:
    """Write the manifest of a folder and flush every file of it to disk; files that are `known` are not hashed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    names = {path.relative_to(folder).as_posix(): path for path in files}
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
        "versions": versions(),
        "files": {name: (known or {}).get(name) or describe(path) for name, path in names.items()},
    }
    # As it will be read: keys are strings there, tuples are lists.
    manifest = json.loads(json.dumps(manifest))
    manifest["seal"] = _seal(manifest)
    (folder / MANIFEST).write_text(_text(manifest), encoding="utf-8")
    for path in [*files, folder / MANIFEST]:
        flush(path)
    for path in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        flush(path)
    flush(folder)


def describe(path: Path) -> FileFacts:
    """Return what a manifest says of a file: its size and its hash."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def is_complete(folder: Path) -> bool:
    """Say whether a folder holds a finished artifact, by its manifest alone."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an artifact."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise ArtifactError(
            f"there is no folder {folder}", allowed="An artifact is a folder with a headstart.json", do="Check the path"
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{folder} has no {MANIFEST}", allowed="A finished artifact has one", do="Finish the run first"
        ) from error
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path} cannot be read ({error})", do="Restore the folder or make it anew") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ArtifactError(f"{path} is no manifest of ours", do="Restore the folder or make it anew")
    return manifest


def verify(folder: Path, kind: str | None = None, trusted: Collection[str] = ()) -> dict[str, Any]:
    """Check the manifest of an artifact against its seal and every file against the manifest; returns the manifest.

    Of files that are `trusted`, since another process has just hashed them, the size alone is checked.
    """
    manifest = read_manifest(folder)
    sealed = manifest.get("format") == FORMAT and manifest.get("seal") == _seal(manifest)
    # Down to the last byte: a manifest that lost its end of line may be about to lose more.
    sealed = sealed and (folder / MANIFEST).read_text(encoding="utf-8") == _text(manifest)
    if not sealed and (manifest.get("format") != 1 or "seal" in manifest):
        raise ArtifactError(
            f"{folder / MANIFEST} is not what was written (its seal differs)", do="Restore the folder or make it anew"
        )
    if kind is not None and manifest.get("kind") != kind:
        raise ArtifactError(f"{folder} is a {manifest.get('kind')}; a {kind} is needed here")
    for name, stated in manifest["files"].items():
        path = folder / name
        if not isinstance(stated, dict) or not {"bytes", "sha256"} <= stated.keys():
            raise ArtifactError(
                f"{folder / MANIFEST} does not say what {name} holds", do="Restore the folder or make it anew"
            )
        if not path.is_file():
            raise ArtifactError(f"{folder} lacks {name}", do="Restore the folder or make it anew")
        if path.stat().st_size != stated["bytes"] or (name not in trusted and sha256(path) != stated["sha256"]):
            raise ArtifactError(
                f"{path} is not what was written (its hash differs)", do="Restore the folder or make it anew"
            )
    return manifest


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def _seal(manifest: dict[str, Any]) -> str:
    """Return the hash of a manifest without its seal."""
    rest = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def identity(folder: Path) -> str:
    """Return a hash that names an artifact's content: of its manifest's file hashes, or of the files."""
    if is_complete(folder):
        files = read_manifest(folder)["files"]
        parts = [f"{name}:{files[name]['sha256']}" for name in sorted(files)]
    else:
        parts = [f"{p.relative_to(folder)}:{sha256(p)}" for p in sorted(folder.glob("*")) if p.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    return dict(_versions())


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """Look the versions up once: 20 ms of parsing, which a study's smallest cells would feel."""
    # Here, since it takes 40 ms that `headstart --help` has no use for.
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def require_space(folder: Path, size: int) -> None:
    """Raise before writing if the disk under `folder` has no room for `size` bytes and a tenth more."""
    probe = folder
    while not probe.exists():
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    if free < size * 1.1:
        raise ResourceError(
            f"{folder} needs {size * 1.1 / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB free", do=_SPACE_ADVICE
        )


def is_disk_full(error: BaseException) -> bool:
    """Say whether an error, or one behind it, means a full disk; libraries in Rust tell so in words alone."""
    link: BaseException | None = error
    while link is not None:
        if getattr(link, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(link):
            return True
        link = link.__cause__ or link.__context__
    return False


def explain(error: Exception) -> ResourceError | None:
    """Turn what the system refuses (a full disk, a forbidden path) into an error for a person; None for our faults."""
    if is_disk_full(error):
        return ResourceError("the disk filled up", allowed="Writing needs free space", do=_SPACE_ADVICE)
    if not isinstance(error, OSError) or error.errno not in _REFUSALS or error.filename is None:
        return None
    return ResourceError(
        f"the system refuses {error.filename} ({error.strerror})",
        allowed="Paths must be yours to use, and every part of an output's path a folder",
        do="Change the permissions or choose another path",
    )


def sha256(path: Path) -> str:
    """Hash a file without reading it whole into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write one small file so that whoever reads it finds the old text or the new one, never a part."""
    staging = path.with_name(f".{path.name}.staging")
    staging.write_text(text, encoding="utf-8")
    flush(staging)
    staging.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Force a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _staging_folder(target: Path) -> Path:
    """Make an empty staging folder beside the target, clearing or putting back what a killed run left there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    outgoing = _outgoing(target)
    if outgoing.exists() and not target.exists():
        os.rename(outgoing, target)
    shutil.rmtree(outgoing, ignore_errors=True)
    staging = target.parent / f".{target.name}.staging"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    return staging


def _outgoing(target: Path) -> Path:
    """Where the old target lies between the two renames that put the new one in its place."""
    return target.parent / f".{target.name}.outgoing"


def _replace(staging: Path, target: Path) -> None:
    if target.exists():
        outgoing = _outgoing(target)
        os.rename(target, outgoing)
        os.rename(staging, target)
        shutil.rmtree(outgoing, ignore_errors=True)
    else:
        os.rename(staging, target)
    flush(target.parent)


_SPACE_ADVICE = "Free some space, or set `output` to another disk; a run that was stopped goes on when started again"
