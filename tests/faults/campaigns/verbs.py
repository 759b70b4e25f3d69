"""`kill -9` at random moments of every verb that makes something: resumed, it ends with the same files.

Two undisturbed runs of a verb show which of its files depend on the clock. All others must be equal, byte by byte,
after any number of kills, and nothing of a killed process may be left over. Every finished run is one line of a log,
and a campaign that is started again with the same log counts what it has.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from .report import Found
from .subjects import QUICKSTART, Ground

_FINETUNE_ROWS = 24
_ESSENTIAL = (".safetensors", ".parquet", ".bin", ".usearch", "table.csv")
"""What a verb makes; at least one such file is compared."""
_TWO = ("--processes", "2")
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Reference:
    """An undisturbed run: the hashes of the files that do not depend on the clock, and its duration."""

    hashes: dict[str, str]
    seconds: float


def command(ground: Ground, verb: str, output: Path) -> list[str]:
    """Return the arguments of a tiny run of a verb."""
    if verb == "pretrain":
        return ground.command("masked_lm", output)
    if verb == "two processes":
        return [*ground.command("masked_lm", output), *_TWO]
    if verb == "finetune":
        return ground.command("gradual unfreezing", output, "data.train_rows=48", "training.eval_count=2")
    recipe = ground.work / f"{verb}.yaml"
    if not recipe.exists():
        recipe.write_text(yaml.safe_dump(_recipe(ground, verb), sort_keys=False), encoding="utf-8")
    words = {"corpus": ["corpus", "build"], "index": ["index"], "study": ["study", "run"]}[verb]
    return [*words, str(recipe), f"output={output}", *([] if verb == "study" else ["--quiet"])]


def _recipe(ground: Ground, verb: str) -> dict[str, object]:
    if verb == "corpus":
        halves = _halves(ground)
        return {
            "sources": [{"name": path.stem, "files": [str(path)], "license": "public domain"} for path in halves],
            "output": "set by the command", "tokenizer": {"vocab_size": 500}, "engine": {"workers": 1},
        }  # fmt: skip
    model = str(ground.reference("masked_lm").folder)
    if verb == "index":
        return {
            "output": "set by the command", "model": model, "corpus": {"files": [str(ground.corpus())]},
            "passages": {"min_words": 5, "limit": 3000}, "precision": "fp32",
        }  # fmt: skip
    data = {split: str(QUICKSTART / "data" / f"order-{split}.csv") for split in ("train", "validation", "test")}
    training = {"budget": "4 steps", "batch_size": 8, "max_length": 16, "eval_count": 1, "precision": "fp32"}
    return {
        "question": "Does it learn?", "output": "set by the command",
        "base": {"finetune": {
            "model": model, "task": {"kind": "classify", "text": ["text"], "label": "label"},
            "data": {**data, "train_rows": _FINETUNE_ROWS}, "training": training,
        }},
        "axes": {"adaptation": {kind: {"finetune.adaptation": kind} for kind in ("full", "features")}},
        "compare": ["adaptation"], "baselines": ["majority"], "reference": "majority", "seeds": 2, "overlap": False,
        "claims": [{"statement": "all parameters are better", "contrast": "full > features"}],
        "execution": {"workers": 1},
    }  # fmt: skip


def _halves(ground: Ground) -> list[Path]:
    """Return two files of text, so that a corpus has more than one part."""
    text = ground.corpus().read_text(encoding="utf-8")[:120_000]
    paths = [ground.work / "first.txt", ground.work / "second.txt"]
    for path, half in zip(paths, (text[:60_000], text[60_000:]), strict=True):
        if not path.exists():
            path.write_text(half, encoding="utf-8")
    return paths


def campaign(
    ground: Ground, count: int, seed: int = 0, verbs: tuple[str, ...] | None = None, log: Path | None = None
) -> Found:
    """Kill runs of the verbs `count` times in all, the same number for each verb."""
    verbs = verbs or VERBS
    found = Found(
        "`kill -9` at random moments: " + ", ".join(verbs), "the same command ends with the same files, byte by byte"
    )
    past = _past(log)
    notes = []
    for index, verb in enumerate(verbs):
        due = count // len(verbs) + (index < count % len(verbs))
        kills, runs = past.get(verb, (0, 0, []))[:2]
        found.failures += past.get(verb, (0, 0, []))[2]
        rng = random.Random(f"{seed} {verb} {runs}")
        while kills < due:
            folder = ground.fresh(f"killed-{verb.replace(' ', '-')}")
            moments, failures = _kill_until_finished(ground, verb, folder, rng, due - kills)
            kills, runs = kills + len(moments), runs + 1
            found.failures += failures
            _record(log, {"verb": verb, "kills": moments, "failures": failures})
            print(f"{verb}: {kills} of {due} kills, {len(failures)} failures in this run", flush=True)
        found.count += kills
        notes.append(f"{verb} {kills} kills in {runs} runs")
    found.notes = notes
    return found


def _kill_until_finished(
    ground: Ground, verb: str, folder: Path, rng: random.Random, most: int
) -> tuple[list[float], list[str]]:
    """Start a run again and again, killing it each time, until it ends; return the moments and what is wrong."""
    reference, moments = _reference(ground, verb), list[float]()
    while True:
        moment = rng.uniform(0, reference.seconds) if len(moments) < most else _TIMEOUT
        code, output = _run(ground, command(ground, verb, folder), moment)
        if code != -signal.SIGKILL:
            break
        moments.append(round(moment, 2))
    if code:
        return moments, [f"{verb}: {folder}: exited with {code} after {len(moments)} kills: {output[-800:]}"]
    # Started once more, a finished run removes what a process left that was killed just after it had finished.
    _run(ground, command(ground, verb, folder), _TIMEOUT)
    return moments, [f"{verb}: {folder.name}: {fault}" for fault in _faults(folder, reference)]


def _run(ground: Ground, arguments: list[str], seconds: float) -> tuple[int, str]:
    """Run the command line and kill it after some seconds; return its exit code and its output."""
    if _TWO[0] in arguments:
        return _run_launcher(ground, arguments, seconds)
    child = ground.nursery.start(arguments)
    child.wait_at_most(seconds)
    child.signal(signal.SIGKILL)
    return child.wait(), child.output()


def _run_launcher(ground: Ground, arguments: list[str], seconds: float) -> tuple[int, str]:
    """Run the launcher of several processes, which a forked process with torch's threads cannot be."""
    path = ground.work / "logs" / "launcher.log"
    with path.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "-m", "headstart", *arguments], stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
    try:
        job.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
    return job.returncode, path.read_text(encoding="utf-8", errors="replace")


def _reference(ground: Ground, verb: str) -> Reference:
    key = ("verb", verb)
    if key not in ground.references:
        hashes, seconds = list[dict[str, str]](), 0.0
        for _ in range(2):
            folder = ground.fresh(f"undisturbed-{verb.replace(' ', '-')}")
            start = time.monotonic()
            code, output = _run(ground, command(ground, verb, folder), _TIMEOUT)
            seconds = time.monotonic() - start
            assert code == 0, f"{verb}: exited with {code}: {output[-1500:]}"
            hashes.append(_hashes(folder))
        first, second = hashes
        same = {name: value for name, value in first.items() if second.get(name) == value}
        assert any(name.endswith(_ESSENTIAL) for name in same), f"{verb}: nothing to compare in {sorted(first)}"
        differing = [name for name in first if name.endswith((".safetensors", ".usearch")) and name not in same]
        assert not differing, f"{verb}: two undisturbed runs differ in {differing}"
        ground.references[key] = Reference(same, seconds)
    return ground.references[key]


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a finished run, except of its checkpoints, whose number depends on the clock."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if not {"checkpoints", "logs"} & set(Path(name).parts)
    }


def _faults(folder: Path, reference: Reference) -> list[str]:
    """Return how a finished run differs from an undisturbed one, and what is left over in it."""
    hashes = _hashes(folder)
    missing = [f"{name} is missing" for name in reference.hashes if name not in hashes]
    changed = [f"{name} differs" for name, value in reference.hashes.items() if hashes.get(name, value) != value]
    left = [
        f"{path.relative_to(folder)} is left over"
        for path in folder.rglob(".*")
        if path.name.endswith((".lock", ".staging", ".outgoing", ".removed"))
    ]
    return missing + changed + left


def _past(log: Path | None) -> dict[str, tuple[int, int, list[str]]]:
    """Return the kills, the runs and the failures of each verb that a log has."""
    past: dict[str, tuple[int, int, list[str]]] = {}
    if log is not None and log.is_file():
        for line in log.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            kills, runs, failures = past.get(run["verb"], (0, 0, []))
            past[run["verb"]] = (kills + len(run["kills"]), runs + 1, failures + run["failures"])
    return past


def _record(log: Path | None, run: dict[str, object]) -> None:
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")


VERBS = ("pretrain", "finetune", "study", "corpus", "index", "two processes")
