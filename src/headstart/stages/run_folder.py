"""The folder of one run: whose it is, whether it is finished, and what may be done with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from headstart.core import artifact, config
from headstart.core.errors import ArtifactError, RecipeError

RECIPE, INPUTS = "recipe.yaml", "inputs.json"
_NOT_IDENTITY = ("output", "cost")
"""Sections that do not change what is computed: moving a folder or another price makes no other run."""


class RunFolder:
    """An output folder claimed for one filled recipe."""

    def __init__(self, path: Path, recipe: BaseModel, inputs: Mapping[str, str] | None = None) -> None:
        """Claim the folder, or refuse it if another recipe's run, or anything else, lies there.

        `inputs` names what the recipe reads by the hash of its content: a run is not gone on with, nor called
        finished, once the text or the checkpoint behind the same path is another.
        """
        self.path, self.kind = path, type(recipe)
        self.recipe, self.inputs = config.to_dict(recipe), dict(inputs or {})
        self.fingerprint = config.fingerprint([_identity(self.recipe), self.inputs])
        self.status = self._claim(config.to_yaml(recipe))

    def _claim(self, text: str) -> Literal["new", "unfinished", "finished"]:
        if self.path.exists() and not self.path.is_dir():
            raise ArtifactError(
                f"output is {self.path}, which is a file", allowed="It must be a folder", do="Choose another output"
            )
        recipe_path = self.path / RECIPE
        if recipe_path.is_file():
            before = self._before(recipe_path)
            if _identity(before) != _identity(self.recipe) and not self._holds_no_work():
                changed = ", ".join(_differences(before, self.recipe)[:4])
                raise ArtifactError(
                    f"{self.path} holds a run of another recipe, with other values for {changed}",
                    allowed="An output belongs to one recipe",
                    do="Choose another output, or delete that folder",
                )
            if _identity(before) == _identity(self.recipe):
                self._require_same_inputs()
                return "finished" if artifact.is_complete(self.path) else "unfinished"
        elif self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise ArtifactError(
                f"{self.path} holds files that are no run of Headstart's",
                allowed="An output is new, empty, or a run's own",
                do="Choose another output",
            )
        self._make()
        artifact.write_whole(self.path / INPUTS, json.dumps(self.inputs, indent=2) + "\n")
        artifact.write_whole(recipe_path, text)
        return "new"

    def _require_same_inputs(self) -> None:
        try:
            before = json.loads((self.path / INPUTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = None
        if before == self.inputs:
            return
        changed = [
            name for name, content in self.inputs.items() if not isinstance(before, dict) or before.get(name) != content
        ]
        raise ArtifactError(
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
            return config.to_dict(config.fill(self.kind, raw, where=str(recipe_path)))
        except RecipeError:
            return raw


def _identity(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if key not in _NOT_IDENTITY}


def _differences(a: Any, b: Any, path: str = "") -> list[str]:
    """List the dotted keys at which two recipes differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [key for key in dict.fromkeys([*a, *b]) if path or key not in _NOT_IDENTITY]
        return [d for key in keys for d in _differences(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))]
    return [] if a == b else [path]
