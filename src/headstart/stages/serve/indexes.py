"""The search indexes that a server answers for, by the names of their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.core import artifact
from headstart.core.errors import ArtifactError, HeadstartError
from headstart.core.file_hashes import FileVersion
from headstart.core.log import logger
from headstart.stages.search.graph import KIND
from headstart.stages.search.query import Searcher
from headstart.stages.serve.catalog import version_of
from headstart.stages.serve.refusals import Refusal

_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class OpenIndex:
    """One version of one index. It is never modified: a new version is a new object."""

    name: str
    folder: Path
    hash: str
    """The content hash of the folder."""
    model: str
    """The content hash of the model that embeds questions and passages."""
    passages: int
    version: FileVersion
    searcher: Searcher


class Indexes:
    """All indexes by name; all are open. A replaced folder is opened again by `refresh`."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        """Open the given outputs of `headstart index`."""
        self.folders: dict[str, Path] = {}
        for folder in folders:
            name = folder.resolve().name
            if name in self.folders and self.folders[name].resolve() != folder.resolve():
                raise ArtifactError(
                    f"two indexes have the name {name!r}: {self.folders[name]} and {folder}",
                    allowed="An index is asked for by the name of its folder",
                    do="Rename one of the folders",
                )
            self.folders[name] = folder
        self.entries = {name: open_index(name, folder) for name, folder in self.folders.items()}

    def entry(self, name: str | None) -> OpenIndex:
        """Return an index by its name, or the only one; raises a refusal if there is none or the name is needed."""
        if name is None and len(self.entries) == 1:
            return next(iter(self.entries.values()))
        if not self.entries:
            raise Refusal(404, "This server has no index. Start it with --index.")
        if name is None:
            raise Refusal(422, "This server has several indexes. Name one as `index`; GET /v1/indexes lists them.")
        if name not in self.entries:
            raise Refusal(404, "There is no index of this name. GET /v1/indexes lists the indexes.")
        return self.entries[name]

    def refresh(self) -> None:
        """Open the indexes that were replaced; one that cannot be opened leaves its old version in use."""
        for name, folder in self.folders.items():
            try:
                if version_of(folder) == self.entries[name].version:
                    continue
                self.entries[name] = replaced = open_index(name, folder)
                logger.info("the index %s was replaced: %s", name, replaced.hash[:12])
            except (HeadstartError, OSError) as error:
                logger.warning("the index %s was not updated: %s", name, error)


def open_index(name: str, folder: Path) -> OpenIndex:
    """Verify and open an index; a folder that is replaced meanwhile is opened again."""
    for _ in range(_ATTEMPTS):
        artifact.read_manifest(folder)
        version = version_of(folder)
        searcher = Searcher(folder)
        manifest = artifact.read_manifest(folder)
        if manifest["kind"] == KIND and version_of(folder) == version:
            facts = manifest["index"]
            return OpenIndex(
                name, folder, artifact.identity(folder), facts["parents"]["model"], facts["passages"], version, searcher
            )
    raise ArtifactError(f"{folder} changed while it was opened", do="Try again when the run has finished")
