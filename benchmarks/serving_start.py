"""The start with 1,000 registered tasks, 100 of them in memory, and the time to load one more adapter.

The tasks are LoRA adapters on MiniLM (`serving_tasks.py`). The start counts from the command to the line that says
where the server listens; importing torch and transformers is a part of it. Loading one more adapter includes verifying
its files. Its processor time is given beside the wall time, which other work on the machine lengthens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from serving_client import headstart_server, quantile, write_result
from serving_page import render
from serving_tasks import make_tasks

from headstart.stages.serve.catalog import Catalog
from headstart.stages.serve.telemetry import Telemetry


def load_times(folder: Path, registered: int, resident: int, more: int) -> tuple[list[float], list[float], float]:
    """Return wall and processor milliseconds of `more` loads after `resident` ones, and the size of a task in MB."""
    catalog = Catalog([folder / f"lora-{i}" for i in range(registered)], 10**12, Telemetry())
    for i in range(resident):
        catalog.load(f"lora-{i}")
    wall, processor = [], []
    for i in range(resident, resident + more):
        start, start_processor = time.perf_counter(), time.thread_time()
        catalog.load(f"lora-{i}")
        wall.append(1000 * (time.perf_counter() - start))
        processor.append(1000 * (time.thread_time() - start_processor))
    return wall, processor, catalog.resident_bytes / (resident + more) / 1e6


def main() -> None:
    """Create the tasks, measure, and write a JSON result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/serving"), help="folder for the tasks")
    parser.add_argument("--results", type=Path, default=Path("docs/results/serving"), help="folder for the result")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--resident", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--page", type=Path, help="render this page from the results at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = make_tasks(options.work, f"{options.tasks}-tasks", lora=options.tasks)
    few, _, size = load_times(folder, options.resident // 2, options.resident // 4, options.resident // 4)
    wall, processor, _ = load_times(folder, options.tasks, options.resident, options.resident)
    starts = []
    for _ in range(options.repetitions):
        with headstart_server(str(folder), f"--cache-mb={options.resident * size + size / 2}") as server:
            starts.append(server.seconds)
            described = next(line for line in server.lines if "tasks are in memory; the others" in line)
    write_result(
        options.results,
        "start",
        {
            "tasks": options.tasks, "resident": int(described.split()[0]), "task_mb": round(size, 3),
            "start_seconds": [round(seconds, 2) for seconds in starts],
            "start_seconds_median": round(statistics.median(starts), 2),
            "load_ms": round(statistics.median(wall), 2), "load_ms_p95": round(quantile(wall, 0.95), 2),
            "load_processor_ms": round(statistics.median(processor), 2),
            "load_ms_with_few_tasks": round(statistics.median(few), 2),
        },
    )  # fmt: skip
    if options.page:
        render(options.results, options.page)


if __name__ == "__main__":
    main()
