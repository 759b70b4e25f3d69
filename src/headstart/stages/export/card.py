"""The card of an exported model: how to use it, and what the export changed."""

from __future__ import annotations

from typing import Any

import yaml

from headstart.core import artifact
from headstart.core.pages.markdown import code, escape, markdown_table
from headstart.stages.export.comparison import Comparison
from headstart.stages.runs.manifest import FinetuneManifest


def write(facts: FinetuneManifest, to: str, usage: str, comparison: Comparison, notes: list[str]) -> str:
    """Return the card in Markdown."""
    recipe = facts.recipe
    library = {"onnx": "onnx", "int8": "onnx", "openvino": "openvino", "static": "model2vec"}.get(to, "transformers")
    front: dict[str, Any] = {"library_name": library, "tags": ["headstart", to]}
    if facts.pipeline:
        front["pipeline_tag"] = facts.pipeline
    header, rows = comparison.cells()
    best = comparison.best
    loss = best.loss_sentence(comparison.metric)
    return "\n\n".join([
        "---\n" + yaml.safe_dump(front, sort_keys=False) + "---",
        f"# {recipe['task']['kind']} from {code(recipe['model'])}, exported to {to}",
        f"Fine-tuned by `{recipe['adaptation']['name']}`, and exported with `headstart export --to {to}`. "
        f"{escape(loss[:1].upper() + loss[1:])} ({comparison.rows:,} rows, paired bootstrap).",
        f"```python\n{usage}```",
        *map(escape, notes),
        "## Comparison with torch\n\n" + markdown_table(header, rows, [False, *[True] * (len(header) - 1)]),
        escape(
            f"Rows: {comparison.source}. Latency: median of {comparison.repetitions} batches of rows of typical "
            f"length, without tokenization, {comparison.threads} thread{'s' * (comparison.threads != 1)} each, the "
            f"models in turns; in parentheses the speed relative to {comparison.models[0].name}. "
            f"Tolerance: {comparison.tolerance:g} points."
        ),
        "Made with " + ", ".join(f"{name} {number}" for name, number in artifact.versions().items()) + ".",
    ]) + "\n"  # fmt: skip
