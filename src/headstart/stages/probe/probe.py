"""What every probe does: measure a network, and report what was measured of all models beside each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headstart.core import registry
from headstart.core.errors import DataError, HeadstartError
from headstart.core.randomness import permute
from headstart.evaluation.intervals import Estimate
from headstart.evaluation.report.content import ReportSection
from headstart.evaluation.resampling import CrossedDesign
from headstart.stages.probe.network import ProbedNetwork
from headstart.stages.probe.settings import ProbeSettings
from headstart.tasks import tables
from headstart.tasks.table_files import SUFFIXES


@dataclass(frozen=True)
class Measured:
    """What a probe measured of one model, and of the same network untrained."""

    model: str
    family: str
    trained: Any
    untrained: Any


@dataclass(frozen=True)
class ProbeScore:
    """One figure of a model: a fraction, or another number, its interval, and the same figure of the baselines."""

    model: str
    measure: str
    estimate: Estimate
    baselines: dict[str, float | None]
    """The figure of a baseline by its name: `untrained`, or another that the probe has."""
    unit: str = "× 100"
    """The unit of a number that is not a fraction, such as nats."""
    points: Sequence[float] = ()
    """The value of each row of the data, whose mean is the figure; NaN for a row that was left out."""
    design: CrossedDesign | None = None
    """Where rows of the data are not independent of each other: what is drawn in their place."""

    @property
    def scale(self) -> float:
        """100 for a fraction, else 1."""
        return 100.0 if self.unit == "× 100" else 1.0

    def number(self, value: float, sign: str = "") -> str:
        """Return a value in the unit of the figure as text; `sign` is `+` for a difference."""
        return f"{self.scale * value:{sign}.{1 if self.scale == 100 else 2}f}"

    def shown(self) -> str:
        """Return the figure with its interval as text."""
        if self.estimate.value is None:
            return "–"
        ends = [self.number(end) for end in (self.estimate.low, self.estimate.high) if end is not None]
        return self.number(self.estimate.value) + (f" ({' to '.join(ends)})" if ends else "")


@dataclass(frozen=True)
class ProbeReport:
    """The results of one probe over all models."""

    scores: Sequence[ProbeScore]
    """The main figures."""
    sections: Sequence[ReportSection]
    """What the page shows."""
    numbers: dict[str, Any]
    """Everything as plain JSON types."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows by the name of the Parquet file, without its suffix."""


class ProbeNotApplicable(HeadstartError):
    """A probe has no meaning for a network."""


class Probe:
    """Base class of the probes. A probe is built once and measures each network by itself."""

    paper: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    """The families in which the probe has a meaning."""
    needs_head: ClassVar[bool] = True
    """Whether the probe reads the predictions of a language-model head."""
    needs_untrained: ClassVar[bool] = True
    """Whether `measure` is called for the untrained network too."""
    fewest_models: ClassVar[int] = 1
    """The models that the probe compares; one of more than one model runs only if it is named."""
    over_run: ClassVar[bool] = True
    """Whether the probe runs on the snapshots of a run too, to show what was learned when."""
    data: ClassVar[tuple[str, ...]] = ()
    """The files of the data folder that the probe reads where `text` is not set."""
    figures_need_untrained: ClassVar[bool] = True
    """Whether `figures` reads what was measured of the untrained network."""

    def __init__(self, settings: ProbeSettings) -> None:
        """Keep the settings; data is read by `prepare`."""
        self.settings = settings
        self.share = 1.0
        """Fraction of the default numbers of rows that is read, less than 1 for large models."""

    def row_count(self, default: int, fewest: int = 1) -> int:
        """Return how many rows of a group are read: `limit`, or the default number, fewer for large models.

        Args:
            default: the number for small models.
            fewest: the least that a large model gets.
        """
        return self.settings.limit or max(min(fewest, default), round(default * self.share))

    def prepare(self) -> str | None:
        """Read the data of the probe, and return the reason if there is none; called before any network is opened."""
        return None

    def reason_against(self, network: ProbedNetwork) -> str | None:
        """Return why the probe has no meaning for a network, or None if it has one."""
        if network.family not in self.families:
            return (
                f"it has a meaning for the families {' and '.join(self.families)}, and this is one of {network.family}"
            )
        if self.needs_head and not network.has_head:
            return (
                "the checkpoint has no language-model head, as it was not trained to predict tokens or was fine-tuned"
            )
        return None

    def measure(self, network: ProbedNetwork) -> Any:
        """Return what the probe finds in a network."""
        raise NotImplementedError

    def report(self, measured: Sequence[Measured]) -> ProbeReport:
        """Return the results of all models."""
        raise NotImplementedError

    def figures(self, each: Measured) -> Sequence[ProbeScore]:
        """Return the main figures of one model, those of most interest first, for a study.

        A probe that overrides it and sets `figures_need_untrained` to False is spared the untrained network.
        """
        return self.report([each]).scores

    def files(self) -> dict[str, Path]:
        """Return the files that the probe reads: the given one as `text`, or those of its data that exist by name."""
        if self.settings.text is not None:
            return {"text": Path(self.settings.text)}
        return {name: path for name in self.data if (path := data_file(name)) is not None}

    def sections_over_run(self, points: Sequence[tuple[str, Measured]]) -> list[ReportSection]:
        """Return what the page shows of networks along a run, each with its name, besides the main figures."""
        return []


def data_file(name: str) -> Path | None:
    """Return a file of the data folder (`HEADSTART_DATA`, or `data`), or None if it does not exist."""
    path = Path(os.environ.get("HEADSTART_DATA") or "data") / name
    return path if path.is_file() else None


def read_table(path: str | Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries; raises if there are none or a required column is missing.

    Args:
        path: a Parquet, Arrow, CSV, TSV or JSON file.
        required: columns that the table needs.
        optional: columns that are read where they exist.
    """
    table, _ = tables.read(path, text_columns=[*required])
    missing = next((name for name in required if name not in table.column_names), None)
    if missing is not None:
        raise DataError(
            f"{path} has no column {missing!r}{registry.suggest(missing, table.column_names)}",
            allowed=f"This probe reads the columns {', '.join(required)}"
            + (f" and, where they exist, {', '.join(optional)}" if optional else ""),
            do="Rename the columns of the file",
        )
    selected = [name for name in (*required, *optional) if name in table.column_names]
    rows: list[dict[str, Any]] = table.select(selected).to_pylist()
    if not rows:
        raise DataError(f"{path} has no rows", do="Pass another file")
    return rows


def read_columns(path: str | Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a table of texts as `read_table` does; raises if a required cell is not a text."""
    rows = read_table(path, required, optional)
    for number, row in enumerate(rows, start=1):
        empty = next((name for name in required if not isinstance(row[name], str) or not row[name].strip()), None)
        if empty is not None:
            raise DataError(f"{path}, row {number}: {empty!r} is not a text", do="Complete or remove the row")
    return rows


def read_texts(path: str | Path) -> list[str]:
    """Return the lines of a text file that are not blank, or the column `text` of a table."""
    if Path(path).suffix.lower() in SUFFIXES:
        return [row["text"] for row in read_columns(path, ("text",))]
    try:
        return [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text ({error})", do="Pass a UTF-8 text file or a table") from error


def sample(count: int, limit: int, seed: int, purpose: str) -> list[int]:
    """Return the indices of at most `limit` of `count` rows, in ascending order; a larger limit adds rows to them."""
    if count <= limit:
        return list(range(count))
    return sorted(permute(np.arange(limit), count, seed, 0, purpose).tolist())


def percent(estimate: Estimate, sign: str = "") -> str:
    """Return a fraction × 100 with its interval; `sign` is `+` for a difference."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    value, low, high = (f"{100 * number:{sign}.1f}" for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"
