"""Renders docs/results/serving.md from the JSON results of the benchmarks of serving."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def start(result: Result) -> list[tuple[str, str, str]]:
    """Rows on the start and on loading: what, measured, goal."""
    starts = ", ".join(f"{seconds:.1f}" for seconds in sorted(result["start_seconds"]))
    return [
        (f"start with {result['tasks']:,} tasks, {result['resident']} in memory",
         f"{result['start_seconds_median']:.1f} s (median of {starts})", "≤ 10 s"),
        ("one more adapter, verified and loaded",
         f"{result['load_ms']:.1f} ms (processor time {result['load_processor_ms']:.1f} ms)", "≤ 5 ms"),
        ("the same with few tasks", f"{result['load_ms_with_few_tasks']:.1f} ms", "no difference"),
    ]  # fmt: skip


def overload(result: Result) -> list[tuple[str, str, str]]:
    """Rows on overload."""
    low, high = result["memory_change_percent"]
    others = {status: count for status, count in result["statuses"].items() if status not in ("200", "429")}
    return [
        ("requests", f"{sum(result['statuses'].values()):,} in {result['minutes']:g} min, "
         f"{result['factor']:g} × {result['capacity_requests_per_second']:g} per second", "5 × capacity, 10 min"),
        ("replies other than 200 and 429", ", ".join(f"{k}: {v}" for k, v in others.items()) or "none", "none"),
        ("worker restarts", str(result["worker_restarts"]), "0"),
        ("accepted requests, p50 and p99", f"{result['accepted_ms_p50']:,.0f} and {result['accepted_ms_p99']:,.0f} ms",
         f"≤ {1000 * result['deadline_seconds']:,.0f} ms (deadline)"),
        ("refused requests, p50 and p99", f"{result['refused_ms_p50']:.1f} and {result['refused_ms_p99']:.1f} ms",
         "< 50 ms"),
        ("memory, change after the first segment", f"{low:+.1f} to {high:+.1f} % of {result['memory_mb']:,.0f} MB",
         "± 5 %"),
    ]  # fmt: skip


def soak(result: Result) -> list[tuple[str, str, str]]:
    """Rows on the soak."""
    return [
        ("requests checked", f"{result['answered']:,} in {result['minutes']:g} min", "30 min"),
        ("wrong answers", str(result["wrong"]), "0"),
        ("tasks replaced", str(result["swaps"]), "200"),
        ("workers killed (kill -9) and restarted", f"{result['kills']} and {result['restarts']}", "20"),
        ("requests lost at a kill, and at other times", f"{result['lost_at_kills']} and {result['lost_otherwise']}",
         "any, 0"),
        ("refused or failed with a status", ", ".join(f"{k}: {v}" for k, v in result["statuses"].items() if k not in
         ("0", "200")) or "none", "only 429"),
        ("clients that left, slow readers", f"{result['left']} and {result['slow']}", "—"),
        ("memory of the largest worker, change", f"{result['memory_change_percent'][0]:+.1f} to "
         f"{result['memory_change_percent'][1]:+.1f} %", "± 5 %"),
    ]  # fmt: skip


def comparison(result: Result) -> list[tuple[str, str, str]]:
    """Rows on the comparison: the highest rate whose p99 is within the limit."""
    limit = f"p99 ≤ {result['p99_limit_ms']:g} ms"
    rows = [(name, f"{rate:.1f} requests/s", limit) for name, rate in result["rates"].items()]
    rows += [(f"{name}, wrk without a pause", f"{rate:.1f} requests/s", "") for name, rate in result["wrk"].items()]
    return rows + [
        (name, f"{ratio:.2f} ×", f"≥ {result['goals'][name]:g} ×") for name, ratio in result["ratios"].items()
    ]


SECTIONS: dict[str, Callable[[Result], list[tuple[str, str, str]]]] = {
    "start": start, "overload": overload, "soak": soak, "comparison": comparison,
}  # fmt: skip


def table(result: Result, rows: list[tuple[str, str, str]]) -> str:
    """Return a table, and when and where it was measured."""
    lines = ["| | measured | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, "", f"Measured on {result['date']}, {result['machine']}."])


def render(results: Path, page: Path) -> None:
    """Write the table of each result that exists between its markers."""
    text = page.read_text(encoding="utf-8")
    for name, section in SECTIONS.items():
        path = results / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            before, rest = text.split(f"<!-- {name} -->")
            after = rest.split(f"<!-- /{name} -->")[1]
            text = f"{before}<!-- {name} -->\n{table(result, section(result))}\n<!-- /{name} -->{after}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Render the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("docs/results/serving"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/serving.md"))
    options = parser.parse_args()
    render(options.results, options.page)


if __name__ == "__main__":
    main()
