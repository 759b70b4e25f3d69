"""Checkpoints and data sets by name: of the Hugging Face Hub (`org/name`), and of installed packages (`pypi:name`).

huggingface_hub downloads, and keeps what it downloaded in its cache; its variables (HF_TOKEN, HF_ENDPOINT, HF_HOME,
HF_HUB_OFFLINE) apply. A name without a commit is resolved once, by `pin`, so that a run that is resumed reads the
same files.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from headstart.core import artifact
from headstart.core.errors import ArtifactError, ResourceError, first_line
from headstart.core.log import logger

Kind = Literal["model", "dataset"]
"""The kind of a repository of the Hub."""
_SCHEMES: dict[Kind, str] = {"model": "hf://", "dataset": "hf://datasets/"}
_WORDS: dict[Kind, str] = {"model": "model", "dataset": "data set"}
PACKAGE_SCHEME = "pypi:"
_HUB = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,200}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.md", "*.yaml")
"""What is downloaded: weights as safetensors, settings, tokenizers. Neither pickles nor code."""
_PAGES = ("*.html",)
"""What the output of a run has besides: its manifest has their hashes, which are verified when the run is opened."""
_FOLDERS = ("checkpoints", "data", "models", "outputs", "runs")
"""First parts of a path that recipes use for folders; a repository of such an owner is written `hf://runs/name`."""


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub, at a branch, a tag or a commit."""

    repository: str
    revision: str | None = None
    kind: Kind = "model"

    @property
    def is_pinned(self) -> bool:
        """True if the revision is a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


_pinned: dict[HubName, str] = {}
"""The commits of the names that this process has pinned."""


def parse(name: str | Path, kind: Kind = "model") -> HubName | None:
    """Return the repository that a text names, or None for a path.

    A text of the form `org/name` is a path if there is such a folder, or a folder `org`, or if `org` is a usual name
    for a folder, such as `runs`: its run may not have been started yet.
    """
    text = _url(name)
    if text.startswith(_SCHEMES["model"]):
        found = _HUB.fullmatch(text.removeprefix(_SCHEMES[kind]))
        if found is None:
            raise ArtifactError(
                f"{text!r} is not the name of a {_WORDS[kind]} on the Hub",
                allowed=f"`{_SCHEMES[kind]}org/name`, or `{_SCHEMES[kind]}org/name@revision`",
                do="Correct the name",
            )
        return HubName(found[1], found[2], kind)
    found = _HUB.fullmatch(text)
    if found is None or text.startswith(".") or Path(text).exists() or Path(text).parts[0] in ("~", *_FOLDERS):
        return None
    return None if Path(text).parent.is_dir() else HubName(found[1], found[2], kind)


def is_path(name: str | Path) -> bool:
    """Return True for a path, False for the name of a repository or of a package."""
    return not str(name).startswith(PACKAGE_SCHEME) and parse(name) is None


def require_folder(folder: Path, name: str | Path, setting: str = "model") -> None:
    """Raise if there is no such folder; `name` is what a user gave for it."""
    if not folder.is_dir():
        raise ArtifactError(
            f"{setting} is {str(name)!r}, but there is no such folder",
            allowed="It must be a local Hugging Face folder (an output of `headstart pretrain` or a checkpoint), a "
            "name on the Hub such as org/name, or pypi:NAME",
            do="Correct the path, or run `headstart pretrain` first",
        )


def pin(name: str, kind: Kind = "model") -> str:
    """Return the name with the commit that its revision is at now; a path or the name of a package is not changed.

    Without a network, or with HF_HUB_OFFLINE, it is the commit of the last download. The scheme stays where it is.
    """
    hub = parse(name, kind)
    if hub is None or hub.is_pinned:
        return name
    commit = _pinned[hub] = _commit(hub)
    pinned = str(HubName(hub.repository, commit, kind))
    # A name without a scheme may be a path once its revision is replaced: `org/name@feature/x`, with a folder `org`.
    needs_scheme = _url(name).startswith(_SCHEMES[kind]) or parse(pinned, kind) is None
    return _SCHEMES[kind] + pinned if needs_scheme else pinned


def repin(name: str, previous: str | None, kind: Kind = "model") -> str:
    """Return what `pin` returns, but `previous` if that is the same name with a commit."""
    if previous is not None:
        hub, before = parse(name, kind), parse(previous, kind)
        if before is not None and before.is_pinned and hub == HubName(before.repository, kind=kind):
            return previous
    return pin(name, kind)


def _url(name: str | Path) -> str:
    """Return a name as text; a `Path` of `hf://org/name` has one slash."""
    return re.sub(r"^hf:/(?!/)", "hf://", str(name))


def folder_of(name: str | Path) -> Path:
    """Return the local folder of a checkpoint: a path as it is, a package's folder, or a download from the Hub.

    Files that are in the cache already are not requested again.
    """
    if str(name).startswith(PACKAGE_SCHEME):
        return _package_folder(str(name).removeprefix(PACKAGE_SCHEME))
    hub = parse(name)
    return Path(name) if hub is None else _download(hub)


def run_folder_of(name: str | Path) -> Path:
    """Return the local folder of the output of a run, or of several, by its path or its name.

    A download or a package without a manifest is refused. A path is returned as it is, even if there is no such folder.
    """
    folder = folder_of(pin(str(name)))
    if folder != Path(name) and not _has_manifest(folder):
        raise ArtifactError(
            f"{_url(name)} has no {artifact.MANIFEST}, so it is not the output of a run",
            allowed="This needs a model that Headstart trained",
            do=f"Fine-tune it first: `headstart finetune RECIPE model={_url(name)}`",
        )
    return folder


def output_beside(name: str | Path, suffix: str) -> Path:
    """Return the default output of what is made of a model: beside a folder, and in `runs` for any other name."""
    if str(name).startswith(PACKAGE_SCHEME):
        return Path("runs") / f"{str(name).removeprefix(PACKAGE_SCHEME)}-{suffix}"
    hub = parse(name)
    if hub is None:
        path = Path(name)
        # `.` and `..` have no name.
        path = path.resolve() if path.name in ("", "..") else path
        return path.with_name(f"{path.resolve().name}-{suffix}")
    return Path("runs") / "-".join([*re.split("[/@]", str(hub))[1:], suffix])


def name_of(folder: Path) -> HubName | None:
    """Return the repository and the commit that were downloaded into a folder of the cache; None for another folder."""
    parent, parts = folder.parent, folder.parent.parent.name.split("--")
    is_snapshot = parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) is not None
    return HubName("/".join(parts[1:]), folder.name) if is_snapshot and parts[:-2] == ["models"] else None


def download(hub: HubName, patterns: Sequence[str]) -> Path:
    """Download the files of a repository that match one of the patterns, and return the folder of its cache.

    If the revision is a commit and the cache has all of these files, no request is sent.
    """
    from huggingface_hub import errors, snapshot_download

    def call(local_files_only: bool = False) -> str:
        return snapshot_download(
            hub.repository, repo_type=hub.kind, revision=hub.revision, allow_patterns=[*patterns],
            local_files_only=local_files_only,
        )  # fmt: skip

    try:
        # Without this attempt, huggingface_hub sends requests even if all files of a commit are in its cache.
        folder = call(local_files_only=True) if hub.is_pinned else _request(hub, call)
    except errors.LocalEntryNotFoundError:
        folder = _request(hub, call)
    for name, commit in _pinned.items():
        if hub == HubName(name.repository, commit, name.kind):
            _remember(name, commit)
    return Path(folder)


def _download(hub: HubName) -> Path:
    folder = download(hub, _FILES)
    if _has_manifest(folder):
        folder = download(hub, (*_FILES, *_PAGES))
    if not any(folder.rglob("*.safetensors")):
        raise ArtifactError(
            f"{hub} has no weights as safetensors",
            allowed="Headstart reads safetensors files only; reading a pickle can run code",
            do="Choose another model, or convert it if you trust it: load it in transformers, call `save_pretrained`, "
            "and use that folder",
        )
    return folder


def _has_manifest(folder: Path) -> bool:
    return any(folder.rglob(artifact.MANIFEST))


def _commit(hub: HubName) -> str:
    """Return the commit of a revision: as the Hub says, or that of the last download if there is no connection."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return _last_commit(hub)
    try:
        return str(_request(hub, lambda: HfApi().repo_info(
            hub.repository, repo_type=hub.kind, revision=hub.revision
        )).sha)  # fmt: skip
    except ResourceError as error:
        if not _is_unanswered(error.__cause__):
            raise
        try:
            commit = _last_commit(hub)
        except ArtifactError:
            raise error from error.__cause__
        logger.warning(
            "%s cannot be reached, so the last download of %s is used, which is the commit %s (%s)",
            constants.ENDPOINT, hub, commit, error.__cause__,
        )  # fmt: skip
        return commit


def _last_commit(hub: HubName) -> str:
    """Return the commit of a revision in the cache."""
    from huggingface_hub import snapshot_download

    cached = _request(hub, lambda: snapshot_download(
        hub.repository, repo_type=hub.kind, revision=hub.revision, allow_patterns=[], local_files_only=True
    ))  # fmt: skip
    return Path(cached).name


def _remember(hub: HubName, commit: str) -> None:
    """Write the commit of a revision into the cache, where huggingface_hub looks for it without a network.

    huggingface_hub does this only for files that are downloaded by the revision; those of a run are downloaded by the
    commit.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    repository = Path(constants.HF_HUB_CACHE).expanduser() / repo_folder_name(
        repo_id=hub.repository, repo_type=hub.kind
    )
    references = repository.resolve() / "refs"
    path = (references / (hub.revision or constants.DEFAULT_REVISION)).resolve()
    if not path.is_relative_to(references):
        return
    # The cache may be read-only.
    with suppress(OSError):
        if path.is_file() and path.read_text(encoding="utf-8") == commit:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        staging.write_text(commit, encoding="utf-8")
        os.replace(staging, path)


def _is_unanswered(error: BaseException | None) -> bool:
    """True for an error of the connection, and if the Hub is down; False if it answered, and for a malformed name."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return not isinstance(error, ValueError) and (status is None or status >= 500)


def _request(hub: HubName, call: Any) -> Any:
    """Call huggingface_hub, and turn its errors into sentences."""
    from huggingface_hub import constants, errors

    word = _WORDS[hub.kind]
    local = f"There is no folder {hub.repository!r} here, so it is taken for the name of a {word} on the Hub"
    try:
        return call()
    except errors.GatedRepoError as error:
        raise ArtifactError(
            f"{hub} is a gated {word} on {constants.ENDPOINT}, and you have no access to it",
            allowed=f"A gated {word} needs a token of an account that was granted access",
            do=f"Ask for access on the page of the {word}, then run `hf auth login` or set HF_TOKEN",
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        has_repository = isinstance(error, errors.RevisionNotFoundError)
        what = "has no revision of this name" if has_repository else f"has no such {word}"
        raise ArtifactError(
            f"{hub} was not found: {constants.ENDPOINT} {what}, or it is private",
            allowed=local,
            do=f"Correct the name or the path; for a private {word} run `hf auth login` or set HF_TOKEN",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ArtifactError(
            f"{hub} is not in the local cache, and {constants.ENDPOINT} cannot be reached",
            allowed=local,
            do="Check the connection (HF_HUB_OFFLINE, HF_ENDPOINT), or correct the path",
        ) from error
    except Exception as error:
        # Errors of the connection are those of the HTTP library, which differs between versions of huggingface_hub.
        raise ResourceError(
            f"{hub} could not be downloaded from {constants.ENDPOINT} ({first_line(error)})",
            do="Rerun the same command: files that are complete are not downloaded again",
        ) from error


def _package_folder(name: str) -> Path:
    """Return the folder of a package that has config.json and safetensors files."""
    try:
        files = metadata.distribution(name).files or []
    except (metadata.PackageNotFoundError, ValueError) as error:
        raise ArtifactError(
            f"the package {name!r} is not installed",
            allowed="`pypi:NAME` is the checkpoint in an installed package",
            do=f"Run `pip install {name}`",
        ) from error
    folders = {Path(str(file.locate())).parent for file in files if file.name == "config.json"}
    found = sorted(folder for folder in folders if any(folder.glob("*.safetensors")))
    if len(found) != 1:
        raise ArtifactError(
            f"the package {name!r} has {len(found) or 'no'} folders with config.json and safetensors files",
            allowed="`pypi:NAME` is the checkpoint in a package that has one",
            do="Name the folder itself",
        )
    return found[0]
