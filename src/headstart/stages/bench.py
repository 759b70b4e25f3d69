"""Run the benchmarks of a checkout and write their page: every line measured side by side, goals beside it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from headstart.core import artifact
from headstart.core.errors import DataError
from headstart.core.markdown import markdown_table
from headstart.core.processes import cores
from headstart.training import precision

PAGE = Path("docs/results/performance.md")
_LIMITS = ("<!-- limits -->", "<!-- /limits -->")
"""What a person writes between these of lines that miss their goal stays when the page is written again."""


def scripts(folder: Path = Path("benchmarks")) -> list[Path]:
    """Return the scripts that can be run, by name; the others of the folder are what they share."""
    found = sorted(path for path in folder.glob("*.py") if "def main()" in path.read_text(encoding="utf-8"))
    if not found:
        raise DataError(
            f"there is no benchmark in {folder.resolve()}",
            allowed="Benchmarks lie in the folder `benchmarks` of a checkout",
            do="Change to a checkout of Headstart",
        )
    return found


def run(
    names: Sequence[str] = (), quick: bool = False, repetitions: int | None = None, page: Path = PAGE
) -> list[dict[str, Any]]:
    """Run all scripts, or those named, print each line as it comes, and keep the page; returns what was measured.

    Every script knows how many turns its sides take, unless `repetitions` says it. The page is written after each
    script, and one that fails stops no other.
    """
    known = {path.stem: path for path in scripts()}
    for name in names:
        if name not in known:
            raise DataError(f"there is no benchmark {name!r}", allowed=f"There are: {', '.join(known)}")
    found, failed = _lines(page), []
    for name in names or known:
        start = time.monotonic()
        code, lines = _results(known[name], quick, 1 if quick else repetitions)
        for line in lines:
            print(f"{line['name']}: {line['ratio']} (goal {line['goal']:g})", flush=True)
            minutes = round((time.monotonic() - start) / 60, 1)
            found[line["name"]] = line | {
                "script": name, "minutes": minutes, "date": _today(), "machine": _machine(),
                "format": precision.resolve("auto", torch.device("cpu")), "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }  # fmt: skip
        if code != 0:
            failed.append(str(known[name]))
        elif not lines:
            print(f"{name}: left out", flush=True)
        if lines and not quick:
            artifact.write_whole(page, _page(found.values(), _between(page, *_LIMITS)))
    if failed:
        raise DataError(
            f"{', '.join(failed)} failed; the others are measured", do=f"Run `python {failed[0]}` to see why"
        )
    return list(found.values())


def _results(script: Path, quick: bool, repetitions: int | None) -> tuple[int, list[dict[str, Any]]]:
    """Run a script and return how it ended and what it measured; one that has nothing to compare with says so."""
    command = [sys.executable, str(script), *(["--quick"] if quick else [])]
    command += [] if repetitions is None else ["--repetitions", str(repetitions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, [line for line in map(_measured, done.stdout.splitlines()) if line]


def _measured(line: str) -> dict[str, Any] | None:
    """Read a line that says what was measured; libraries print others."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "ratio" in found else None


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _machine() -> str:
    """Say what decides most: the cores, and the widest instructions that products of matrices can use."""
    widest = (name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in precision.cpu_flags())
    return f"{cores()} cores, {next(widest, platform.machine())}"


def _lines(page: Path) -> dict[str, dict[str, Any]]:
    """Return what the page holds already, by name, so that one script can be run anew."""
    lines = _between(page, "```json\n", "```").splitlines()
    return {line["name"]: line for line in map(json.loads, lines)}


def _between(page: Path, start: str, stop: str) -> str:
    """Return what stands between two marks of a page, nothing where there is no page yet."""
    if not page.is_file():
        return ""
    _, _, rest = page.read_text(encoding="utf-8").partition(start)
    return rest.partition(stop)[0]


def _ratio(line: dict[str, Any]) -> str:
    """Return the ratio, and the least and the most of its turns where there were some."""
    least, most = line.get("least", line["ratio"]), line.get("most", line["ratio"])
    return f"{line['ratio']:.3f}" + ("" if least == most else f" ({least:.2f}–{most:.2f})")


def _page(lines: Any, limits: str) -> str:
    rows = [
        [line["name"], f"{line['ours']:,.4g}", f"{line['theirs']:,.4g}", line["unit"], _ratio(line),
         f"{line['goal']:.3g}", "yes" if line["ratio"] >= line["goal"] else "no", f"`{line['script']}`", line["date"],
         line["machine"]]
        for line in lines
    ]  # fmt: skip
    head = ["measure", "ours", "theirs", "unit", "ratio", "goal", "reached", "script", "date", "machine"]
    table = markdown_table(head, rows)
    return (
        "# Speed, side by side\n\n"
        "Written by `headstart bench`; `headstart bench NAME` repeats one script of `benchmarks/`, whose first lines "
        "say what is measured and how. What is compared took turns in one run; medians stand here, of the ratio too, "
        "with the least and the most that a turn gave. A limit, a ceiling or what a model foresees stands under "
        "“theirs”. The goal is reached where the ratio is as large. Both sides compute in bf16 where the machine has "
        "it in hardware (`amx_bf16`, `avx512_bf16`), else in fp32; what a goal asks of bf16 is not to be had there.\n\n"
        f"{table}\n\n{_LIMITS[0]}{limits}{_LIMITS[1]}\n\nAll figures, as the scripts printed them:\n\n```json\n"
        + "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        + "\n```\n"
    )
