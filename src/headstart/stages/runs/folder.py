"""The output folder of one run: which recipe it belongs to, how far the run is, and who may write to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from headstart.checkpoint.names import Kind, repin
from headstart.core import artifact, config, renames
from headstart.core.errors import ArtifactError, HeadstartError, RecipeError
from headstart.core.lock import LOCK, FolderLock
from headstart.core.recipes import text as recipe_text
from headstart.core.recipes import variables
from headstart.stages.runs.manifest import MACHINES, read_machines
from headstart.training.budget import Budget

RECIPE, INPUTS, COST = "recipe.yaml", "inputs.json", "cost.json"
VERB_BY_SECTION = {
    "question": "study", "sources": "corpus", "objective": "pretrain", "task": "finetune",
    "tasks": "multitask", "passages": "index",
}  # fmt: skip
"""The verb of a recipe, by the first of these sections that it has."""
_NOT_IDENTITY = ("output", "cost", "engine", "max_reject_share", "title", "answers")
"""Sections that do not change the result: the output folder, prices, the machine, descriptions."""
_NOT_IDENTITY_OF_TRAINING = (
    "activation_checkpointing", "async_save", "checkpoint_store", "dataloader_num_workers", "ddp_timeout", "device",
    "gather_dtype", "parallel", "reduce_dtype", "report_to", "save_interval_minutes", "save_keep_steps",
    "save_total_limit", "shard_size", "snapshots",
)  # fmt: skip
"""Training settings that change nothing or only the rounding, so a run may be resumed with other values."""

_ADDED_TO_TRAINING: dict[str, Any] = {
    "shuffle_buffer_tokens": None, "shuffle_block_tokens": 2**21, "tf32": None,
}  # fmt: skip
"""Training settings that came later, with their defaults. At its default, a setting does not count, so that the hashes
of earlier runs stay the same."""
_BUDGET = "training.budget"
_VARIABLE = "variable "
"""Prefix of the name of a variable among the inputs."""

RecipeT = TypeVar("RecipeT", bound=BaseModel)
Status = Literal["new", "unfinished", "finished"]


def pin_recipe(recipe: RecipeT, names: Mapping[str, Kind]) -> RecipeT:
    """Return a recipe whose names on the Hub have their commits: those of the run in its output, if it has begun.

    Args:
        recipe: the filled recipe.
        names: the dotted keys of settings that may be names, at most two levels deep, and what they name.
    """
    output: Path = recipe.output  # type: ignore[attr-defined]
    begun = _read_begun(output / RECIPE)
    for key, kind in names.items():
        section, _, field = key.rpartition(".")
        owner = getattr(recipe, section) if section else recipe
        value = getattr(owner, field, None)
        if value is None:
            continue
        saved = begun.get(section) if section else begun
        previous = saved.get(field) if isinstance(saved, dict) else None
        name = type(value)(repin(str(value), previous if isinstance(previous, str) else None, kind))
        if name != value:
            changed = owner.model_copy(update={field: name})
            recipe = recipe.model_copy(update={section: changed}) if section else changed
    return recipe


def seconds_spent(folder: Path) -> float | None:
    """Return the seconds that the record of the cost in a folder counts; None if there is none that can be read."""
    try:
        return float(json.loads((folder / COST).read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_begun(path: Path) -> dict[str, Any]:
    """Return the recipe with which a run has begun; empty if there is none that can be read."""
    if path.is_file():
        with suppress(HeadstartError):
            return config.parse(path)
    return {}


def require_free(target: Path, kind: str, inputs: Sequence[Path], overwrite: bool) -> None:
    """Refuse to replace anything but an earlier artifact of the same kind, and that only if `overwrite` is set.

    Args:
        target: the folder to create.
        kind: the kind of the artifact.
        inputs: folders that are read, which the target must not replace.
        overwrite: replace an earlier artifact.
    """
    if any(target.resolve() == path.resolve() for path in inputs):
        raise ArtifactError(f"the output {target} is also the model", do="Choose another output")
    if not target.exists():
        return
    if not artifact.is_complete(target) or artifact.read_manifest(target).get("kind") != kind:
        raise ArtifactError(
            f"{target} exists already and is not an output of `headstart {kind}`", do="Choose another output"
        )
    if not overwrite:
        raise ArtifactError(f"{target} exists already", do="Choose another output, or pass --overwrite")


class OtherRun(ArtifactError):
    """The folder belongs to a run of another recipe, or of this one with other inputs."""


class RunFolder:
    """The output folder of one filled recipe, locked while the run is in progress.

        with RunFolder(recipe.output, recipe, inputs) as folder:
            if folder.status != "finished":
                train(folder.path)

    Entering the block refuses a folder that belongs to another recipe, is being written by another process, or
    contains other files. The lock is released, and its file removed, when the block ends.
    """

    status: Status
    """How far the run is; known once the block is entered."""

    def __init__(
        self, path: Path, recipe: BaseModel, inputs: Mapping[str, str] | None = None, writes: bool = True
    ) -> None:
        """Describe the run; nothing is read or written yet.

        Args:
            path: the output folder.
            recipe: the filled recipe.
            inputs: the content hash of everything that the recipe reads, by name. A run is neither resumed nor
                considered finished if the text or the checkpoint behind the same path has changed.
            writes: False for the processes of a distributed run that only read the folder.
        """
        self.path, self.kind, self.writes = path, type(recipe), writes
        self.recipe, self.inputs = config.to_saved(recipe), dict(inputs or {})
        self.fingerprint = config.fingerprint([renames.original(identity_of(self.recipe)), self.inputs])
        self._recorded = self.inputs | {
            _VARIABLE + name: content for name, content in variables.hashes(identity_of(self.recipe)).items()
        }
        self._filled, self._lock = recipe, FolderLock(path)

    def __enter__(self) -> RunFolder:
        self.status = self._inspect()
        if not self.writes:
            return self
        if self.status == "finished":
            self._clear_leftovers()
            return self
        self._make()
        self._lock.acquire()
        try:
            # The previous holder of the lock may have started or finished the run in the meantime.
            self.status = self._inspect()
            if self.status == "new":
                artifact.write_whole(self.path / INPUTS, json.dumps(self._recorded, indent=2) + "\n")
                artifact.write_whole(self.path / RECIPE, config.to_yaml(self._filled, saved=True))
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _inspect(self) -> Status:
        """Return how far the run is, or refuse the folder; nothing is written."""
        if self.path.exists() and not self.path.is_dir():
            raise ArtifactError(
                f"output is {self.path}, which is a file", allowed="It must be a folder", do="Choose another output"
            )
        recipe_path = self.path / RECIPE
        if recipe_path.is_file():
            previous = self._previous_recipe(recipe_path)
            same = self._is_same(previous, self.recipe) or self._resumes_explicitly(previous)
            if same and not self._changed_inputs():
                return "finished" if artifact.is_complete(self.path) else "unfinished"
            if self._has_no_work():
                return "new"
            raise self._other_inputs() if same else self._other_recipe(previous)
        # The inputs are written before the recipe, so a killed process may leave them alone.
        if self.path.is_dir() and any(not e.name.startswith(".") and e.name != INPUTS for e in self.path.iterdir()):
            raise ArtifactError(
                f"{self.path} contains files that do not belong to a Headstart run",
                allowed="An output folder is new, empty, or the folder of the same run",
                do="Choose another output",
            )
        return "new"

    def _is_same(self, previous: dict[str, Any], recipe: dict[str, Any]) -> bool:
        """True if the recipe in the folder is the given one: as it is written, or with its variables expanded."""
        if identity_of(previous) == identity_of(variables.written(recipe)):
            return True
        return identity_of(config.expand_saved(previous, self.path)) == identity_of(recipe)

    def _resumes_explicitly(self, previous: dict[str, Any]) -> bool:
        """True if the run began with `training.precision: auto` and the recipe now sets what that became.

        Then the checkpoints have the fingerprint of the recipe with `auto`.
        """
        training, before = (recipe.get("training") for recipe in (self.recipe, previous))
        if not isinstance(training, dict) or not isinstance(before, dict) or before.get("precision") != "auto":
            return False
        machines = read_machines(self.path)
        as_begun = {**self.recipe, "training": {**training, "precision": "auto"}}
        if not machines or machines[-1].precision != training.get("precision") or not self._is_same(previous, as_begun):
            return False
        self.fingerprint = config.fingerprint([renames.original(identity_of(as_begun)), self.inputs])
        return True

    def _changed_inputs(self) -> list[str]:
        """Return the names of the inputs, and of the variables, whose content is not that with which the run began."""
        try:
            previous = json.loads((self.path / INPUTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            previous = None
        if not isinstance(previous, dict):
            return ["its inputs"]
        # A run of an earlier version recorded no variables: its recipe has their values.
        recorded = {
            name: content for name, content in self._recorded.items() if name in previous or name in self.inputs
        }
        return [name for name in recorded | previous if recorded.get(name) != previous.get(name)]

    def _other_recipe(self, previous: dict[str, Any]) -> OtherRun:
        ways = (variables.written(self.recipe), self.recipe)
        differences = min((_differences(identity_of(previous), identity_of(recipe)) for recipe in ways), key=len)
        if differences == [_BUDGET] and artifact.is_complete(self.path) and self._is_longer(previous):
            return self._longer_budget(previous)
        changed = ", ".join(differences[:4])
        return OtherRun(
            f"{self.path} contains a run of another recipe, which differs in {changed}",
            allowed="An output folder belongs to one recipe",
            do="Choose another output, or delete that folder",
        )

    def _is_longer(self, previous: dict[str, Any]) -> bool:
        """True if the recipe has a larger budget than the run in the folder, or one in another unit."""
        before, now = (Budget.parse(recipe["training"]["budget"]) for recipe in (previous, self.recipe))
        return now.unit != before.unit or now.amount > before.amount

    def _longer_budget(self, previous: dict[str, Any]) -> OtherRun:
        """Return an error that says how to train a finished run further."""
        before, now = (recipe["training"]["budget"] for recipe in (previous, self.recipe))
        if "backbone" in self.recipe:
            start = f"`backbone: {{family: checkpoint, path: {self.path}}}`"
            start += ", and remove warm_start" if self.recipe.get("warm_start") else ""
        else:
            start = f"`model: {self.path}`"
        return OtherRun(
            f"{self.path} contains a finished run with training.budget {before!r}, and the recipe now has {now!r}",
            allowed="The learning rate of a run is planned for its whole budget, so a finished run is not resumed",
            do=f"To train its weights further, set another output and {start}. To train with the new budget from the "
            "start, choose another output",
        )

    def _other_inputs(self) -> OtherRun:
        changed = " and ".join(self._changed_inputs())
        return OtherRun(
            f"{self.path} was started with this recipe, but the content of {changed} has changed since",
            allowed="A run reads the same inputs from start to end",
            do="Choose another output, or delete that folder",
        )

    def _has_no_work(self) -> bool:
        """True if a run failed here before it computed anything, so that a corrected recipe may use the folder."""
        present = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        return present <= {RECIPE, INPUTS, MACHINES, COST, "prepared", "stream", "stream.jsonl"}

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(
                f"output is {self.path}, and that folder cannot be created ({error.strerror})",
                allowed="You need write permission there",
                do="Choose another output",
            ) from error

    def _clear_leftovers(self) -> None:
        """Remove the lock file and the staging folder of a process that was killed just after it finished the run."""
        if (self.path / LOCK).exists():
            # Another process may still be publishing, or the folder may be read-only: then everything stays.
            with suppress(ArtifactError, OSError), self._lock:
                artifact.discard_staging(self.path)

    def _previous_recipe(self, recipe_path: Path) -> dict[str, Any]:
        """Return the recipe in the folder, with defaults for settings that did not exist when it was written."""
        try:
            raw = recipe_text.read_saved(recipe_path)
        except RecipeError:
            raw = None
        if not isinstance(raw, dict):
            raise ArtifactError(
                f"{recipe_path} cannot be read as a recipe",
                allowed="An output folder is new, empty, or the folder of the same run",
                do="Choose another output, or restore that file",
            )
        try:
            return config.to_dict(config.fill(self.kind, renames.upgrade(raw), str(recipe_path)))
        except RecipeError:
            return raw


def identity_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a filled recipe that determines its result, without output folder, prices and machine."""
    kept = {key: value for key, value in recipe.items() if key not in _NOT_IDENTITY}
    if isinstance(kept.get("training"), dict):
        training = kept["training"].items()
        kept["training"] = {
            key: value
            for key, value in training
            if key not in _NOT_IDENTITY_OF_TRAINING and _ADDED_TO_TRAINING.get(key, ...) != value
        }
    return kept


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Return the dotted keys at which two values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            difference
            for key in dict.fromkeys([*a, *b])
            for difference in _differences(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if a == b else [path]
