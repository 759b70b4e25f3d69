"""Run the benchmarks of a checkout and write their results, with goals, to a page."""

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
from headstart.core.pages.markdown import code, markdown_table
from headstart.core.processes import cores
from headstart.training import precision

PAGE = Path("docs/results/performance.md")
_LIMITS = ("<!-- limits -->", "<!-- /limits -->")
"""Markers of the hand-written text about missed goals, which is kept when the page is written again."""


def scripts(folder: Path = Path("benchmarks")) -> list[Path]:
    """Return the benchmark scripts of a folder, sorted by name; files without `main()` are shared code."""
    paths = sorted(path for path in folder.glob("*.py") if "def main()" in path.read_text(encoding="utf-8"))
    if not paths:
        raise DataError(
            f"there is no benchmark in {folder.resolve()}",
            allowed="Benchmarks are in the folder `benchmarks` of a checkout",
            do="Run the command in a checkout of Headstart",
        )
    return paths


def run(
    names: Sequence[str] = (), quick: bool = False, repetitions: int | None = None, page: Path = PAGE
) -> list[dict[str, Any]]:
    """Run benchmark scripts, print their results, update the page, and return all results on it.

    The page is written after each script. A failing script does not stop the others; the error is raised at the end.

    Args:
        names: the scripts to run; all by default.
        quick: do as little work as possible, once, and do not write the page.
        repetitions: the number of repetitions; each script has its own default.
        page: the file to write.
    """
    known = {path.stem: path for path in scripts()}
    for name in names:
        if name not in known:
            raise DataError(f"there is no benchmark {name!r}", allowed=f"Benchmarks: {', '.join(known)}")
    results, failed = _read_page(page), []
    for name in names or known:
        start = time.monotonic()
        exit_code, lines = _run_script(known[name], quick, 1 if quick else repetitions)
        for line in lines:
            print(f"{line['name']}: {line['ratio']} (goal {line['goal']:g})", flush=True)
            minutes = round((time.monotonic() - start) / 60, 1)
            results[line["name"]] = line | {
                "script": name, "minutes": minutes, "date": _today(), "machine": _machine(),
                "format": precision.resolve("auto", torch.device("cpu")), "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }  # fmt: skip
        if exit_code != 0:
            failed.append(str(known[name]))
        elif not lines:
            print(f"{name}: skipped", flush=True)
        if lines and not quick:
            artifact.write_whole(page, _page(results.values(), _between(page, *_LIMITS)))
    if failed:
        raise DataError(
            f"{', '.join(failed)} failed; the other benchmarks ran", do=f"Run `python {failed[0]}` to see the error"
        )
    return list(results.values())


def _run_script(script: Path, quick: bool, repetitions: int | None) -> tuple[int, list[dict[str, Any]]]:
    """Run a script and return its exit code and results; a script prints none if it has nothing to compare with."""
    command = [sys.executable, str(script), *(["--quick"] if quick else [])]
    command += [] if repetitions is None else ["--repetitions", str(repetitions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, [result for result in map(_parse_result, done.stdout.splitlines()) if result]


def _parse_result(line: str) -> dict[str, Any] | None:
    """Return a result from a line of output, or None for a line that a library printed."""
    try:
        result = json.loads(line)
    except ValueError:
        return None
    return result if isinstance(result, dict) and "ratio" in result else None


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _machine() -> str:
    """Return what matters most for speed: the number of cores and the widest instructions for matrix products."""
    widest = (name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in precision.cpu_flags())
    return f"{cores()} cores, {next(widest, platform.machine())}"


def _read_page(page: Path) -> dict[str, dict[str, Any]]:
    """Return the results on the page by name, so that a single script can be run again."""
    lines = _between(page, "```json\n", "```").splitlines()
    return {line["name"]: line for line in map(json.loads, lines)}


def _between(page: Path, start: str, stop: str) -> str:
    """Return the text between two markers of a page, or "" if the page does not exist."""
    if not page.is_file():
        return ""
    _, _, rest = page.read_text(encoding="utf-8").partition(start)
    return rest.partition(stop)[0]


def _ratio(line: dict[str, Any]) -> str:
    """Return the median ratio, with the minimum and maximum over repetitions in parentheses."""
    low, high = line.get("least", line["ratio"]), line.get("most", line["ratio"])
    return f"{line['ratio']:.3f}" + ("" if low == high else f" ({low:.2f}–{high:.2f})")


def _page(lines: Any, limits: str) -> str:
    rows = [
        [line["name"], f"{line['ours']:,.4g}", f"{line['theirs']:,.4g}", line["unit"], _ratio(line),
         f"{line['goal']:.3g}", "yes" if line["ratio"] >= line["goal"] else "no", code(line["script"]), line["date"],
         line["machine"]]
        for line in lines
    ]  # fmt: skip
    header = ["measure", "ours", "theirs", "unit", "ratio", "goal", "reached", "script", "date", "machine"]
    table = markdown_table(header, rows)
    reached = sum(line["ratio"] >= line["goal"] for line in lines)
    return (
        "# Speed, side by side\n\n"
        "**Question.** How fast is Headstart compared with other systems and with its own limits?\n\n"
        f"**Answer.** {reached} of {len(rows)} measures reach their goal; the text below the table explains the others."
        "\n\n```bash\nheadstart bench          # all scripts of benchmarks/; writes this page\n"
        "headstart bench NAME     # one script, e.g. headstart bench startup\n```\n\n"
        "The docstring of a script describes what is measured and how. Both systems alternate within one run. The "
        "table shows medians; the range in parentheses is the minimum and maximum ratio over repetitions. “theirs” "
        "may also be a limit, a ceiling or the prediction of a model. A goal is reached if the ratio is at least the "
        "goal. Both systems compute in bf16 if the machine supports it in hardware (`amx_bf16`, `avx512_bf16`), "
        "otherwise in fp32; goals that assume bf16 cannot be reached there.\n\n"
        f"{table}\n\n{_LIMITS[0]}{limits}{_LIMITS[1]}\n\nAll results, as printed by the scripts:\n\n```json\n"
        + "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        + "\n```\n"
    )
