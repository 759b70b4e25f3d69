"""The tasks that a server answers for: known by the names of their folders, loaded when they are first asked for.

Properties:
    A task in memory is an immutable `Slot`. Evicting or replacing one only removes it from a table: requests that were
    accepted before keep the slot that they were accepted with, and nothing is loaded into its memory. A name leads to a
    folder that was given at the start, or to a folder inside one; no part of a request becomes a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.checkpoint.names import name_of
from headstart.core import artifact
from headstart.core.errors import ArtifactError, HeadstartError
from headstart.core.file_hashes import FileVersion
from headstart.core.log import logger
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.runs.manifest import FinetuneManifest, MultitaskManifest
from headstart.stages.serve.bodies import Slot
from headstart.stages.serve.opening import Opener, facts_of, require_servable
from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.telemetry import Telemetry


@dataclass(frozen=True)
class Entry:
    """A task that can be asked for."""

    name: str
    folder: Path
    hash: str
    version: FileVersion
    facts: dict[str, Any]
    finetuned: Finetuned = field(repr=False)
    """The recipe and the task. They are read once: parsing a recipe takes longer than loading an adapter."""


class Catalog:
    """All tasks by name, and those in memory in the order of their last use."""

    def __init__(self, folders: Sequence[Path], cache_bytes: int, telemetry: Telemetry) -> None:
        """Read the manifests of all tasks in the given folders.

        Args:
            folders: outputs of `headstart finetune`, or folders that contain such outputs; none for a server that
                only searches.
            cache_bytes: the memory for tasks. One task more may be in memory while a request uses it.
            telemetry: the metrics to update.
        """
        self.folders, self.cache_bytes, self.telemetry = list(folders), cache_bytes, telemetry
        self.opener = Opener()
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        self._table = threading.Lock()
        self._loading = threading.Lock()
        self._warned = False
        self.entries: dict[str, Entry] = {}
        self._left_out: dict[str, FileVersion] = {}
        for name, folder in find_tasks(self.folders).items():
            try:
                self.entries[name] = read_entry(name, folder)
            except HeadstartError as error:
                # A folder that was given by name must be served; others are beside it.
                if folder in self.folders:
                    raise
                self._leave_out(name, folder, error)
        if self.folders and not self.entries:
            raise ArtifactError(
                f"there is no fine-tuned model in {', '.join(map(str, folders))}",
                allowed="`headstart serve` takes outputs of `headstart finetune`, or folders that contain them",
            )
        self._count()

    def entry(self, name: str) -> Entry:
        """Return a task by its name, or raise a refusal with status 404."""
        entry = self.entries.get(name)
        if entry is None:
            raise Refusal(404, "There is no task of this name. GET /v1/tasks lists the tasks.")
        return entry

    def resident(self, name: str) -> Slot | None:
        """Return the current version of a task if it is in memory, and mark it as used."""
        with self._table:
            slot = self._slots.get(name)
            if slot is not None:
                self._slots.move_to_end(name)
            return slot

    def load(self, name: str) -> Slot:
        """Return the current version of a task, loaded from its folder if it is not in memory."""
        try:
            return self._load(name)
        except HeadstartError as error:
            logger.error("the task %s cannot be loaded: %s", name, error)
            message = "This task cannot be loaded at the moment; the server's log has the reason."
            raise Refusal(503, message) from error

    def _load(self, name: str) -> Slot:
        with self._loading:
            slot = self.resident(name)
            if slot is None:
                slot = self._open(self.entry(name))
                self.telemetry.loads.inc()
                self._keep(slot)
            return slot

    def _open(self, entry: Entry) -> Slot:
        known = entry.finetuned if version_of(entry.folder) == entry.version else None
        return self.opener.open(entry.name, entry.folder, known)

    def fill(self) -> list[Slot]:
        """Load tasks in the order of their names until the cache is full; returns those in memory.

        A folder that cannot be loaded raises its error, so that the server does not start with it.
        """
        for name in sorted(self.entries):
            slot = self._load(name)
            if self.resident_bytes + slot.size > self.cache_bytes:
                break
        return self.slots()

    def slots(self) -> list[Slot]:
        """Return the tasks in memory."""
        with self._table:
            return list(self._slots.values())

    @property
    def resident_bytes(self) -> int:
        """The memory of the tasks, without shared bodies."""
        with self._table:
            return sum(slot.size for slot in self._slots.values())

    def refresh(self) -> None:
        """Look for new, replaced and removed folders. A new version that cannot be loaded leaves the old one in use."""
        folders = find_tasks(self.folders)
        for name, folder in folders.items():
            known = self.entries.get(name)
            try:
                if version_of(folder) in (self._left_out.get(name), known.version if known else None):
                    continue
                self._replace(read_entry(name, folder))
            except (HeadstartError, OSError) as error:
                self._leave_out(name, folder, error)
        for name in set(self.entries) - set(folders):
            logger.info("the task %s was removed", name)
            with self._table:
                self.entries.pop(name)
                self._slots.pop(name, None)
        with self._loading:
            parents = {entry.facts["body"] for entry in self.entries.values()}
            self.opener.release(parents, {id(slot.body) for slot in self.slots()})
        self._count()

    def _leave_out(self, name: str, folder: Path, error: Exception) -> None:
        """Say once for each version of a folder why it is not served, or not updated."""
        with suppress(OSError):
            self._left_out[name] = version_of(folder)
        logger.warning("the task %s was not %s: %s", name, "updated" if name in self.entries else "loaded", error)

    def _replace(self, entry: Entry) -> None:
        with self._loading:
            is_resident = self.resident(entry.name) is not None
            slot = self._open(entry) if is_resident else None
            if slot is not None and slot.hash != entry.hash:
                raise ArtifactError(f"{entry.folder} changed while it was loaded")
            is_new = entry.name not in self.entries
            self.entries[entry.name] = entry
            if slot is not None:
                self._keep(slot)
        logger.info("the task %s was %s: %s", entry.name, "added" if is_new else "replaced", entry.hash[:12])
        if not is_new:
            self.telemetry.replacements.inc()

    def _keep(self, slot: Slot) -> None:
        """Put a task into the table, and evict those that were not used for the longest time."""
        with self._table:
            self._slots[slot.name] = slot
            self._slots.move_to_end(slot.name)
            while len(self._slots) > 1 and sum(kept.size for kept in self._slots.values()) > self.cache_bytes:
                name, _ = self._slots.popitem(last=False)
                self.telemetry.evictions.inc()
                if not self._warned:
                    self._warned = True
                    logger.warning(
                        "the tasks in use need more than the cache of %.0f MB (%s was evicted first); requests for "
                        "evicted tasks wait for them to be loaded. Raise --cache-mb.", self.cache_bytes / 1e6, name,
                    )  # fmt: skip
        self._count()

    def _count(self) -> None:
        self.telemetry.registered.set(len(self.entries))
        self.telemetry.resident.set(len(self._slots))
        self.telemetry.resident_bytes.set(self.resident_bytes)


def find_tasks(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the fine-tuned folders by name: a given folder itself, or else (several tasks) the folders in it."""
    tasks: dict[str, Path] = {}
    for given in folders:
        if not given.is_dir():
            raise ArtifactError(f"there is no folder {given}", do="Check the path")
        is_one = artifact.is_complete(given) and artifact.read_manifest(given).get("kind") != MultitaskManifest.KIND
        inside = [given] if is_one else sorted(path for path in given.iterdir() if path.is_dir())
        for folder in inside:
            name = _task_name(folder.resolve())
            if not artifact.is_complete(folder) or (folder is not given and _is_other_kind(folder)):
                continue
            if name in tasks and tasks[name].resolve() != folder.resolve():
                raise ArtifactError(
                    f"two tasks have the name {name!r}: {tasks[name]} and {folder}",
                    allowed="A task is asked for by the name of its folder",
                    do="Rename one of the folders",
                )
            tasks[name] = folder
    return tasks


def _is_other_kind(folder: Path) -> bool:
    """True if a finished folder is readable and no fine-tuned model, such as an export or a pre-training."""
    with suppress(HeadstartError):
        return artifact.read_manifest(folder).get("kind") != FinetuneManifest.KIND
    return False


def _task_name(folder: Path) -> str:
    """Return the name of a folder; for a download, whose folder is named after a commit, that of its repository."""
    hub = name_of(folder)
    return folder.name if hub is None else hub.repository.rpartition("/")[2]


def version_of(folder: Path) -> FileVersion:
    """Return the version of the manifest of a folder, which is replaced as a whole."""
    return FileVersion.of(folder / artifact.MANIFEST)


def read_entry(name: str, folder: Path) -> Entry:
    """Read the manifest of a fine-tuned folder; its files are verified when they are loaded."""
    version = version_of(folder)
    facts = FinetuneManifest.read(folder)
    finetuned = Finetuned(folder, facts)
    require_servable(folder, finetuned)
    return Entry(name, folder, artifact.identity(folder), version, facts_of(finetuned, facts), finetuned)
