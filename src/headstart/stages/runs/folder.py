"""The folder of one run: whose it is, whether it is finished, and what may be done with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from headstart.core import artifact, config, renames
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.lock import FolderLock

RECIPE, INPUTS = "recipe.yaml", "inputs.json"
_NOT_IDENTITY = ("output", "cost", "engine", "max_reject_share", "title", "answers")
"""Sections that do not change what is computed: another folder, price or machine, or other words about it."""
_NOT_IDENTITY_OF_TRAINING = ("dataloader_num_workers", "parallel", "save_interval_minutes", "save_total_limit")
"""Settings of training that decide who computes and how often it is saved, so that a run may go on with others."""


class RunFolder:
    """An output folder claimed for one filled recipe."""

    def __init__(
        self, path: Path, recipe: BaseModel, inputs: Mapping[str, str] | None = None, writes: bool = True
    ) -> None:
        """Claim the folder, or refuse it if another recipe's run, another process, or anything else is there.

        `inputs` names what the recipe reads by the hash of its content: a run is not gone on with, nor called
        finished, once the text or the checkpoint behind the same path is another. Of several processes that train
        together one `writes`.
        """
        self.path, self.kind = path, type(recipe)
        self.recipe, self.inputs = config.to_dict(recipe), dict(inputs or {})
        self.fingerprint = config.fingerprint([renames.original(identity_of(self.recipe)), self.inputs])
        self.status = self._look()
        if writes and self.status != "finished":
            self._make()
            self.lock = FolderLock(self.path)
            # Whoever held it until now may have begun, or finished, in between.
            self.status = self._look()
        if writes and self.status == "new":
            artifact.write_whole(self.path / INPUTS, json.dumps(self.inputs, indent=2) + "\n")
            artifact.write_whole(self.path / RECIPE, config.to_yaml(recipe))

    def _look(self) -> Literal["new", "unfinished", "finished"]:
        """Say how far the run has come, or refuse the folder; nothing is written."""
        if self.path.exists() and not self.path.is_dir():
            raise ArtifactError(
                f"output is {self.path}, which is a file", allowed="It must be a folder", do="Choose another output"
            )
        recipe_path = self.path / RECIPE
        if recipe_path.is_file():
            before = self._before(recipe_path)
            same = identity_of(before) == identity_of(self.recipe)
            if same and self._inputs_before() == self.inputs:
                return "finished" if artifact.is_complete(self.path) else "unfinished"
            if self._holds_no_work():
                return "new"
            raise self._other_inputs() if same else self._other_recipe(before)
        # A claim writes the inputs before the recipe.
        if self.path.is_dir() and any(not e.name.startswith(".") and e.name != INPUTS for e in self.path.iterdir()):
            raise ArtifactError(
                f"{self.path} holds files that are no run of Headstart's",
                allowed="An output is new, empty, or a run's own",
                do="Choose another output",
            )
        return "new"

    def _inputs_before(self) -> Any:
        try:
            return json.loads((self.path / INPUTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _other_recipe(self, before: dict[str, Any]) -> ArtifactError:
        changed = ", ".join(_differences(identity_of(before), identity_of(self.recipe))[:4])
        return ArtifactError(
            f"{self.path} holds a run of another recipe, with other values for {changed}",
            allowed="An output belongs to one recipe",
            do="Choose another output, or delete that folder",
        )

    def _other_inputs(self) -> ArtifactError:
        before = self._inputs_before()
        known = before if isinstance(before, dict) else {}
        changed = [name for name, content in self.inputs.items() if known.get(name) != content]
        return ArtifactError(
            f"{self.path} was begun by this recipe with another {' and another '.join(changed) or 'input'}",
            allowed="A run reads the same from its beginning to its end",
            do="Choose another output, or delete that folder",
        )

    def _holds_no_work(self) -> bool:
        """Say whether a recipe failed here before it began, so that a mended one may take its place."""
        there = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        return there <= {RECIPE, INPUTS, "cost.json", "prepared"}

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(
                f"output is {self.path}, and that folder cannot be made ({error.strerror})",
                allowed="It must lie where you may write",
                do="Choose another output",
            ) from error

    def _before(self, recipe_path: Path) -> dict[str, Any]:
        """Return the recipe that lies there, with the defaults of settings that are newer than it."""
        try:
            raw = yaml.safe_load(recipe_path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            raw = None
        if not isinstance(raw, dict):
            raise ArtifactError(
                f"{recipe_path} is no recipe that can be read",
                allowed="An output is new, empty, or a run's own",
                do="Choose another output, or restore that file",
            )
        try:
            return config.to_dict(config.fill_saved(self.kind, raw, str(recipe_path)))
        except RecipeError:
            return raw


def identity_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a filled recipe decides its result: no place, no price, nothing of who computes."""
    kept = {key: value for key, value in recipe.items() if key not in _NOT_IDENTITY}
    if isinstance(kept.get("training"), dict):
        training = kept["training"].items()
        kept["training"] = {key: value for key, value in training if key not in _NOT_IDENTITY_OF_TRAINING}
    return kept


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    """List the dotted keys at which two values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            d
            for key in dict.fromkeys([*a, *b])
            for d in _differences(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if a == b else [path]
