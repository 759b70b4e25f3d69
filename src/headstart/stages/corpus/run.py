"""Raw text → a cleaned, deduplicated, decontaminated and documented corpus.

The engine runs in a separate process, `headstart.stages.corpus.build`, because Daft may abort when a process exits
after its work is done. The manifest decides whether the corpus is complete, not the exit code.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from headstart.core import artifact, config, renames
from headstart.core.errors import ResourceError, error_from_dict
from headstart.core.recipes import variables
from headstart.corpus.datasheet import facts as datasheet
from headstart.corpus.datasheet.inspection import WORK
from headstart.corpus.parts import engine
from headstart.stages.corpus.recipe import CorpusRecipe, inputs_of
from headstart.stages.runs.folder import RECIPE, RunFolder


def run(recipe: CorpusRecipe, quiet: bool = False) -> Path:
    """Build a corpus from a recipe, or resume an unfinished one of the same recipe, and return its folder."""
    engine.load()
    inputs = inputs_of(recipe)
    with RunFolder(recipe.output, recipe, inputs) as folder:
        if folder.status == "finished":
            shutil.rmtree(folder.path / WORK, ignore_errors=True)
            _update_datasheet(recipe, folder.path)
        else:
            _build(recipe, folder.path, inputs, quiet)
    return folder.path


def _update_datasheet(recipe: CorpusRecipe, folder: Path) -> None:
    """Write the datasheet of a finished corpus again if the recipe has another title or other answers."""
    saved = variables.written(config.to_saved(recipe))
    answers = {"title": saved["title"], "answers": saved["answers"]}
    facts = artifact.read_manifest(folder)["facts"]
    if answers.items() <= facts.items():
        return
    described = {**renames.upgrade(facts), "recipe": renames.upgrade(facts["recipe"]) | answers}
    facts = variables.written(described | answers)
    with artifact.amended(folder, facts=facts, recipe=config.to_saved(recipe)) as staging:
        datasheet.write(facts, staging.path, folder)
    artifact.write_whole(folder / RECIPE, config.to_yaml(recipe, saved=True))


def _build(recipe: CorpusRecipe, folder: Path, inputs: dict[str, str], quiet: bool) -> None:
    """Build the corpus in a separate process, and raise the error that it reports."""
    filled = config.to_dict(recipe)
    task = json.dumps({"recipe": filled, "variables": variables.to_json(filled), "inputs": inputs, "quiet": quiet})
    command = [sys.executable, "-m", "headstart.stages.corpus.build"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = child.communicate(task)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    error = _reported_error(output)
    if error is not None:
        if not any((folder / WORK / "clean").glob("part-*.json")):
            # No part is finished, so the folder can be reused with a corrected recipe.
            shutil.rmtree(folder / WORK, ignore_errors=True)
        raise error_from_dict(error)
    if not artifact.is_complete(folder):
        raise ResourceError(
            f"the engine's process exited with code {child.returncode} before the corpus was finished",
            allowed="The finished parts are kept",
            do="Run the same command again to resume; if it fails again, free memory or lower engine.workers",
        )


def _reported_error(output: str) -> dict[str, Any] | None:
    """Return the error that the process reported in the last line of its output, or None."""
    lines = output.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return None
    return report.get("error") if isinstance(report, dict) else None
