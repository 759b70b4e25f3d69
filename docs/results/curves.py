"""Plot the learning curves of a published study from its table, for the README.

python docs/results/curves.py label-efficiency --task sst2 --systems minilm/full mini/full svm scratch/mini
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from headstart.core.pages.charts import ChartLine, ChartPoint, line_chart, standalone
from headstart.core.pages.svg import Marker

NAMES = {
    "minilm/full": "MiniLM", "mini/full": "mini encoder", "svm": "linear SVM", "scratch/mini": "from scratch",
}  # fmt: skip


def draw(study: Path, task: str, systems: Sequence[str]) -> str:
    """Return an SVG file with the mean score and 95 % interval of each system against the number of labels."""
    with (study / "tables" / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task]
    lines = []
    for index, system in enumerate(systems):
        points = [
            ChartPoint(int(row["labels"]), float(row["mean"]), row["system"], float(row["low"]), float(row["high"]))
            for row in rows
            if row["system"] == system
        ]
        is_dashed = system in ("svm", "scratch/mini")
        lines.append(ChartLine(NAMES.get(system, system), Marker.of(index), points, is_dashed))
    ticks = sorted({point.x for line in lines for point in line.points})
    metric = f"{rows[0]['metric']} × 100 on {task}"
    figure = line_chart(task, "labeled rows", metric, lines, ticks=ticks, may_be_log=True)
    return standalone(Markup("<svg") + figure.partition("<svg")[2].removesuffix("</figure>"))


def main() -> None:
    """Write curves.svg to the folder of the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", help="a folder in docs/results")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--systems", nargs="+", default=list(NAMES))
    options = parser.parse_args()
    folder = Path(__file__).parent / options.study
    (folder / "curves.svg").write_text(draw(folder, options.task, options.systems), encoding="utf-8")
    print(f"wrote {folder / 'curves.svg'}")


if __name__ == "__main__":
    main()
