"""`headstart doctor RUN`: is my training healthy? Checks of its curve, its text and its checkpoints."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core import artifact, registry
from headstart.core.errors import ArtifactError, HeadstartError
from headstart.corpus.read import mixture
from headstart.corpus.read.built import BuiltCorpus
from headstart.corpus.read.streamed import StreamedCorpus
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tokens.shards import Shards
from headstart.training import guard, health
from headstart.training.health import Finding
from headstart.training.jsonl import read_jsonl

_SAMPLED_SENTENCES = 100_000
"""Sentences whose repetition is counted: enough for a fraction to a tenth of a percent."""
_MAX_REPEATED = 0.1
_MIN_TOKENS = 8
"""Tokens of a sentence that counts: "Amen." may occur a thousand times."""
_USEFUL_EPOCHS = 4
"""Epochs over the same text after which more of them help little (Muennighoff et al. 2023)."""
_SIGNS = {"status": "", "problem": "✗ ", "warning": "! ", "ok": "✓ "}
"""The sign of each level, in the order of display."""


def run(folder: Path, recipe: Any) -> list[Finding]:
    """Return findings about a finished or unfinished run."""
    status = _status(folder)
    if isinstance(recipe, PretrainRecipe):
        return [status, *_check_pretraining(folder, recipe), *_check_checkpoints(folder)]
    curves = sorted(folder.glob("logs/*/metrics.jsonl")) + sorted(folder.glob("work/*/logs/metrics.jsonl"))
    findings: list[Finding] = []
    for path in curves:
        # With many cells, only warnings and problems are shown.
        cell = [f for f in _check_curve(path.parent, recipe, planned=False) if f.level != "ok"]
        findings += [Finding(f.level, f"{_cell_name(path)}: {f.sentence}") for f in cell]
    return [status, *(findings or [Finding("ok", f"No problems found in {len(curves)} trained cells.")])]


def render(findings: list[Finding]) -> str:
    """Return one line per finding: the status first, then problems, warnings, and what is fine."""
    order = list(_SIGNS)
    return "\n".join(_SIGNS[f.level] + f.sentence for f in sorted(findings, key=lambda f: order.index(f.level)))


def _status(folder: Path) -> Finding:
    return Finding("status", "The run is finished." if artifact.is_complete(folder) else "The run is not finished.")


def _cell_name(curve: Path) -> str:
    """Return the name of a cell: `logs/CELL/metrics.jsonl` if finished, `work/CELL/logs/metrics.jsonl` if not."""
    return curve.parent.parent.name if curve.parent.name == "logs" else curve.parent.name


def _check_curve(logs: Path, recipe: Any, planned: bool) -> list[Finding]:
    curve = read_jsonl(logs / "metrics.jsonl")
    steps = curve[-1]["step"] if curve else 0
    quarantined, spikes = (read_jsonl(logs / name) for name in (guard.QUARANTINE, guard.SPIKES))
    return [*health.check_curve(curve, recipe.training, planned), *health.check_records(quarantined, spikes, steps)]


def _check_pretraining(folder: Path, recipe: PretrainRecipe) -> list[Finding]:
    curve = read_jsonl(folder / "logs" / "metrics.jsonl")
    objective = registry.resolve("objectives", registry.name_of("objectives", recipe.objective))
    name = getattr(objective, "token_loss", "loss")
    # With a weight of zero, the loss on tokens is not measured.
    held_out = name if any(f"validation/{name}" in line for line in curve) else "loss"
    findings = [*_check_curve(folder / "logs", recipe, planned=True), *health.check_held_out(curve, held_out)]
    shards = _shards(folder, recipe)
    if shards:
        findings += _compare_with_unigrams(curve, name, shards, artifact.is_complete(folder))
        # The shards of a streamed corpus are those of its first window.
        is_whole = not isinstance(recipe.corpus, StreamedCorpus)
        findings += _check_repetition(curve, shards, is_whole)
    return findings


def _compare_with_unigrams(curve: health.Curve, name: str, shards: list[Shards], finished: bool) -> list[Finding]:
    """Compare the held-out loss with that of a unigram model, which knows token frequencies only."""
    counts = np.sum([shard.unigrams for shard in shards], axis=0)
    probabilities = counts[counts > 0] / counts.sum()
    entropy, most_frequent = float(-(probabilities * np.log(probabilities)).sum()), float(probabilities.max())
    evaluated = [line for line in curve if f"validation/{name}" in line]
    if not evaluated:
        return []
    evaluations = [(line["step"], line[f"validation/{name}"]) for line in evaluated]
    findings = [health.check_unigrams(evaluations, name, entropy, len(counts), finished)]
    early = health.is_early(*evaluations[-1], finished)
    accuracy = evaluated[-1].get("validation/accuracy")
    if accuracy is not None and name == "loss":
        sentence = f"The held-out accuracy is {accuracy:.1%}; the most frequent token alone gives {most_frequent:.1%}."
        good = accuracy > most_frequent
        findings.append(Finding("ok" if good else "warning" if early else "problem", sentence))
    return findings


def _check_repetition(curve: health.Curve, shards: list[Shards], is_whole: bool) -> list[Finding]:
    """Return findings about repeated sentences in the text and, if the shards are all of it, the number of epochs."""
    repeated, seen = 0, set[bytes]()
    for shard in shards:
        starts = np.append(shard.sentences, shard.tokens)
        long = np.flatnonzero(np.diff(starts) >= _MIN_TOKENS)[: _SAMPLED_SENTENCES // len(shards)]
        for i in long:
            sentence = shard.read(int(starts[i]), int(starts[i + 1]))
            key = hashlib.blake2b(sentence.tobytes(), digest_size=12).digest()
            repeated += key in seen
            seen.add(key)
    sampled = repeated + len(seen)
    fraction = repeated / max(sampled, 1)
    counted = f"{fraction:.1%} of {sampled:,} sentences of {_MIN_TOKENS} tokens or more are repetitions"
    advice = ": deduplicate the text, or the model memorizes them." if fraction > _MAX_REPEATED else "."
    findings = [Finding("warning" if fraction > _MAX_REPEATED else "ok", counted + advice)]
    tokens = next((line["tokens"] for line in reversed(curve) if "tokens" in line), 0.0)
    epochs = tokens / sum(shard.tokens for shard in shards)
    if is_whole and epochs > _USEFUL_EPOCHS:
        advice = f"more than {_USEFUL_EPOCHS} epochs help little."
        findings.append(Finding("warning", f"The run has read its text {epochs:.1f} times; {advice}"))
    return findings


def _shards(folder: Path, recipe: PretrainRecipe) -> list[Shards]:
    """Return the training shards of a run, found by what they were made from; empty if they no longer exist."""
    shards: list[Shards] = []
    for part in mixture.parts_of(recipe.corpus).values():
        try:
            sources = mixture.sources(part)
            if isinstance(part, BuiltCorpus) and part.tokenizer is not None:
                shards.append(Shards(part.shards("train"), part.open_tokens("train")))
                continue
        except HeadstartError:
            return []
        prepared = part.prepared or mixture.prepared_in(recipe.corpus) or folder / "prepared"
        candidates = [
            path.parent
            for path in prepared.glob(f"train-*/{artifact.MANIFEST}")
            if json.loads(path.read_text(encoding="utf-8")).get("made_from", {}).get("sources") == sources
        ]
        if not candidates:
            return []
        shards.append(Shards(max(candidates, key=lambda path: path.stat().st_mtime)))
    return shards


def _check_checkpoints(folder: Path) -> list[Finding]:
    """Return a finding about the checkpoint from which the run would resume."""
    damaged = 0
    for path in sorted((folder / "checkpoints").glob("step-*"), reverse=True):
        try:
            artifact.verify(path, "checkpoint")
        except ArtifactError:
            damaged += 1
            continue
        verified = f"The checkpoint of step {int(path.name.removeprefix('step-')):,} verifies"
        return [
            Finding("warning", f"{verified}; {damaged} newer ones do not.")
            if damaged
            else Finding("ok", f"{verified}.")
        ]
    if damaged:
        return [Finding("problem", f"None of {damaged} checkpoints verifies.")]
    if artifact.is_complete(folder):
        return []
    return [Finding("warning", "There is no checkpoint yet: after a crash the run would start from step 0.")]
