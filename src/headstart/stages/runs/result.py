"""What the Python API returns: a finished run with its scores, its cost and its model.

    run = headstart.finetune("recipe.yaml")
    run.scores                      # a table, one row per method and seed
    run.cost                        # tokens, FLOPs, seconds, kWh, money
    run.predict(["a text", "another"])

A run is also a path: `os.fspath(run)`, `Path(run)`, f"{run}" and `run / "file"` work, so a run can be passed wherever a
folder is expected.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.core import artifact, renames
from headstart.core.errors import ArtifactError, HeadstartError, ResourceError

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headstart.evaluation.cost import PriceTag


class Table(list[dict[str, Any]]):
    """Rows as dictionaries with the same keys. It prints as a table, and a notebook renders it as one.

    It is not a pandas data frame because pandas is no dependency of Headstart: it happens to be installed together with
    codecarbon, which may change. `to_pandas()` and `pandas.DataFrame(table)` convert it.
    """

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise ResourceError("pandas is not installed", do="pip install pandas") from error
        return pandas.DataFrame(list(self))

    def __repr__(self) -> str:
        columns = self._columns()
        rows = [columns, *([_text(row.get(name)) for name in columns] for row in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        columns = self._columns()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(row.get(name)))}</td>" for name in columns) + "</tr>"
            for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self for name in row))


class Run:
    """The output folder of one run: its recipe, manifest, scores and cost. Everything is read when it is first used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Refer to a folder; nothing is read yet."""
        self.path = Path(path)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of `headstart.json`."""
        return artifact.read_manifest(self.path)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The filled recipe."""
        return renames.upgrade(self.manifest["recipe"])

    @cached_property
    def scores(self) -> Table:
        """The results as a table."""
        raise NotImplementedError

    @cached_property
    def cost(self) -> PriceTag:
        """The measured price tag: tokens, FLOPs, seconds, memory, energy, money."""
        from headstart.evaluation.cost import PriceTag

        return PriceTag.from_dict(self.manifest["cost"])

    def summary(self) -> str:
        """Return the text that the command line prints about the run."""
        return f"{self.scores!r}\ncost: {self.cost.sentence()}"

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """Return the path of a file in the folder: `run / "README.md"`."""
        return self.path / name

    def __eq__(self, other: object) -> bool:
        """Two runs are equal if their folders are; a run is also equal to the path of its folder."""
        return isinstance(other, Run | Path) and self.path == Path(other)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        title = f"{type(self).__name__}({str(self.path)!r})"
        try:
            return f"{title}\n{self.scores!r}\ncost: {self.cost.sentence()}"
        except HeadstartError:
            return title

    def _repr_html_(self) -> str:
        cost = html.escape(self.cost.sentence())
        return f"<p><code>{html.escape(str(self))}</code></p>{self.scores._repr_html_()}<p>cost: {cost}</p>"


class ModelRun(Run):
    """A run whose folder is a Hugging Face model. The files are verified before they are loaded."""

    @cached_property
    def _loaded(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        from headstart.stages.finetune import finished

        return finished.load(self.path)

    @property
    def model(self) -> PreTrainedModel:
        """The model, as `headstart.load` returns it."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, as `headstart.load` returns it."""
        return self._loaded[1]


class PretrainRun(ModelRun):
    """The result of `headstart.pretrain`."""

    @cached_property
    def scores(self) -> Table:
        """The loss and other metrics on held-out text, beside the loss of a unigram model."""
        metrics = self.manifest["metrics"]
        return Table([{"split": "validation", **metrics["validation"], "unigram_entropy": metrics["unigram_entropy"]}])

    def summary(self) -> str:
        """Return the text that `headstart pretrain` prints."""
        from headstart.stages.pretrain import run as stage

        return stage.summary(self.path)


class FinetuneRun(ModelRun):
    """The result of `headstart.finetune`: the model of the best seed, and the scores of all methods and seeds."""

    @cached_property
    def scores(self) -> Table:
        """The test scores, one row per method and seed."""
        first = self.recipe["seed"]
        return Table(
            {"method": method, "seed": first + number, **scores}
            for method, runs in self.manifest["metrics"].items()
            for number, scores in enumerate(runs)
        )

    def predict(self, texts: Sequence[Any]) -> list[Any]:
        """Return one prediction per text, in the form of the labels.

        A task that reads several columns takes tuples, in the order of its columns. A task that needs more than its
        input columns raises a DataError.
        """
        return self._finetuned.predict_texts(texts)

    @cached_property
    def _finetuned(self) -> Any:
        from headstart.stages.finetune import finished
        from headstart.stages.runs.manifest import FinetuneManifest

        return finished.Finetuned(self.path, FinetuneManifest.from_dict(artifact.verify(self.path), self.path))

    def summary(self) -> str:
        """Return the text that `headstart finetune` prints."""
        from headstart.stages.finetune import run as stage

        return stage.summary(self.path)


class MultitaskRun(Run):
    """The result of `headstart.multitask`: `tasks` has the run of each task, with its model."""

    @cached_property
    def tasks(self) -> dict[str, FinetuneRun]:
        """The runs of the tasks by name."""
        return {name: FinetuneRun(self.path / name) for name in self.recipe["tasks"]}

    @cached_property
    def scores(self) -> Table:
        """The test scores, one row per task, method and seed."""
        return Table({"task": name, **row} for name, run in self.tasks.items() for row in run.scores)

    def summary(self) -> str:
        """Return the text that `headstart multitask` prints."""
        from headstart.stages.multitask import run as stage

        return stage.summary(self.path)


class CorpusRun(Run):
    """The result of `headstart.build_corpus`."""

    @cached_property
    def scores(self) -> Table:
        """The size of each split."""
        splits: Mapping[str, Mapping[str, Any]] = self.manifest["facts"]["splits"]
        return Table({"split": split, **counts} for split, counts in splits.items())

    @cached_property
    def cost(self) -> PriceTag:
        """The seconds of all steps; a corpus has no other measured cost."""
        from headstart.evaluation.cost import PriceTag

        return PriceTag(seconds=sum(self.manifest["cost"]["seconds"].values()))

    def summary(self) -> str:
        """Return the text that `headstart corpus build` prints."""
        from headstart.corpus.datasheet import inspection

        return inspection.render_stats(inspection.stats(self.path))


class IndexRun(Run):
    """The result of `headstart.index`."""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The filled recipe."""
        return renames.upgrade(self.manifest["index"]["recipe"])

    @cached_property
    def scores(self) -> Table:
        """The number of passages and documents, and the width of the vectors."""
        facts = self.manifest["index"]
        return Table([{name: facts[name] for name in ("passages", "documents", "width")}])

    @cached_property
    def cost(self) -> PriceTag:
        """The measured price tag."""
        from headstart.evaluation.cost import PriceTag

        return PriceTag.from_dict(self.manifest["index"]["cost"])

    def summary(self) -> str:
        """Return the text that `headstart index` prints."""
        from headstart.stages.search import index as stage

        return stage.summary(self.path)


class ExportRun(Run):
    """The result of `headstart.export`: a folder for another runtime, and its comparison with the model in torch."""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The format, the tolerance and the rows of the comparison."""
        facts = self.manifest["export"]
        return {name: facts[name] for name in ("to", "tolerance", "source", "threads", "repetitions")}

    @cached_property
    def scores(self) -> Table:
        """Score, loss in points, size and latency, one row for the model in torch and one for each export."""
        from headstart.stages.export import run as stage

        return Table(stage.table(self.path))

    def summary(self) -> str:
        """Return the text that `headstart export` prints."""
        from headstart.stages.export import run as stage

        return stage.summary(self.path)


class ProbeRun(Run):
    """The result of `headstart.probe`: a page, tables, and all numbers."""

    @property
    def page(self) -> Path:
        """The page as HTML."""
        return self.path / "probe.html"

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The models and the settings."""
        facts = self.manifest["probe"]
        return {"models": facts["models"], **renames.upgrade(facts["settings"])}

    @cached_property
    def scores(self) -> Table:
        """The main figures with their intervals and baselines, one row for each model and measure."""
        return Table(self.manifest["probe"]["scores"])

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """All numbers, as in `probe.json`."""
        numbers: dict[str, Any] = json.loads((self.path / "probe.json").read_text(encoding="utf-8"))
        return numbers

    def table(self, name: str) -> Table:
        """Return the rows of a Parquet file of the folder, such as "minimal_pairs"."""
        from pyarrow import parquet

        names = sorted(path.stem for path in self.path.glob("*.parquet"))
        if name not in names:
            raise ArtifactError(f"{self.path} has no table {name!r}", allowed=f"Its tables: {', '.join(names)}")
        return Table(parquet.read_table(str(self.path / f"{name}.parquet")).to_pylist())

    def summary(self) -> str:
        """Return the text that `headstart probe` prints."""
        from headstart.stages.probe import run as stage

        return stage.summary(self.path)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
