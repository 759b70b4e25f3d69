"""Fuzz every parser for a given time with Atheris: `python tests/attacks/fuzz/run.py --minutes 10`.

Each target runs in its own process under libFuzzer, which mutates inputs and keeps those that reach new code in
`--corpus`, so a later run continues where this one stopped. `hours.json` in that folder counts the hours of processor
time of each target. Found defects are saved in `found/<target>/` beside this file and stay there as tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from targets import LIMIT_SECONDS, TARGETS, run  # noqa: E402


def main() -> int:
    """Fuzz the chosen targets one after the other; return the number of new defects."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", help=f"some of: {', '.join(TARGETS)}; all by default")
    parser.add_argument("--minutes", type=float, default=20, help="time for all targets together")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="inputs that reach new code")
    parser.add_argument("--page", type=Path, help="write the hours and the defects found so far to this page")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        fuzz(arguments.worker, arguments.corpus, arguments.minutes * 60)
        return 0
    if arguments.page:
        arguments.page.write_text(_page(arguments.corpus), encoding="utf-8")
        return 0
    chosen = arguments.targets or list(TARGETS)
    before = _found()
    for name in chosen:
        _supervise(name, arguments.corpus, arguments.minutes / len(chosen))
    new = sorted(_found() - before)
    print(f"{len(chosen)} targets fuzzed, {len(new)} defects found")
    for path in new:
        print(f"  {path}")
    return len(new)


def fuzz(name: str, corpus: Path, seconds: float) -> None:
    """Fuzz one target in this process until the time is over; libFuzzer ends the process."""
    try:
        import atheris
    except ImportError:
        raise SystemExit("fuzzing needs Atheris: pip install atheris") from None
    with atheris.instrument_imports(include=["headstart", "yaml"]):
        import headstart.checkpoint.load
        import headstart.core.config
        import headstart.corpus.read.batches
        import headstart.corpus.read.readers
        import headstart.stages.finetune.recipe
        import headstart.stages.pretrain.recipe
        import headstart.stages.runs.manifest
        import headstart.studies.contrast
        import headstart.studies.definition
        import headstart.tasks.labelled  # noqa: F401
    seen: set[str] = set()

    def attempt(data: bytes) -> None:
        try:
            run(name, data)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            signature = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            if signature not in seen:
                seen.add(signature)
                _keep(name, data, signature)

    folder = corpus / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in TARGETS[name].seeds():
        (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    for seed in TARGETS[name].seeds():
        # The first input imports torch and more, which is no hang.
        run(name, seed)
    limits = [f"-max_total_time={int(seconds)}", f"-timeout={LIMIT_SECONDS}", "-rss_limit_mb=8000", "-max_len=65536"]
    atheris.Setup([sys.argv[0], str(folder), f"-artifact_prefix={folder}-", "-print_final_stats=1", *limits], attempt)
    atheris.Fuzz()


def _supervise(name: str, corpus: Path, minutes: float) -> None:
    """Run a target in processes of its own until its time is over: a hang or a crash ends only one of them."""
    end = time.monotonic() + minutes * 60
    corpus.mkdir(parents=True, exist_ok=True)
    while (left := end - time.monotonic()) > 2:
        start = time.monotonic()
        spent = _processor_seconds()
        command = [sys.executable, __file__, "--worker", name, "--corpus", str(corpus), "--minutes", str(left / 60)]
        with (corpus / f"{name.replace(' ', '-')}.log").open("ab") as log:
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        _count_hours(corpus, name, (_processor_seconds() - spent) / 3600)
        for left_over in corpus.glob(f"{name.replace(' ', '-')}-*-*"):
            _keep(name, left_over.read_bytes(), left_over.name)
            left_over.unlink()
        if code != 0 and time.monotonic() - start < 5:
            raise SystemExit(f"{name} cannot be fuzzed; see {log.name}")


def _page(corpus: Path) -> str:
    """Return the page about all fuzzing whose inputs are in `corpus`."""
    hours = json.loads((corpus / "hours.json").read_text())
    found = {name: len(list((HERE / "found" / name.replace(" ", "-")).glob("*"))) for name in TARGETS}
    rows = [f"| {name} | {hours.get(name, 0):.2f} | {found[name]} |" for name in TARGETS]
    return f"""# Fuzzing

**Question.** Does any input make a parser fail with anything other than a sentence?

**Answer.** In {sum(hours.values()):.1f} hours of Atheris over {len(TARGETS)} parsers, {sum(found.values())} inputs did. All are fixed, and the inputs are tests.

```bash
python tests/attacks/fuzz/run.py --minutes 60                      # fuzz; continues with the inputs of the last run
python tests/attacks/fuzz/run.py --page docs/results/fuzzing.md    # writes this page
```

| parser | processor hours | inputs that broke it |
|---|---|---|
{chr(10).join(rows)}

The inputs in `corpus parquet` have damaged metadata. pyarrow 25 ended the process when the metadata of a column was looked up (an uncaught C++ exception, or a read of invalid memory), and raised UnicodeDecodeError for names that are not UTF-8. Reading one row first raises an exception that can be explained. {date.today().isoformat()}; 2 cores, processes at low priority beside other work; hours of processor time.
"""  # noqa: E501


def _processor_seconds() -> float:
    """Return the processor time of the finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def _count_hours(corpus: Path, name: str, hours: float) -> None:
    path = corpus / "hours.json"
    total = json.loads(path.read_text()) if path.is_file() else {}
    total[name] = round(total.get(name, 0) + hours, 4)
    path.write_text(json.dumps(total, indent=2))


def _keep(name: str, data: bytes, reason: str) -> None:
    folder = HERE / "found" / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    print(f"{name}: {reason} → {path}", flush=True)


def _found() -> set[str]:
    return {str(path.relative_to(HERE)) for path in (HERE / "found").glob("*/*")}


if __name__ == "__main__":
    sys.exit(min(main(), 100))
