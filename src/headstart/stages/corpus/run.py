"""Raw text → a cleaned, deduplicated, decontaminated and documented corpus, by recipe.

The engine runs in a process of its own, `headstart.stages.corpus.build`, because Daft may abort at a process's exit
after its work is done: what counts is the manifest, not the exit code.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.core import artifact, config
from headstart.core.errors import RecipeError, ResourceError, error_from_dict
from headstart.corpus.datasheet import facts as datasheet
from headstart.corpus.datasheet import inspection
from headstart.corpus.datasheet.inspection import WORK
from headstart.corpus.parts import engine
from headstart.corpus.read import readers, sources
from headstart.stages.corpus.recipe import CorpusRecipe
from headstart.stages.runs.folder import RECIPE, RunFolder

LOOKS = ("stats", "explain", "sample", "diff")
"""Words that stand where a recipe would, and look at finished corpora."""


def run(recipe: CorpusRecipe, quiet: bool = False) -> Path:
    """Build a corpus by a recipe and return its folder; an unfinished one of the same recipe is gone on with."""
    engine.load()
    folder = RunFolder(recipe.output, recipe, _inputs(recipe))
    if folder.status == "finished":
        shutil.rmtree(folder.path / WORK, ignore_errors=True)
        _retell(recipe, folder.path)
    else:
        _in_a_process(recipe, folder.path, quiet)
    return folder.path


def _retell(recipe: CorpusRecipe, folder: Path) -> None:
    """Write the datasheet anew where a person gave it another title or other answers."""
    told = {"title": recipe.title, "answers": dict(recipe.answers)}
    facts = artifact.read_manifest(folder)["facts"]
    if told.items() <= facts.items():
        return
    facts = {**facts, **told, "recipe": {**facts["recipe"], **told}}
    with artifact.amended(folder, facts=facts, recipe=config.to_dict(recipe)) as staging:
        datasheet.write(facts, staging, folder)
    artifact.write_whole(folder / RECIPE, config.to_yaml(recipe))


def look(what: str, folders: Sequence[str], *, number: int, rule: str | None, seed: int, as_json: bool) -> str:
    """Return what is to be seen of a finished corpus, or of two."""
    wanted = 2 if what == "diff" else 1
    if len(folders) != wanted:
        raise RecipeError(
            f"`headstart corpus {what}` was given {len(folders)} folders",
            allowed=f"It takes {'two' if wanted == 2 else 'one'}",
            do=f"headstart corpus {what} {' '.join(['FOLDER'] * wanted)}",
        )
    paths = [Path(folder) for folder in folders]
    found: Any
    if what == "stats":
        found = inspection.stats(paths[0])
    elif what == "explain":
        found = inspection.explain(paths[0], number, rule)
    elif what == "sample":
        found = inspection.sample(paths[0], number, seed)
    else:
        found = inspection.diff(*paths)
    if as_json or what == "diff":
        return json.dumps(found, indent=2, ensure_ascii=False)
    rendered: Mapping[str, Callable[[Any], str]] = {
        "stats": inspection.render_stats,
        "explain": inspection.render_explained,
        "sample": inspection.render_sample,
    }
    return rendered[what](found)


def _inputs(recipe: CorpusRecipe) -> dict[str, str]:
    found = {"sources": config.fingerprint(sources.identities(recipe.sources))}
    if recipe.contamination is not None:
        sets, key = recipe.contamination.sets, "contamination.sets.files"
        files = [path for entry in sets for path in readers.expand(entry.files, key)]
        found["contamination"] = config.fingerprint(readers.described(files))
    if recipe.tokenizer is not None and recipe.tokenizer.path is not None:
        found["tokenizer"] = artifact.identity(recipe.tokenizer.path)
    return found


def _in_a_process(recipe: CorpusRecipe, folder: Path, quiet: bool) -> None:
    task = json.dumps({"recipe": config.to_dict(recipe), "quiet": quiet})
    command = [sys.executable, "-m", "headstart.stages.corpus.build"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        said, _ = child.communicate(task)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    told = _told(said)
    if told is not None:
        if not any((folder / WORK / "clean").glob("part-*.json")):
            # Nothing was finished, so a mended recipe may take the folder.
            shutil.rmtree(folder / WORK, ignore_errors=True)
        raise error_from_dict(told)
    if not artifact.is_complete(folder):
        raise ResourceError(
            f"the engine's process ended with code {child.returncode} before the corpus was finished",
            allowed="What it wrote so far stays",
            do="Run the same command again; if it stops at the same place, free some memory or lower engine.workers",
        )


def _told(said: str) -> dict[str, Any] | None:
    """Return the error that the process told in its last line, if it told one."""
    lines = said.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return None
    return told.get("error") if isinstance(told, dict) else None
