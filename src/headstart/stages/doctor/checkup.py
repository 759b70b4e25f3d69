"""`headstart doctor RUN`: is my training healthy? Its curve, its text and its checkpoints, said in sentences."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core import artifact, registry
from headstart.core.errors import ArtifactError, HeadstartError
from headstart.corpus.read import mixture, readers
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tokens.shards import Shards
from headstart.training import guard, health
from headstart.training.health import Remark
from headstart.training.progress import read_curve

_LOOKED_AT = 100_000
"""Sentences whose repetition is counted: enough for a share to one tenth of a per cent."""
_TOO_OFTEN = 0.1
_EARLY = 500
"""Updates before which frequencies are all that a network can be expected to know."""
_SHORTEST = 8
"""Tokens of a sentence that counts: "Amen." may stand a thousand times."""
_WORTH_READING = 4
"""Passes over the same text after which more of them teach little (Muennighoff et al. 2023)."""


def run(folder: Path, recipe: Any) -> list[Remark]:
    """Look at a run, finished or under way, and return what is to be said of it."""
    if isinstance(recipe, PretrainRecipe):
        return [*_standing(folder), *_pretraining(folder, recipe), *_checkpoints(folder)]
    curves = sorted(folder.glob("logs/*/metrics.jsonl")) + sorted(folder.glob("work/*/logs/metrics.jsonl"))
    found = _standing(folder)
    for path in curves:
        remarks = _trained(path.parent, recipe, planned=False)
        # Of many cells, only what is amiss is told.
        found += [Remark(r.verdict, f"{path.parent.name}: {r.sentence}") for r in remarks if r.verdict != "good"]
    return found if len(found) > 1 else [*found, Remark("good", f"Nothing is amiss in {len(curves)} trained cells.")]


def render(remarks: list[Remark]) -> str:
    """Say it in lines, the grave first."""
    order = {"bad": 0, "look": 1, "good": 2}
    signs = {"bad": "✗", "look": "!", "good": "✓"}
    return "\n".join(f"{signs[r.verdict]} {r.sentence}" for r in sorted(remarks, key=lambda r: order[r.verdict]))


def _standing(folder: Path) -> list[Remark]:
    return [Remark("good", "It is finished." if artifact.is_complete(folder) else "It is not finished.")]


def _trained(logs: Path, recipe: Any, planned: bool) -> list[Remark]:
    curve = read_curve(logs / "metrics.jsonl")
    steps = curve[-1]["step"] if curve else 0
    quarantined, spikes = (guard.read(logs / name) for name in (guard.QUARANTINE, guard.SPIKES))
    return [*health.of_curve(curve, recipe.training, planned), *health.of_records(quarantined, spikes, steps)]


def _pretraining(folder: Path, recipe: PretrainRecipe) -> list[Remark]:
    curve = read_curve(folder / "logs" / "metrics.jsonl")
    objective = registry.resolve("objectives", recipe.objective.name)  # type: ignore[attr-defined]
    name = getattr(objective, "token_loss", "loss")
    found = [*_trained(folder / "logs", recipe, planned=True), *health.of_held_out(curve, name)]
    shards = _shards(folder, recipe)
    if shards:
        found += [*_against_frequencies(curve, name, shards), *_repetition(curve, shards)]
    return found


def _against_frequencies(curve: health.Curve, name: str, shards: list[Shards]) -> list[Remark]:
    """Compare what was learnt with a model that knows how often each token occurs and nothing else."""
    counts = np.sum([one.unigrams for one in shards], axis=0)
    shares = counts[counts > 0] / counts.sum()
    entropy, commonest = float(-(shares * np.log(shares)).sum()), float(shares.max())
    measured = [line for line in curve if f"validation/{name}" in line]
    if not measured:
        return []
    step, loss = measured[-1]["step"], measured[-1][f"validation/{name}"]
    said = f"The held-out {name} is {loss:.2f} nats, and the frequencies of tokens alone give {entropy:.2f}"
    if loss < entropy - 0.1:
        found = [Remark("good", f"{said}: {entropy - loss:.2f} have been learnt.")]
    elif step < _EARLY:
        found = [Remark("look", f"{said}: it is early.")]
    else:
        found = [
            Remark("bad", f"{said}: nothing else has been learnt. Another learning rate is the first thing to try.")
        ]
    accuracy = measured[-1].get("validation/accuracy")
    if accuracy is not None and name == "loss":
        said = f"{accuracy:.1%} of hidden tokens are guessed; always naming the commonest gives {commonest:.1%}."
        found.append(Remark("good" if accuracy > commonest else "look" if step < _EARLY else "bad", said))
    return found


def _repetition(curve: health.Curve, shards: list[Shards]) -> list[Remark]:
    """Say how much of the text stands there twice, and how often it has been read."""
    repeated, seen = 0, set[bytes]()
    for one in shards:
        starts = np.append(one.sentences, one.tokens)
        long = np.flatnonzero(np.diff(starts) >= _SHORTEST)[: _LOOKED_AT // len(shards)]
        for place in long:
            sentence = one.read(int(starts[place]), int(starts[place + 1]))
            key = hashlib.blake2b(sentence.tobytes(), digest_size=12).digest()
            repeated += key in seen
            seen.add(key)
    looked_at = repeated + len(seen)
    share = repeated / max(looked_at, 1)
    said = f"{share:.1%} of {looked_at:,} sentences of {_SHORTEST} tokens or more have stood in the text before"
    advice = ": deduplicate it, or the model learns them by heart." if share > _TOO_OFTEN else "."
    found = [Remark("look" if share > _TOO_OFTEN else "good", said + advice)]
    read = next((line["tokens"] for line in reversed(curve) if "tokens" in line), 0.0)
    passes = read / sum(one.tokens for one in shards)
    if passes > _WORTH_READING:
        said = f"The text has been read {passes:.1f} times; more than {_WORTH_READING} passes teach little."
        found.append(Remark("look", said))
    return found


def _shards(folder: Path, recipe: PretrainRecipe) -> list[Shards]:
    """Open the training text of a run where it still lies, by what it was made from; empty where it is gone."""
    found: list[Shards] = []
    for part in mixture.parts_of(recipe.corpus).values():
        try:
            sources = readers.sources(part)
        except HeadstartError:
            return []
        home = part.prepared or mixture.prepared_in(recipe.corpus) or folder / "prepared"
        made = [
            path.parent
            for path in home.glob(f"train-*/{artifact.MANIFEST}")
            if json.loads(path.read_text(encoding="utf-8")).get("made_from", {}).get("sources") == sources
        ]
        if not made:
            return []
        found.append(Shards(max(made, key=lambda path: path.stat().st_mtime)))
    return found


def _checkpoints(folder: Path) -> list[Remark]:
    """Say which checkpoint a run would go on from."""
    torn = 0
    for path in sorted((folder / "checkpoints").glob("step-*"), reverse=True):
        try:
            artifact.verify(path, "checkpoint")
        except ArtifactError:
            torn += 1
            continue
        said = f"The checkpoint of step {int(path.name.removeprefix('step-')):,} verifies"
        return [Remark("look", f"{said}; {torn} newer ones are torn.") if torn else Remark("good", f"{said}.")]
    if torn:
        return [Remark("bad", f"None of {torn} checkpoints verifies.")]
    return (
        []
        if artifact.is_complete(folder)
        else [Remark("look", "There is no checkpoint yet: a crash would begin anew.")]
    )
