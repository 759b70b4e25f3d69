"""Shared by the scripts in this folder: run `headstart`, read its manifests, and write tables into a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def headstart(arguments: Sequence[str], threads: int) -> int:
    """Print one `headstart` command, run it with a number of threads, and return its exit code."""
    return _start(arguments, threads).wait()


def processor_seconds(arguments: Sequence[str], threads: int) -> float:
    """Run one command and return its processor time in seconds. Exits the program if it fails."""
    started = _start(arguments, threads)
    _, status, usage = os.wait4(started.pid, 0)
    if status:
        sys.exit(1)
    return usage.ru_utime + usage.ru_stime


def _start(arguments: Sequence[str], threads: int) -> subprocess.Popen[bytes]:
    print("headstart", " ".join(arguments), flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen([sys.executable, "-m", "headstart", *arguments], env=environment)


def run_all(commands: Sequence[Sequence[str]], jobs: int) -> None:
    """Run commands in parallel, one thread each; finished runs return at once. Exits the program if one fails."""
    with ThreadPoolExecutor(jobs) as pool:
        if any(pool.map(lambda arguments: headstart(arguments, 1), commands)):
            sys.exit(1)


def is_finished(folder: Path) -> bool:
    """Return True if a run is complete."""
    return (folder / "headstart.json").is_file()


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a finished run."""
    facts: dict[str, Any] = json.loads((folder / "headstart.json").read_text(encoding="utf-8"))
    return facts


def score(values: Sequence[float]) -> str:
    """Return the mean and the half-width of the 95 % interval over seeds, in points."""
    from headstart.evaluation.significance import interval

    summary = interval(list(values))
    if not summary.sd or summary.high is None:
        return f"{100 * summary.mean:.1f}"
    return f"{100 * summary.mean:.1f} ± {100 * (summary.high - summary.mean):.1f}"


def cost_table(parts: dict[str, list[Path]]) -> str:
    """Return a table with the total cost of the finished runs of each part."""
    from headstart.evaluation.cost import PriceTag

    lines = ["| part | cost |", "|---|---|"]
    for name, folders in parts.items():
        tags = [PriceTag.from_dict(read(folder)["cost"]) for folder in folders]
        if tags:
            lines.append(f"| {name} | {sum(tags[1:], tags[0]).sentence()} |")
    return "\n".join(lines)


def write(page: Path, tables: dict[str, str]) -> None:
    """Write each table between the markers with its name."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        before, rest = text.split(f"<!-- {name} -->")
        _, after = rest.split(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    page.write_text(text, encoding="utf-8")
