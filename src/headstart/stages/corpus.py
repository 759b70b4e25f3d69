"""Raw text → a cleaned, deduplicated, decontaminated and documented corpus, by recipe.

The engine runs in a process of its own, `headstart.stages.corpus_build`, because Daft may abort at a process's exit
after its work is done: what counts is the manifest, not the exit code.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from headstart.core import artifact, config
from headstart.core.config import Section
from headstart.core.errors import RecipeError, ResourceError, told_elsewhere
from headstart.core.registry import suggest
from headstart.corpus import datasheet, engine, inspection, readers, sources
from headstart.corpus.cleaning import CleanConfig
from headstart.corpus.contamination import ContaminationConfig
from headstart.corpus.duplicates import DuplicatesConfig
from headstart.corpus.engine import EngineConfig
from headstart.corpus.inspection import WORK
from headstart.corpus.lines import LinesConfig
from headstart.corpus.proportions import MixtureConfig
from headstart.corpus.quality import Quality
from headstart.corpus.questions import QUESTIONS
from headstart.corpus.sources import SourceConfig
from headstart.stages.run_folder import RECIPE, RunFolder
from headstart.tokens.settings import TokenizerConfig

LOOKS = ("stats", "explain", "sample", "diff")
"""Words that stand where a recipe would, and look at finished corpora."""


class ReadingConfig(Section):
    """How raw files are read."""

    longest_mb: float = Field(64, gt=0, description="a longer line, record or page is rejected, and never held")
    part_mb: float = Field(64, gt=0, description="text in a part, the unit of work and of going on after a crash")


class CorpusRecipe(Section):
    """A whole corpus."""

    verb: ClassVar[str] = "corpus"

    seed: int = 0
    output: Path
    title: str = Field("A text corpus", description="the corpus's name in its datasheet")
    sources: list[SourceConfig] = Field(min_length=1, description="where the text comes from; the first is preferred")
    max_reject_share: float = Field(0.01, ge=0, le=1, description="share of unreadable rows past which the run fails")
    reading: ReadingConfig = ReadingConfig()
    clean: CleanConfig = CleanConfig()
    contamination: ContaminationConfig | None = Field(None, description="evaluation sets that must not be in it")
    duplicates: DuplicatesConfig | None = Field(DuplicatesConfig(), description="documents that stand there twice")
    lines: LinesConfig | None = Field(LinesConfig(), description="lines that stand in many documents")
    mixture: MixtureConfig = MixtureConfig()
    validation: float = Field(0.005, ge=0, le=0.5, description="share of documents held out, by hash")
    tokenizer: TokenizerConfig | None = Field(None, description="write token shards as well, by this tokenizer")
    answers: dict[str, str] = Field({}, description="answers for the datasheet, by the names of its blanks")
    engine: EngineConfig = EngineConfig()

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, value: list[SourceConfig]) -> list[SourceConfig]:
        config.require_own_names([source.name for source in value], "source")
        return value

    @field_validator("answers")
    @classmethod
    def _answers_have_questions(cls, value: dict[str, str]) -> dict[str, str]:
        known = [name for asked in QUESTIONS.values() for name in asked]
        strange = next((name for name in value if name not in known), None)
        if strange:
            hint = suggest(strange, known) or "."
            raise ValueError(f"there is no question {strange!r}{hint} Known: {', '.join(known)}.")
        return value

    @model_validator(mode="after")
    def _exceptions_are_rules(self) -> CorpusRecipe:
        if self.clean.quality is not None:
            try:
                Quality(self.clean.quality, {source.name: source.without for source in self.sources})
            except RecipeError as error:
                raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _weights_are_whole(self) -> CorpusRecipe:
        bare = [source.name for source in self.sources if source.weight is None]
        if bare and len(bare) < len(self.sources):
            raise ValueError(f"source {bare[0]!r} has no weight and others have; give one to all of them, or to none.")
        return self

    @model_validator(mode="after")
    def _there_is_a_tokenizer_to_extend(self) -> CorpusRecipe:
        settings = self.tokenizer
        if settings is not None and settings.extend is not None and settings.path is None:
            raise ValueError(
                f"tokenizer.extend is {settings.extend}, and there is no tokenizer to extend. Set tokenizer.path, or "
                "leave out tokenizer.extend: one that is trained anew knows the corpus's words."
            )
        return self


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
    command = [sys.executable, "-m", "headstart.stages.corpus_build"]
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
        raise told_elsewhere(told)
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
