"""`headstart runs` and `headstart show`: every run below a folder, its state, its parents, its score and its cost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headstart.core import artifact
from headstart.core.errors import ArtifactError, HeadstartError
from headstart.evaluation.cost import duration
from headstart.stages.runs.folder import RECIPE, VERB_BY_SECTION, seconds_spent
from headstart.stages.runs.manifest import method_name

_VERBS = {
    "checkpoint of pretrain": "pretrain", "model of finetune": "finetune", "models of multitask": "multitask",
    "search index": "index", "corpus": "corpus",
    "export": "export", "probe": "probe",
}  # fmt: skip
"""The kinds of artifacts that are the output of a verb; the others are their parts."""
_PARTS = frozenset({"prepared", "cells", "work", "checkpoints", "evaluation"})
"""Folders inside a run whose artifacts belong to it."""
_CARD = "README.md"
_DEEPEST = 8


@dataclass(frozen=True)
class RunFacts:
    """What is known about one run, from its manifest or from what an unfinished run has left."""

    path: str
    verb: str
    state: str
    """finished, resumable or broken."""
    created: str = ""
    score: str = ""
    seconds: float | None = None
    kwh: float | None = None
    parents: list[str] = field(default_factory=list)
    """The runs below the same folder that this one was made from."""
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON types."""
        return asdict(self)


def find_runs(folder: Path) -> list[RunFacts]:
    """Return every run below a folder, parents before children, then by path."""
    if not folder.is_dir():
        raise ArtifactError(f"there is no folder {folder}", do="Check the path")
    paths = sorted(_run_folders(folder))
    manifests = {path: _manifest(path) for path in paths}
    identities = {artifact.identity(path): path for path, manifest in manifests.items() if isinstance(manifest, dict)}
    runs = [_facts(path, folder, manifest, identities) for path, manifest in manifests.items()]
    return sorted(runs, key=lambda run: (_depth(run, {other.path: other for other in runs}), run.path))


def table(runs: Sequence[RunFacts]) -> str:
    """Return the runs as a table for the terminal."""
    header = ("run", "verb", "state", "score", "time", "kWh", "from")
    rows = [
        (run.path, run.verb, run.state, run.score or run.problem, "" if run.seconds is None else duration(run.seconds),
         f"{run.kwh:.2g}" if run.kwh else "", ", ".join(run.parents))
        for run in runs
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


def tree(runs: Sequence[RunFacts]) -> str:
    """Return the runs as a tree: below each run those that were made from it."""
    children: dict[str, list[RunFacts]] = {}
    known = {run.path for run in runs}
    for run in runs:
        parent = next((path for path in run.parents if path in known), "")
        children.setdefault(parent, []).append(run)
    return "\n".join(_branches("", children, ""))


def card(folder: Path) -> str:
    """Return the card of a run as text, or what is known about it if it has none."""
    path = folder / _CARD
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        # The first block between two lines of dashes is for machines.
        return text.split("\n---\n", 1)[-1].strip() if text.startswith("---\n") else text.strip()
    found = next((run for run in find_runs(folder) if run.path == "."), None)
    if found is None:
        raise ArtifactError(
            f"{folder} is not a run", allowed="A run is the output folder of a verb", do="`headstart runs` lists them"
        )
    return "\n".join(f"{key}: {value}" for key, value in found.to_dict().items() if value not in ("", None, []))


def _run_folders(folder: Path) -> Iterator[Path]:
    for path, names, files in os.walk(folder):
        here = Path(path)
        names[:] = sorted(name for name in names if not name.startswith("."))
        if artifact.MANIFEST in files or RECIPE in files:
            if RECIPE in files or _is_verb(here):
                yield here
            names[:] = [name for name in names if name not in _PARTS]
        if len(here.relative_to(folder).parts) >= _DEEPEST:
            names[:] = []


def _is_verb(folder: Path) -> bool:
    manifest = _manifest(folder)
    return not isinstance(manifest, dict) or manifest.get("kind") in _VERBS


def _manifest(folder: Path) -> dict[str, Any] | str | None:
    """Return the manifest of a finished run, a sentence if it is broken, or None if there is none."""
    if not artifact.is_complete(folder):
        return None
    try:
        manifest = artifact.read_manifest(folder)
    except HeadstartError as error:
        return error.found
    missing = next((name for name in manifest["files"] if not (folder / name).is_file()), None)
    return manifest if missing is None else f"{missing} is missing"


def _facts(path: Path, root: Path, manifest: dict[str, Any] | str | None, identities: Mapping[str, Path]) -> RunFacts:
    name = path.relative_to(root).as_posix()
    if isinstance(manifest, str):
        return RunFacts(name, "", "broken", problem=manifest)
    if manifest is None:
        return RunFacts(name, _verb_of_recipe(path), "resumable", seconds=seconds_spent(path))
    index = manifest.get("index") if isinstance(manifest.get("index"), dict) else {}
    cost = manifest.get("cost") or (index or {}).get("cost") or {}
    seconds = cost.get("seconds")
    parents = {**((index or {}).get("parents") or {}), **(manifest.get("parents") or {})}
    found = {identities[value] for value in parents.values() if isinstance(value, str) and value in identities}
    return RunFacts(
        name,
        _VERBS.get(manifest.get("kind", ""), str(manifest.get("kind", ""))),
        "finished",
        str(manifest.get("created", "")),
        _score(manifest),
        # That of a corpus is by step.
        sum(seconds.values()) if isinstance(seconds, dict) else seconds,
        cost.get("kwh"),
        sorted(parent.relative_to(root).as_posix() for parent in found if parent != path),
    )


def _score(manifest: Mapping[str, Any]) -> str:
    """Return the score of a run in a few words: the chosen method's mean, or the held-out loss."""
    metrics = manifest.get("metrics") or {}
    if "validation" in metrics and isinstance(metrics["validation"], dict):
        return ", ".join(f"{name} {value:.3f}" for name, value in list(metrics["validation"].items())[:2])
    adaptation = ((manifest.get("recipe") or {}).get("adaptation") or {}).get("name")
    seeds = metrics.get(method_name(str(adaptation), manifest.get("trained_with") or ())) or []
    if not seeds:
        return ""
    name = next(iter(seeds[0]))
    mean = sum(seed[name] for seed in seeds) / len(seeds)
    return f"{name} {mean:.3f} ({len(seeds)} seeds)" if len(seeds) > 1 else f"{name} {mean:.3f}"


def _verb_of_recipe(folder: Path) -> str:
    from headstart.core import config

    try:
        sections = config.parse(folder / RECIPE)
    except HeadstartError:
        return ""
    return next((verb for section, verb in VERB_BY_SECTION.items() if section in sections), "")


def _depth(run: RunFacts, runs: Mapping[str, RunFacts], limit: int = 20) -> int:
    known = [runs[parent] for parent in run.parents if parent in runs]
    return 0 if not known or not limit else 1 + max(_depth(parent, runs, limit - 1) for parent in known)


def _branches(path: str, children: Mapping[str, Sequence[RunFacts]], indent: str) -> Iterator[str]:
    below = children.get(path, [])
    for number, run in enumerate(below):
        mark, deeper = ("└── ", "    ") if number == len(below) - 1 else ("├── ", "│   ")
        if not path:
            # Runs without a parent are not drawn as branches.
            mark = deeper = ""
        details = (run.verb, run.state, run.score or run.problem, "" if run.seconds is None else duration(run.seconds))
        yield f"{indent}{mark}{run.path}  {'  '.join(part for part in details if part)}"
        yield from _branches(run.path, children, indent + deeper)
