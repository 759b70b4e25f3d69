"""Inject the full number of faults with one command; the figures are written to docs/results/reliability.md.

python tests/faults/run.py                 everything (about two hours on two cores)
python tests/faults/run.py kills ranks     some campaigns; the other rows of the page stay
python tests/faults/run.py verbs --log F   the kills of every verb; started again with the same log F, it resumes
python tests/faults/run.py --share 0.05    a twentieth, to try it; nothing is written
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

from campaigns import (
    attacks,
    bad_inputs,
    bad_numbers,
    corruption,
    determinism,
    environment,
    full_disk,
    kills,
    nodes,
    ranks,
    signals,
    store_faults,
    syscalls,
    verbs,
    worlds,
)
from campaigns.nursery import Nursery
from campaigns.report import Found
from campaigns.subjects import Ground

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "reliability.md"
RECORDS = PAGE.with_suffix(".json")
# The rows of the page in order: the campaign and its number of faults.
CAMPAIGNS: dict[str, tuple[Callable[[Ground, int], Found], int]] = {
    "kills": (kills.campaign, 200),
    "background": (kills.background, 100),
    "verbs": (verbs.campaign, 200),
    "syscalls": (lambda ground, count: syscalls.campaign(ground, None if count == 10_000 else count), 10_000),
    "ranks": (ranks.campaign, 50),
    "nodes": (nodes.campaign, 20),
    "partitions": (nodes.partitions, 3),
    "worlds": (lambda ground, count: worlds.campaign(ground, worlds.WORKERS[: max(1, count // 4)]), 12),
    "corruption": (corruption.campaign, 1000),
    "numbers": (bad_numbers.campaign, 100),
    "disk": (full_disk.campaign, 20),
    "environment": (environment.campaign, 16),
    "inputs": (bad_inputs.campaign, 2000),
    "stores": (store_faults.campaign, 300),
    "checkpoints": (attacks.checkpoints, 180),
    "recipes": (attacks.recipes, 200),
    "sigterm": (signals.terminated, 20),
    "pauses": (signals.paused, 20),
    "clock": (signals.jumping_clock, 20),
    "determinism": (determinism.campaign, 24),
}
_HEAD = """# Reliability

Faults that a run survives, injected into real processes. Every run has dropout, random masks, shuffling and gradient accumulation. The subjects are masked_lm (modernbert, two row lengths), causal_lm (gpt2, Muon), a mixture of span corruption and prefix LM on T5, and a fine-tuning run with gradual unfreezing. "Bit-identical" means that every line of the curve and the weight files equal those of an undisturbed run.

`python tests/faults/run.py` repeats them; a few of each are part of the test suite (`tests/faults/test_faults.py`).

| fault | tried | survived | goal | how |
|---|---|---|---|---|
"""  # noqa: E501


def main() -> None:
    """Run the named campaigns, or all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"any of: {', '.join(CAMPAIGNS)}")
    parser.add_argument(
        "--share", type=float, default=1.0, help="fraction of the full number; below 1 nothing is written"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="a file to which `verbs` adds a line for every finished run")
    given = parser.parse_args()
    unknown = set(given.names) - set(CAMPAIGNS)
    if unknown:
        parser.error(f"unknown campaign: {', '.join(sorted(unknown))}")
    work = Path(tempfile.mkdtemp(prefix="headstart-faults-"))
    failed = False
    with Nursery(work / "logs") as nursery:
        ground = Ground(work, nursery)
        for name in given.names or CAMPAIGNS:
            campaign, count = CAMPAIGNS[name]
            if given.share < 1:
                count = max(1, round(count * given.share))
            start = time.monotonic()
            found = (
                verbs.campaign(ground, count, given.seed, log=given.log) if name == "verbs" else campaign(ground, count)
            )
            found.seconds = time.monotonic() - start
            failed |= bool(found.failures)
            print(f"{found.row()}  {found.seconds:.0f} s", flush=True)
            print("".join(f"  {failure}\n" for failure in found.failures[:20]), end="", flush=True)
            if given.share == 1:
                _write(name, found)
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if failed else 0)


def _write(name: str, found: Found) -> None:
    """Add one row to the page, which keeps the rows measured before."""
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.is_file() else {}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    records[name] = asdict(found) | {"date": date.today().isoformat(), "machine": machine}
    RECORDS.write_text(json.dumps(records, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fields = set(asdict(found))
    rows = [
        (Found(**{key: value for key, value in records[key_].items() if key in fields}), records[key_])
        for key_ in CAMPAIGNS
        if key_ in records
    ]
    lines = [row.row() for row, _ in rows]
    faults = [f"- {row.fault}: {failure}" for row, _ in rows for failure in row.failures[:5]]
    when = sorted({(record["date"], record["machine"]) for _, record in rows})
    messages = [f"- {fault}: {text}" for row, _ in rows for fault, text in row.messages.items()]
    tail = "\nMeasured " + "; ".join(f"{day}, {machine}" for day, machine in when) + ".\n"
    if messages:
        tail += "\n## What a run says\n\n" + "\n".join(messages) + "\n"
    if faults:
        tail += "\n## What did not survive\n\n" + "\n".join(faults) + "\n"
    PAGE.write_text(_HEAD + "\n".join(lines) + "\n" + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
