"""What pages show by layer: numbers with intervals, and lines of the trained and the untrained network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from headstart.core.pages.charts import ChartLine, ChartPoint, legend, line_chart
from headstart.core.pages.svg import Marker
from headstart.evaluation.intervals import Estimate

ByLayer = Sequence[tuple[int, Estimate]]
"""The layers and an estimate for each."""


def decimal(estimate: Estimate) -> str:
    """Return an estimate with three decimals and its interval."""
    if estimate.value is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def layer_charts(
    charts: Mapping[str, Mapping[str, tuple[ByLayer, ByLayer]]],
    y_name: str,
    show: Callable[[Estimate], str] = decimal,
    scale: float = 1.0,
) -> list[Markup]:
    """Return one chart for each title, and one legend; a chart without points is left out.

    Args:
        charts: for each title the models, each with its estimates, trained and untrained.
        y_name: the name of the y axis.
        show: how a point describes its estimate.
        scale: by what estimates are multiplied.
    """
    figures: list[Markup] = []
    entries: dict[str, tuple[str, Marker, bool]] = {}
    for title, models in charts.items():
        lines = []
        for number, (model, networks) in enumerate(models.items()):
            for found, suffix in zip(networks, ("", ", untrained"), strict=True):
                points = [
                    _point(layer, estimate, show, scale) for layer, estimate in found if estimate.value is not None
                ]
                if points:
                    lines.append(ChartLine(f"{model}{suffix}", Marker.of(number), points, is_dashed=bool(suffix)))
        if lines:
            figures.append(line_chart(title, "layer", y_name, lines))
            entries |= {line.name: (line.name, line.marker, line.is_dashed) for line in lines}
    return [*figures, legend(list(entries.values()))] if figures else []


def _point(layer: int, estimate: Estimate, show: Callable[[Estimate], str], scale: float) -> ChartPoint:
    low, high = (None if end is None else scale * end for end in (estimate.low, estimate.high))
    return ChartPoint(layer, scale * (estimate.value or 0.0), f"layer {layer}: {show(estimate)}", low, high)
