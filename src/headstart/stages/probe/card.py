"""A section for the model card: the main figures of the probes, with intervals and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headstart.core.pages.markdown import code, escape, markdown_table
from headstart.stages.probe.probe import ProbeReport

_NOTES = {
    "bias": "Bias is measured on a few groups, stereotypes and short sentences in English. A small figure does not "
    "show that the model is fair, nor a large one that it does harm where it is used.",
    "attribution": "The figure of attribution is a check of explanations, not of the model.",
}


def section(reports: Mapping[str, ProbeReport], notes: Sequence[str]) -> str:
    """Return the main figures as Markdown; names of models and measures are in code spans or escaped."""
    rows = [
        [
            code(score.model), escape(name), escape(score.measure), escape(score.shown()),
            escape("; ".join(f"{key} {score.number(v)}" for key, v in score.baselines.items() if v is not None) or "–"),
        ]
        for name, report in reports.items()
        for score in report.scores
    ]  # fmt: skip
    parts = [
        "## What the network knows",
        "Measured by `headstart probe`, with 95 % intervals. Untrained is the same network with new weights.",
    ]
    if rows:
        parts.append(markdown_table(["model", "probe", "measure", "value (fractions × 100)", "beside it"], rows))
    parts += [text for name, text in _NOTES.items() if name in reports]
    parts += [str(escape(note)) for note in notes]
    return "\n\n".join(parts) + "\n"
